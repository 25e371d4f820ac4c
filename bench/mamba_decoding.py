"""Reading a prompt and writing one token after another with a Mamba of the shape of mamba-130m, beside transformers and llama.cpp.

    python bench/mamba_decoding.py [--rounds 5] [--tokens 24]

24 layers of width 768 and 50,280 tokens; one row, random weights, the same for all. The prompt has 512 tokens, of which all want the
logits after the last. Then all write in turns. llama.cpp reads the same model from files that are written for it in F32, BF16, Q8_0
and Q4_0; with F32 its logits are compared with ours. The one-row product alone is a
matrix of as many bytes as a token has to read, weights and state.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `import conca` does where it comes before PyTorch

import mamba_gguf
import mamba_sides as sides
import torch
from mamba_gguf import Llama
from mamba_sides import VOCAB, WIDTH, Language, Task, language, products, turns
from record import record
from torch import Tensor, nn

from conca.infer.decoder import Decoder
from conca.layers.quantised import HalfLinear, Int8Linear, narrowed
from conca.layers.states import leaves
from conca.ops.one_row import one_row, quantised_rows

LAYERS, PROMPT = 24, 512
KINDS = {"F32": 4.0, "BF16": 2.0, "Q8_0": 34 / 32, "Q4_0": 18 / 32}
Writer = Callable[[int], None]


def decoder(kind: str) -> tuple[Decoder, int]:
    """Ours with weights in float32, bfloat16 or int8, and how many bytes a token reads."""
    model = language("mamba", LAYERS).eval()
    head: nn.Module = nn.Linear(WIDTH, VOCAB, bias=False)
    head.weight = model.embedding.weight
    if kind != "float32":
        narrowed(model.stack, kind)
        head = (Int8Linear if kind == "int8" else HalfLinear).from_linear(head)
    parts = [model.stack, model.norm, head]
    tensors = [t for part in parts for t in (*part.parameters(), *part.buffers())]
    tensors += leaves(model.stack.init_state(1))
    return Decoder(model.stack, embedding=model.embedding, norm=model.norm, head=head), sum(
        t.numel() * t.element_size() for t in tensors
    )


def ours(found: Decoder, state: object) -> Writer:
    """Write some tokens, from a state that the prompt left."""

    @torch.no_grad()
    def write(tokens: int) -> None:
        nonlocal state
        token = torch.zeros(1, dtype=torch.int64)
        for _ in range(tokens):
            logits, state = found.step(token, state)
            token = logits.argmax(-1)

    return write


def transformers_writer(model: nn.Module, prompt: Tensor) -> Writer:
    """The same with the model and the cache of transformers."""
    with torch.no_grad():
        cache = model(prompt, use_cache=True).cache

    @torch.no_grad()
    def write(tokens: int) -> None:
        token = torch.zeros(1, 1, dtype=torch.int64)
        for _ in range(tokens):
            token = model(token, cache=cache, use_cache=True).logits[:, -1:].argmax(-1)

    return write


def llama_writer(model: Llama) -> Writer:
    """The same with llama.cpp."""

    def write(tokens: int) -> None:
        token = 0
        for _ in range(tokens):
            token = int(model.read([token]).argmax())

    return write


def alone(size: int, kind: str) -> Task:
    """One product of the one-row kernel that reads as many bytes."""
    each = {"float32": 4, "bfloat16": 2, "int8": 1}[kind]
    w, x, scale = torch.randn(size // each // WIDTH, WIDTH), torch.randn(1, WIDTH), None
    if kind == "int8":
        w, scale = quantised_rows(w)
    elif kind == "bfloat16":
        w = w.bfloat16()
    return torch.no_grad()(lambda: one_row(x, w, None, scale))


def llamas(model: Language, prompt: list[int]) -> dict[str, Llama]:
    """llama.cpp with the model in each of its types; none where it is not installed."""
    if not sides.there("llama_cpp", "gguf"):
        return {}
    found = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            mamba_gguf.write(model, path, kind)
            found[kind] = Llama(path, torch.get_num_threads())  # the file stays mapped
        found[kind].read(prompt)
    return found


def prefill(rounds: int, model: Language, peers: dict[str, Task]) -> list[tuple[str, ...]]:
    """Rows about the prompt."""
    tokens = torch.randint(VOCAB, (1, PROMPT))

    @torch.no_grad()
    def read() -> None:
        y, _ = model.stack(model.embedding(tokens))
        model.embedding.logits(model.norm(y[:, -1]))

    bare = products("mamba", LAYERS, PROMPT, head=True, backward=False, rows=1)
    found = turns({"conca": read, "matrix products alone": bare, **peers}, rounds)
    mine = found["conca"]
    return [(f"prompt, {name}", f"{PROMPT / s:.0f}", f"{s / mine:.2f}", "") for name, s in found.items()]


@torch.no_grad()
def agree(model: Language, peer: Llama) -> None:
    """llama.cpp reads the model that we mean."""
    tokens = torch.randint(VOCAB, (1, 16))
    peer.forget()
    got, want = torch.tensor(peer.read(tokens[0].tolist())), model(tokens)[0, -1]
    error = (got - want).abs().max() / want.abs().max()
    assert error < 1e-2, f"llama.cpp computes something else: {error:.1e}"


def writing(rounds: int, tokens: int, peers: dict[str, Writer]) -> list[tuple[str, ...]]:
    """Rows about one token after another."""
    tasks: dict[str, Task] = {}
    sizes: dict[str, int] = {}
    for kind in ("float32", "bfloat16", "int8"):
        found, sizes[kind] = decoder(kind)
        write = ours(found, found.init_state(1))
        tasks[f"conca {kind}"] = lambda write=write: write(tokens)
        one = alone(sizes[kind], kind)
        tasks[f"one-row product alone, {kind}"] = lambda one=one: [one() for _ in range(tokens)]
    tasks |= {name: lambda write=write: write(tokens) for name, write in peers.items()}
    seconds = turns(tasks, rounds)
    rows = []
    for name, s in seconds.items():
        kind = name.rpartition(" ")[2]
        limit = seconds.get(f"one-row product alone, {kind}")
        share = f"{limit / s:.2f}" if name.startswith("conca") and limit else ""
        rate = f"{sizes[kind] * tokens / s / 1e9:.1f}" if kind in sizes else ""
        rows.append((f"tokens, {name}", f"{tokens / s:.1f}", rate, share))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timings of each, taking turns")
    parser.add_argument("--tokens", type=int, default=24, help="tokens written in a turn")
    options = parser.parse_args()
    begin = time.perf_counter()
    model, prompt = language("mamba", LAYERS).eval(), torch.randint(VOCAB, (1, PROMPT))
    readers: dict[str, Task] = {}
    writers: dict[str, Writer] = {}
    other = sides.transformers_mamba(LAYERS, model)
    if other is not None:
        readers["transformers"] = torch.no_grad()(lambda: other(prompt, use_cache=True, logits_to_keep=1))
        writers["transformers"] = transformers_writer(other, prompt)
    found = llamas(model, prompt[0].tolist())
    if found:
        agree(model, found["F32"])
    for kind, llama in found.items():
        writers[f"llama.cpp {kind}"] = llama_writer(llama)

        def read(llama: Llama = llama) -> None:
            llama.forget()
            llama.read(prompt[0].tolist())

        readers[f"llama.cpp {kind}"] = read
    first = prefill(options.rounds, model, readers)
    second = writing(options.rounds, options.tokens, writers)
    names = [row[0] for row in second]
    speed = {name: float(row[1]) for name, row in zip(names, second)}
    notes = [f"{options.rounds} turns, medians. The whole page took {(time.perf_counter() - begin) / 60:.0f} minutes."]
    if found:
        pairs = ("float32", "F32"), ("bfloat16", "BF16"), ("int8", "Q8_0")
        ratios = (f"{a} / {b} {speed[f'tokens, conca {a}'] / speed[f'tokens, llama.cpp {b}']:.2f}" for a, b in pairs)
        notes.insert(0, f"Writing, conca over llama.cpp: {', '.join(ratios)}.")
    else:
        notes.insert(0, "llama-cpp-python and gguf are not installed here.")
    record(
        "mamba_reading",
        f"Mamba of 130 million parameters: a prompt of {PROMPT} tokens",
        ("work", "tokens/s", "times conca's time", ""),
        first,
    )
    header = "work", "tokens/s", "GB/s read", "of the rate of the one-row product"
    record(
        "mamba_decoding", "Mamba of 130 million parameters: one token after another", header, second, " ".join(notes)
    )


if __name__ == "__main__":
    main()
