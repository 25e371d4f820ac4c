"""Writing: alone and in a batch, in one piece and in several, as transformers writes, and exactly what was kept."""

import codecs
import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from conca.infer import generating, reading
from conca.infer.beams import beam_search
from conca.infer.generating import Writer, generate
from conca.infer.past import Past
from conca.infer.reading import prompts_of
from conca.infer.sampling import (
    Draws,
    Sampling,
    choose,
    processed,
)
from conca.infer.scoring import score
from conca.infer.stopping import plain
from conca.layers.quantised import narrowed
from conca.layers.states import leaves
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput

LAYERS = "mamba mamba2(d_head=4,d_state=3) attention(n_heads=2) attention(n_heads=2,window=4) lstm"
PROMPTS = [[5, 1, 7], [2], [9, 9, 4, 3, 11, 0, 8, 6, 10, 2, 1, 1, 5], [3, 4]]


class Bytes:
    """Tokens below 256 are the bytes of UTF-8; 256 is the end of a text."""

    eos = 256

    def encode(self, text):
        return list(text.encode())

    def stream(self):
        class Stream:
            def __init__(self):
                self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

            def push(self, ids):
                return self.decoder.decode(bytes(i for i in ids if i < 256))

            def flush(self):
                return self.decoder.decode(b"", True)

        return Stream()


class Pairs(Bytes):
    """Tokens are two bytes each, or one from 65536 on."""

    def encode(self, text):
        data = text.encode()
        pairs = [a * 256 + b for a, b in zip(data[::2], data[1::2])]
        return pairs + [65536 + byte for byte in data[len(data) // 2 * 2 :]]

    def stream(self):
        inner = super().stream()

        class Stream:
            def push(self, ids):
                return inner.push([b for i in ids for b in (divmod(i, 256) if i < 65536 else [i - 65536])])

            def flush(self):
                return inner.flush()

        return Stream()


def retrained(net):
    """Another network of the same shape."""
    made = copy.deepcopy(net)
    with torch.no_grad():
        made.norm.weight.mul_(1.1)
    return made


def network(layers=LAYERS, vocab_size=14, n_tokens=12, d_model=8, **options):
    torch.manual_seed(1)
    made = LanguageNetwork(LanguageConfig(vocab_size, n_tokens, layers, d_model, std=1.0, **options)).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return made


def slow(net, prompt, count, sampling=None, seed=None, row=0):
    """Greedy or drawn tokens by reading everything again for each."""
    ids, draws = list(prompt), None if seed is None else Draws(seed, [row])
    sampling = Sampling() if sampling is None else sampling
    for _ in range(count):
        with torch.no_grad():
            logits = net(torch.tensor([ids]))[0][:, -1]
        seen = torch.zeros_like(logits, dtype=torch.bool)
        seen[0, ids] = True
        ids.append(int(choose(processed(logits, seen, sampling, net.config.n_tokens), sampling, draws)))
    return ids[len(prompt) :]


@pytest.mark.parametrize("drawn", [False, True])
def test_a_batch_says_what_each_says_alone(drawn, monkeypatch):
    net = network()
    options = {"max_new_tokens": 9, "do_sample": drawn, "seed": 4, "temperature": 1.5, "repetition_penalty": 1.3}
    eos = int(generate(net, PROMPTS, Sampling(**options)).rows[0].ids[3])
    sampling = Sampling(**options, eos=(eos,))
    together = generate(net, PROMPTS, sampling)
    monkeypatch.setattr(reading, "PIECE", 3)
    monkeypatch.setattr(reading, "LEAST", 2)
    pieces = generate(net, PROMPTS, sampling)
    assert {row.reason for row in together.rows} == {"eos", "length"}
    for n, (row, other, prompt) in enumerate(zip(together.rows, pieces.rows, PROMPTS)):
        again = slow(net, prompt, len(row.ids), sampling, 4 if drawn else None, n)
        assert row.ids.tolist() == other.ids.tolist() == again
        assert (row.ids[-1] == eos) == (row.reason == "eos")
        assert max(again) < 12
        whole = torch.tensor([prompt + again])
        past, out = together.past.take([n]), net(whole[:, :-1])
        assert past.tail[0].tolist() == again[-1:]
        assert_close(past.logits, out[0][:, -1])
        with torch.no_grad():
            assert_close(net.step(past.tail[0], past.state)[0], net(whole)[0][:, -1])
        assert (int(past.read), int(past.written)) == (len(prompt) + len(again) - 1, len(again))
    assert together.rate.read == sum(map(len, PROMPTS))
    assert together.rate.written == sum(len(row.ids) for row in together.rows)


@pytest.mark.parametrize("drawn", [False, True])
def test_going_on_is_one_longer_run(drawn, tmp_path):
    net = network()
    options = {"do_sample": drawn, "seed": 2, "repetition_penalty": 1.2}
    want = generate(net, PROMPTS, Sampling(max_new_tokens=10, **options))
    past = generate(net, PROMPTS, Sampling(max_new_tokens=4, **options)).past
    (tmp_path / "state").symlink_to(tmp_path / "kept")
    past.save(tmp_path / "state", net)
    assert (tmp_path / "state").is_symlink()
    for place in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(BadInput, match="cannot be written"):
            past.save(place, net)
    loaded = Past.load(tmp_path / "state", net)
    for a, b in zip(leaves(past.tree(net)), leaves(loaded.tree(net)), strict=True):
        assert torch.equal(a, b)
    for before in (past, loaded, past):
        more = generate(net, None, Sampling(max_new_tokens=6, **options), past=before)
        assert [row.ids.tolist() for row in more.rows] == [row.ids.tolist()[4:] for row in want.rows]
        assert more.rate.read == 4  # the last token of each, and nothing of the past
    first = Past.start(net, 4).followed([torch.tensor(prompt[:1]) for prompt in PROMPTS])
    rest = [prompt[1:] for prompt in PROMPTS]
    split = generate(net, rest, Sampling(max_new_tokens=10, **options), past=reading.read(net, first, net))
    assert [row.ids.tolist() for row in split.rows] == [row.ids.tolist() for row in want.rows]
    with pytest.raises(BadInput, match="another model"):
        Past.load(tmp_path / "state", network(eps=1e-3))
    with pytest.raises(BadInput, match="another model"):
        Past.load(tmp_path / "state", retrained(net))
    whole = load_file(tmp_path / "state")
    for name, value in whole.items():
        for broken in (value[:1], value[..., None], value[None]):
            save_file(whole | {name: broken.contiguous()}, tmp_path / "broken")
            with pytest.raises(BadInput, match=r"do not fit together|another model"):
                Past.load(tmp_path / "broken", net)
    (tmp_path / "state").write_bytes(b"no")
    with pytest.raises(BadInput, match="not a readable state"):
        Past.load(tmp_path / "state", net)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_texts_are_those_of_transformers(kind, theirs):
    torch.manual_seed(3)
    model, net = theirs(kind)
    ids = torch.tensor([[0, 0, 0, 5, 9], [4, 3, 8, 7, 6], [0, 13, 12, 5, 3]])
    mask = (ids != 0).long()
    options = {"max_new_tokens": 12, "do_sample": False, "repetition_penalty": 1.3}
    want = model.generate(ids, attention_mask=mask, **options)[:, 5:]
    sampling = Sampling.from_generation_config(model.generation_config.to_dict(), **options)
    assert sampling.eos == (2,)
    got = generate(net, prompts_of(ids, mask), sampling)
    for row, other in zip(got.rows, want):
        assert row.ids.tolist() == other[: len(row.ids)].tolist()
        assert not other[len(row.ids) :].any()
    assert len({tuple(row.ids.tolist()) for row in got.rows}) == 3


def cut_short(tokens, codec, stop):
    """The text of tokens, as far as it has to be kept, by looking at all of it after each token."""
    for n in range(1, len(tokens) + 1):
        text = codec.stream().push(tokens[:n])
        found = [text.find(s) for s in stop if s in text]
        if found:
            return text[: min(found)], "stop"
    return plain(codec, tokens), "length"


@pytest.mark.parametrize("codec", [Bytes(), Pairs()], ids=["bytes", "pairs"])
def test_a_stop_string_leaves_the_state_of_what_was_kept(codec, monkeypatch):
    """Also where a token stands across its beginning, where several are begun, and where characters are several tokens."""
    vocab_size = 256 if type(codec) is Bytes else 65792
    net = network("mamba attention(n_heads=2)", vocab_size, vocab_size)
    tokens = codec.encode("aé→Xyé→ab→é" * 2)
    for stop in (["Xy"], ["→"], ["yé"], ["→Z", "→ab"], ["é→ab→éa"], ["aé"], ["zz"], ["b→éaé→X", "→é"]):
        for cap in (len(tokens), 9):
            said = iter(tokens)
            monkeypatch.setattr(generating, "choose", lambda *_: torch.tensor([next(said)]))  # noqa: B023
            writer = Writer(net, [7], Sampling(max_new_tokens=cap, stop=tuple(stop)), tokenizer=codec)
            pieces = list(writer)
            (row,), past = writer.result().rows, writer.result().past
            assert (row.text, row.reason) == cut_short(tokens[:cap], codec, stop), stop
            assert "".join(piece.text for piece in pieces) == row.text
            assert [token for piece in pieces for token in piece.ids] == row.ids.tolist()
            assert plain(codec, row.ids.tolist()) == row.text
            ids = torch.tensor([[7, *row.ids.tolist()]])
            read = int(past.read)
            assert past.tail[0].tolist() == ids[0, read:].tolist()
            assert len(past.tail[0]) <= (row.reason == "length") + 2 * (type(codec) is Pairs)
            assert_close(past.logits, net(ids[:, :read])[0][:, -1])
            assert past.seen[0].nonzero()[:, 0].tolist() == sorted(set(ids[0].tolist()))


def test_a_character_in_pieces_may_be_the_stop(monkeypatch):
    """Its first byte is in one token with the last byte of the character before, which is in pieces too."""

    class Pieces(Bytes):
        def stream(self):
            inner = super().stream()
            push = inner.push
            inner.push = lambda ids: push([b for i in ids for b in ([0x80, 0xF0] if i == 257 else [i])])
            return inner

    net, codec = network("mamba", 258, 258), Pieces()
    said = iter([97, 0xF0, 0x9F, 0x98, 257, 0x9F, 0x98, 0x81])
    monkeypatch.setattr(generating, "choose", lambda *_: torch.tensor([next(said)]))
    got = generate(net, [7], Sampling(stop=("\U0001f601",)), tokenizer=codec)
    assert got.rows[0].text == "a\U0001f600"
    assert got.rows[0].ids.tolist() == [97, 0xF0, 0x9F, 0x98, 0x80]
    assert got.past.tail[0].tolist() == [0xF0, 0x9F, 0x98, 0x80]
    assert_close(got.past.logits, net(torch.tensor([[7, 97]]))[0][:, -1])


def test_what_is_written_can_be_left_at_any_time():
    net = network("mamba", 256, 256)
    want = generate(net, [[65], [66, 67]], Sampling(max_new_tokens=8)).rows
    writer = Writer(net, [[65], [66, 67]], Sampling(max_new_tokens=8), tokenizer=Bytes())
    pieces = iter(writer)
    for _ in range(7):
        next(pieces)
    first = writer.result()
    assert {row.reason for row in first.rows} == {"interrupted"}
    more = generate(net, None, Sampling(max_new_tokens=4), past=first.past)
    for whole, a, b in zip(want, first.rows, more.rows):
        assert [*a.ids.tolist(), *b.ids.tolist()] == whole.ids.tolist()


def test_samples_of_one_prompt_read_it_once():
    net = network()
    reads, inner = [], net.read
    net.read = lambda ids, *args, **options: reads.append(tuple(ids.shape)) or inner(ids, *args, **options)
    sampling = Sampling(max_new_tokens=5, do_sample=True, seed=8)
    got = generate(net, PROMPTS[:1], sampling, samples=3)
    del net.read
    assert reads == [(1, 3)]
    assert got.rate.read == 3
    assert len(got.past) == 3
    for n, row in enumerate(got.rows):
        assert row.ids.tolist() == slow(net, PROMPTS[0], 5, sampling, 8, n)
    assert len({tuple(row.ids.tolist()) for row in got.rows}) == 3
    torch.manual_seed(5)
    some = [generate(net, [1], Sampling(max_new_tokens=8, do_sample=True)).rows[0].ids for _ in range(2)]
    torch.manual_seed(5)
    again = [generate(net, [1], Sampling(max_new_tokens=8, do_sample=True)).rows[0].ids for _ in range(2)]
    assert torch.equal(some[0], again[0])
    assert not torch.equal(some[0], some[1])


@pytest.mark.parametrize("form", ["int8", "bfloat16", "plain"])
@pytest.mark.parametrize("tied", [True, False])
def test_narrow_weights_write_too(form, tied):
    torch.set_default_dtype(torch.float32)
    net = network("mamba mamba2(d_head=4)", tied=tied)
    net = net.bfloat16() if form == "plain" else narrowed(net, form)
    prompt = PROMPTS[2]
    got = generate(net, [prompt], Sampling(max_new_tokens=6))
    want, said = net(torch.tensor([prompt])), []
    for _ in range(6):
        logits, state = want[0].reshape(1, -1, 14)[:, -1], want[1]
        said.append(int(logits[0, :12].argmax()))
        with torch.no_grad():
            want = net.step(torch.tensor(said[-1:]), state)
    assert got.rows[0].ids.tolist() == said
    assert_close(got.past.logits, logits, rtol=1e-4, atol=1e-4)
    assert np.isfinite(next(score(net, prompt, past=got.past)).loglik).all()
    assert beam_search(net, [prompt], Sampling(max_new_tokens=6, num_beams=2)).rows[0].score < 0


def test_dropout_is_off_while_it_writes_and_back_afterwards():
    net = network("mamba*2", dropout=0.5).train()
    net.stack.parts[1].eval()
    one, two = (generate(net, [1, 2], Sampling(max_new_tokens=12)).rows[0].ids for _ in range(2))
    assert torch.equal(one, two)
    assert one.tolist() == slow(network("mamba*2"), [1, 2], 12)
    assert [net.training, net.stack.parts[0].training, net.stack.parts[1].training] == [True, True, False]


def test_a_writer_of_beams_gives_them_at_the_end():
    net = network("mamba")
    writer = Writer(net, [[1], [2]], Sampling(max_new_tokens=3, num_beams=3), samples=2, tokenizer=Bytes())
    found = beam_search(net, [[1], [2]], Sampling(max_new_tokens=3, num_beams=3), n_best=2, tokenizer=Bytes())
    assert [(p.row, p.ids, p.text) for p in writer] == [
        (n, tuple(row.ids.tolist()), row.text) for n, row in enumerate(found.rows)
    ]
    assert [row.score for row in writer.result().rows] == [row.score for row in found.rows]


def test_what_it_refuses():
    net, some = network("mamba"), Sampling(max_new_tokens=1)
    for match, prompts, options in (
        ("prompt 2 is empty; give at least one token, or a state", [[1], []], {}),
        ("prompt 1 is empty", [], {}),
        ("prompt 2, token 1: 14 is not among the 14 of the network", [[1], [2, 14]], {}),
        ("prompt 1, token 0: -1 is not", torch.tensor([-1]), {}),
        ("prompt 1, token 0: 14 is not", [[]], {"bos": 14}),
        ("prompt 1: expected tokens", [[0.5]], {}),
        ("there are 2 prompts for 1 states", [[1], [2]], {"past": Past.start(net, 1)}),
        ("samples must be", [1], {"samples": 0}),
    ):
        with pytest.raises(BadInput, match=match):
            generate(net, prompts, some, **options)
    with pytest.raises(BadInput, match="stop strings need a tokenizer"):
        generate(net, [1], Sampling(stop=("x",)))
    with pytest.raises(BadInput, match="2 beams give from 1 to 2 texts, not 3"):
        beam_search(net, [1], Sampling(num_beams=2), n_best=3)
    empty = generate(net, [[], [4]], some, bos=3)
    assert empty.rows[0].ids.tolist() == slow(net, [3], 1)
    with pytest.raises(BadInput, match="holes"):
        prompts_of(torch.ones(1, 3, dtype=torch.int64), torch.tensor([[1, 0, 1]]))
