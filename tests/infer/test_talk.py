"""A talk: what the template says, one state, nothing read twice, back and forth, to disk and back."""

import codecs
import json
import re
from datetime import datetime

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers.utils.chat_template_utils import render_jinja_template

from conca.infer import generating
from conca.infer.chat_template import ChatTemplate
from conca.infer.past import Past
from conca.infer.sampling import Sampling
from conca.infer.talk import Talk
from conca.layers import states
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim + '\n\n' %}
{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
{{ '[INST] ' + (system if loop.first else '') + message['content'] | trim + ' [/INST]' }}
    {%- else %}
{% generation %}{{ ' ' + message['content'] | trim + eos_token }}{% endgeneration %}
    {%- endif %}
{% endfor %}"""
THINKING = """{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- set text = m.content -%}
{%- if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text -%}
{%- set text = text.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}
<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""
DATED = """{%- if tools %}{{ tools | tojson }}{% endif -%}
Today is {{ strftime_now('%d %B %Y') }} {{ {'a': "<'é'>"} | tojson }} {{ {'b': 1, 'a': [1]} | tojson(indent=2) }}
{% for message in messages if message.role != 'system' %}
  {% if loop.index > 3 %}{% break %}{% endif %}
{{ message.role | upper }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
NOT_READ = torch.tensor([float("nan")])
SPECIAL = {"<|im_end|>": 256, "<|im_start|>": 257, "<s>": 258}


class Chat:
    """Bytes, and three special tokens."""

    bos, eos, pad = 258, 256, None

    def encode(self, text):
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
            ids += [SPECIAL[part]] if part in SPECIAL else list(part.encode())
        return ids

    def decode(self, ids, *, special=False):
        names = {word: name.encode() for name, word in SPECIAL.items()}
        return b"".join(bytes([i]) if i < 256 else names[i] * special for i in ids).decode(errors="replace")

    def stream(self):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        class Stream:
            def push(self, ids):
                return decoder.decode(bytes(i for i in ids if i < 256))

            def flush(self):
                return decoder.decode(b"", True)

        return Stream()


@pytest.fixture
def net():
    torch.manual_seed(1)
    return LanguageNetwork(LanguageConfig(259, 259, "mamba attention(n_heads=2)", 8, std=1.0)).eval()


@pytest.fixture
def reads(net, monkeypatch):
    """The tokens that the network has read, all ways together."""
    found, read, make = [], net.read, generating.stepping

    def reading(ids, *args, **options):
        found.extend(ids[0].tolist())
        return read(ids, *args, **options)

    class Steps:
        def __init__(self, inner):
            self.inner = inner

        def step(self, ids, state):
            found.extend(ids.tolist())
            return self.inner.step(ids, state)

    net.read = reading
    monkeypatch.setattr(generating, "stepping", lambda network: Steps(make(network)))
    return found


def says(monkeypatch, *answers):
    """The network's next answers."""
    queue = [token for answer in answers for token in Chat().encode(answer)]
    monkeypatch.setattr(generating, "choose", lambda *_: torch.tensor([queue.pop(0)]))


def talk_with(net, template=CHATML, **options):
    return Talk(net, Chat(), template, Sampling(max_new_tokens=60, eos=(256,)), **options)


def answer(talk, text):
    return "".join(piece.text for piece in talk.reply(text))


def holds(talk, net):
    """The state is that of all tokens of the talk."""
    read = getattr(net.read, "__wrapped__", None) or LanguageNetwork.read.__get__(net)
    with torch.no_grad():
        h, _ = read(torch.tensor([talk.ids]))
        past = talk.past
        state = read(torch.tensor([talk.ids[: int(past.read)]]))[1]
        assert talk.ids[int(past.read) :] == past.tail[0].tolist()
        logits, _ = net.step(torch.tensor([7]), past.state)
        assert_close(logits, net.step(torch.tensor([7]), state)[0])
        assert_close(past.logits, net.logits(h[:, int(past.read) - 1]))


MESSAGES = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Hi <b> 'é'"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\nHello  "},
    {"role": "user", "content": " More\n"},
]


@pytest.mark.parametrize("template", [CHATML, STRICT, THINKING, DATED])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("prompted", [False, True])
def test_templates_say_what_they_say_in_transformers(template, first, prompted):
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    got = ChatTemplate(template, variables).render(MESSAGES[first:], add_generation_prompt=prompted)
    want = render_jinja_template(
        [MESSAGES[first:]], chat_template=template, add_generation_prompt=prompted, **variables
    )
    assert got == want[0][0]
    assert len(got) > 40


def test_what_templates_must_not_do():
    with pytest.raises(BadInput, match="refuses these messages: Conversation roles must alternate"):
        ChatTemplate(STRICT, {"bos_token": ""}).render([MESSAGES[2]])
    with pytest.raises(BadInput, match="cannot be read"):
        ChatTemplate("{% for %}")
    for bad in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages[9].role }}"):
        with pytest.raises(BadInput, match="refuses these messages"):
            ChatTemplate(bad).render(MESSAGES)


@pytest.mark.parametrize("template", [CHATML, STRICT])
def test_nothing_is_read_twice(template, net, reads, monkeypatch):
    says(monkeypatch, "Hello.<|im_end|>", " é, yes \n<|im_end|>", "No<|im_end|>")
    talk = talk_with(net, template, system="Be brief.")
    assert [answer(talk, text) for text in ("Hi", "é?", "So?")] == ["Hello.", " é, yes \n", "No"]
    assert talk.notice is None
    assert [*reads, *talk.past.tail[0].tolist()] == talk.ids
    if template == CHATML:
        assert Chat().decode(talk.ids, special=True) == talk.text
        assert talk.template.render(talk.messages) == talk.text + "\n"
    assert talk.ids.count(256) == (7 if template == CHATML else 3)
    holds(talk, net)
    assert talk.rate.written == 3


def test_back_and_forth(net, reads, monkeypatch, tmp_path):
    says(
        monkeypatch,
        "One<|im_end|>",
        "Two<|im_end|>",
        "Three<|im_end|>",
        "Four<|im_end|>",
        "Five<|im_end|>",
        "Six<|im_end|>",
    )
    talk = talk_with(net)
    assert not talk.undo()
    answer(talk, "1")
    answer(talk, "2")
    before = list(talk.ids), [dict(m) for m in talk.messages]
    talk.save(tmp_path / "talk")
    talk.save(tmp_path / "talk")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists and is not of this talk"):
        talk.save(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    answer(talk, "3")
    assert talk.undo()
    assert (talk.ids, talk.messages) == before
    holds(talk, net)
    reads.clear()
    answer(talk, "drei")
    assert reads[0] == 256  # the end of the answer before, which was written and not read
    assert [*reads, *talk.past.tail[0].tolist()] == talk.ids[len(before[0]) - 1 :]
    holds(talk, net)
    assert talk.undo() and talk.undo() and talk.undo() and not talk.undo()
    assert (talk.messages, talk.ids, talk.text, talk.past) == ([], [], "", None)

    other = talk_with(net)
    other.load(tmp_path / "talk")
    assert (other.ids, other.messages) == before
    reads.clear()
    answer(other, "5")
    assert [*reads, *other.past.tail[0].tolist()] == other.ids[len(before[0]) - 1 :]
    holds(other, net)
    assert other.notice is None
    assert other.undo() and other.undo()
    assert other.messages == before[1][:2]
    answer(other, "6")
    assert "not kept" in other.notice
    holds(other, net)
    assert [m["content"] for m in other.messages] == ["1", "One", "6", "Six"]


def test_a_template_that_writes_the_past_anew_is_followed(net, reads, monkeypatch):
    says(monkeypatch, "<think>\nhm\n</think>\nYes<|im_end|>", "No<|im_end|>")
    talk = talk_with(net, THINKING)
    answer(talk, "Really?")
    assert talk.notice is None
    kept = len(talk.places[-1].past.tail[0]) + int(talk.places[-1].past.read)
    reads.clear()
    answer(talk, "Sure?")
    assert "writes the past anew: its last 24 tokens are read again" in talk.notice
    assert Chat().decode(talk.ids, special=True) == talk.text
    assert "hm" not in talk.text
    assert [*reads, *talk.past.tail[0].tolist()] == talk.ids[kept:]
    holds(talk, net)
    assert talk.undo()
    assert [m["content"] for m in talk.messages] == ["Really?", "<think>\nhm\n</think>\nYes"]
    assert talk.undo() and not talk.messages


def test_turns_that_began_later_begin_where_the_past_still_holds(net, monkeypatch):
    says(monkeypatch, "a<|im_end|>", "b<|im_end|>", "c<|im_end|>", "d<|im_end|>")
    talk = talk_with(net, "{% if messages|length > 3 %}A long talk.{% endif %}" + CHATML)
    for text in "123":
        answer(talk, text)
    assert "anew" in talk.notice
    assert talk.text.startswith("A long")
    assert talk.undo() and talk.undo()
    assert [m["content"] for m in talk.messages] == ["1", "a"]
    assert Chat().decode(talk.ids, special=True) == talk.text
    answer(talk, "4")
    assert Chat().decode(talk.ids, special=True) == talk.text
    holds(talk, net)


def test_the_end_of_an_answer_that_the_template_does_not_say_is_forgotten(net, reads, monkeypatch):
    says(monkeypatch, " Yes<|im_end|>", "No<|im_end|>")
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    talk = talk_with(net, template)
    for text in ("1", "2"):
        answer(talk, text)
        assert 256 not in talk.ids
        assert not talk.past.seen[0, 256]
        assert talk.text + "\n" == talk.template.render(talk.messages)
        holds(talk, net)
    assert [*reads, *talk.past.tail[0].tolist()] == talk.ids
    assert talk.rate.written == 3


def test_an_answer_that_is_broken_off_is_kept_as_far_as_it_came(net, monkeypatch):
    says(monkeypatch, "A long answer<|im_end|>", "B<|im_end|>", "C")
    talk = talk_with(net)
    pieces = talk.reply("Go on")
    said = "".join(next(pieces).text for _ in range(6))
    pieces.close()
    assert talk.messages[-1] == {"role": "assistant", "content": said}
    holds(talk, net)
    says(monkeypatch, "B<|im_end|>", "C")
    answer(talk, "And?")
    assert talk.template.render(talk.messages) == talk.text + "\n"
    assert Chat().decode(talk.ids, special=True) == talk.text
    talk.reply("never read")
    pieces = talk.reply("Last?")
    assert next(pieces).text == "C"
    assert len(talk.messages) == 4
    talk.settle()
    assert [m["content"] for m in talk.messages[-2:]] == ["Last?", "C"]
    with pytest.raises(BadInput, match="must alternate"):
        talk_with(net, STRICT, system="x").template.render([{"role": "assistant", "content": ""}])


def test_files_that_are_no_talk(net, tmp_path):
    talk = talk_with(net)
    talk.save(tmp_path / "empty")
    talk.load(tmp_path / "empty")
    assert (talk.messages, talk.past) == ([], None)
    with pytest.raises(BadInput, match="not a readable state"):
        talk.load(tmp_path / "missing")
    other = LanguageNetwork(LanguageConfig(259, 259, "mamba attention(n_heads=2)", 8, std=0.5))
    with pytest.raises(BadInput, match="another model"):
        talk_with(other).load(tmp_path / "empty")


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": "Hi"}, {"messages": ["Hi"]}, {"messages": [{"role": "user"}]}, {"messages": [{"role": 1, "content": ""}]},
        {"text": None}, {"text": ["Hi"]}, {"ids": 5}, {"ids": ["5"]}, {"ids": [259]}, {"ids": [-1]}, {"ids": [True]}, {"ids": []},
        {"turns": [9]}, {"turns": [None]}, {"turns": {}}, {"now": 5}, {"now": "yesterday"}, {"ids": None}, None, [], "[" * 10**5,
        b"\xff", torch.tensor([300]), torch.tensor([0.5]), torch.tensor([[1, 2]]), NOT_READ, "last",
    ],
    ids=lambda changes: repr(changes)[:30],
)  # fmt: skip
def test_a_talk_that_is_damaged_is_one_line_and_changes_nothing(net, tmp_path, monkeypatch, changes):
    says(monkeypatch, "One<|im_end|>", "Two<|im_end|>")
    talk = talk_with(net)
    answer(talk, "1")
    talk.save(tmp_path / "talk")
    parts = load_file(tmp_path / "talk")
    known = json.loads(bytes(parts["1"].tolist()))
    if changes == "last":
        changes = {"ids": [*known["ids"][:-1], 7]}
    if isinstance(changes, dict):
        changes = json.dumps(known | changes)
    elif changes is None or isinstance(changes, list):
        changes = json.dumps(changes)
    data = changes.encode() if isinstance(changes, str) else changes
    parts["1" if data is not NOT_READ else "0.5"] = (
        data if isinstance(data, torch.Tensor) else torch.tensor(list(data), dtype=torch.uint8)
    )
    save_file(parts, tmp_path / "damaged")
    before = talk.text, [*talk.messages], [*talk.ids]
    with pytest.raises(BadInput, match="/damaged: is no talk") as error:
        talk.load(tmp_path / "damaged")
    assert "\n" not in str(error.value)
    assert (talk.text, talk.messages, talk.ids) == before
    answer(talk, "2")
    holds(talk, net)


def test_the_state_of_a_text_is_no_talk(net, tmp_path):
    past = Past.start(net, 2)
    past.save(tmp_path / "text", net)
    page = torch.tensor(
        list(json.dumps({"messages": [], "text": "", "ids": [], "turns": [], "now": "2020-01-01"}).encode())
    )
    states.save((past.tree(net), page), tmp_path / "two")
    for name in ("text", "two"):
        with pytest.raises(BadInput, match=f"/{name}: "):
            talk_with(net).load(tmp_path / name)


def test_states_of_long_talks_are_forgotten_from_their_beginning(net, monkeypatch):
    monkeypatch.setattr("conca.infer.talk.MOST", 3)
    says(monkeypatch, *["a<|im_end|>"] * 9)
    talk = talk_with(net)
    for n in range(4):
        answer(talk, str(n))
    assert sum(place.past is not None for place in talk.places) == 3
    assert talk.undo() and talk.undo() and talk.undo()
    assert [m["content"] for m in talk.messages] == ["0", "a"]
    answer(talk, "x")
    assert "not kept" in talk.notice
    holds(talk, net)


def test_the_date_of_a_talk_stays(net, tmp_path, monkeypatch):
    says(monkeypatch, "a<|im_end|>")
    talk = talk_with(net, DATED)
    talk.template.now = datetime(2020, 2, 3)
    answer(talk, "x")
    talk.save(tmp_path / "talk")
    other = talk_with(net, DATED)
    other.load(tmp_path / "talk")
    assert "03 February 2020" in other.template.render([])
