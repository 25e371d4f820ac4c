"""What stands side by side in the benchmarks of Mamba: conca's model, those of its peers, and the matrix products alone.

A peer is optional: what is not installed is reported as not there. transformers comes with `conca[dev]`; mambapy, one folder of
Python, is fetched if it is not installed; llama-cpp-python and gguf have to be installed by hand.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from packages import CACHE, fetched
from torch import Tensor, nn

from conca.layers import families
from conca.layers.norm import RMSNorm
from conca.layers.tied_embedding import TiedEmbedding
from conca.models.stack import pattern

WIDTH, VOCAB = 768, 50280
INNER, STATE, RANK, WINDOW = 2 * WIDTH, 16, WIDTH // 16, 4
STATE2, HEADS2, CHUNK = 128, INNER // 64, 64
Task = Callable[[], object]


class Language(nn.Module):
    """Tokens, layers, a norm, tokens."""

    def __init__(self, layers: str) -> None:
        super().__init__()
        self.embedding, self.stack, self.norm = (
            TiedEmbedding(VOCAB, WIDTH),
            pattern(layers, WIDTH),
            RMSNorm(WIDTH, eps=1e-5),
        )
        for part in self.stack.parts:
            part.norm.eps = 1e-5

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T)."""
        return self.embedding.logits(self.norm(self.stack(self.embedding(ids))[0]))

    def loss(self, ids: Tensor, target: Tensor) -> Tensor:
        return self.embedding.loss(self.norm(self.stack(self.embedding(ids))[0]), target)


def language(family: str, layers: int) -> Language:
    """Ours: Mamba of state 16, Mamba-2 and Mamba-3 of state 128 and heads of 64, which are the defaults."""
    torch.manual_seed(0)
    return Language(f"{family}*{layers}")


def there(*names: str) -> bool:
    """Whether these packages are installed; one that is not is named on the screen."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not there: {', '.join(missing)}", file=sys.stderr)
    return not missing


def transformers_mamba(layers: int, like: Language | None = None) -> nn.Module | None:
    """Mamba by transformers, with the weights of ours if `like` is given."""
    if not there("transformers"):
        return None
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, state_size=STATE, num_hidden_layers=layers, time_step_rank=RANK
    )
    model = _made(MambaForCausalLM, config)
    if like is not None:
        _copy(like, model)
    return model


def transformers_mamba2(layers: int, like: Language | None = None) -> nn.Module | None:
    """Mamba-2 by transformers, with the weights of ours if `like` is given."""
    if not there("transformers"):
        return None
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=VOCAB, hidden_size=WIDTH, state_size=STATE2, num_hidden_layers=layers, num_heads=HEADS2,
        head_dim=64, n_groups=1, tie_word_embeddings=True, rms_norm=True,
    )  # fmt: skip
    model = _made(Mamba2ForCausalLM, config)
    if like is not None:
        _copy(like, model)
    return model


def _made(cls: Any, config: Any) -> nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()  # it says that its fast kernels are not there, which is why it is here
    torch.manual_seed(0)
    model: nn.Module = cls(config)
    return model


@torch.no_grad()
def _copy(ours: Language, theirs: Any) -> None:
    """The weights of ours into a model of transformers; the convolution's columns run the other way."""
    theirs.backbone.embeddings.weight.copy_(ours.embedding.weight)
    theirs.tie_weights()
    theirs.backbone.norm_f.weight.copy_(ours.norm.weight)
    for part, layer in zip(ours.stack.parts, theirs.backbone.layers):
        layer.norm.weight.copy_(part.norm.weight)
        mine, other = dict(part.inner.named_parameters()), dict(layer.mixer.named_parameters())
        for name, parameter in mine.items():
            if name == "conv.weight":
                other["conv1d.weight"].copy_(parameter.flip(1)[:, None])
            elif name == "dt_bias" and "dt_proj.bias" in other:
                other["dt_proj.bias"].copy_(parameter)
            else:
                other[name.replace("conv.", "conv1d.")].copy_(parameter)


def mambapy(layers: int) -> nn.Module | None:
    """Mamba by mambapy, parallel scan, no head."""
    if importlib.util.find_spec("mambapy") is None:
        try:
            sys.path.append(str(fetched("mambapy==1.2.0", CACHE)))
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"not there: mambapy ({error})", file=sys.stderr)
            return None
    from mambapy.mamba import Mamba, MambaConfig

    torch.manual_seed(0)
    model: nn.Module = Mamba(MambaConfig(d_model=WIDTH, n_layers=layers))
    return model


def products(family: str, layers: int, T: int, *, head: bool, backward: bool, rows: int | None = None) -> Task:
    """The products of the linear maps of a pass over T tokens, the outputs already there; the head sees `rows` of them, or all.

    Every layer has weights of its own, as in a model: they do not all fit into the caches.
    """
    calls: list[Task] = []
    maps = [m.weight.shape for m in families()[family](WIDTH).modules() if isinstance(m, nn.Linear)]
    shapes = [(T, o, i) for o, i in maps] * layers + ([(rows or T, VOCAB, WIDTH)] if head else [])
    for tokens, outputs, inputs in shapes:
        x, w, y = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
        dx, dw = torch.empty(tokens, inputs), torch.empty(outputs, inputs)
        one: list[Task] = [lambda x=x, w=w, y=y: torch.mm(x, w.T, out=y)]
        if backward:
            one += [lambda y=y, w=w, dx=dx: torch.mm(y, w, out=dx), lambda y=y, x=x, dw=dw: torch.mm(y.T, x, out=dw)]
        calls += one

    def run() -> None:
        for call in calls:
            call()

    return run


def chunks(family: str, layers: int, T: int, *, backward: bool) -> Task | None:
    """What the memories of Mamba-2 and Mamba-3 multiply besides: chunks of 64 steps as batches; none for Mamba, whose scan has no products.

    Queries and keys of Mamba-2 are one for all heads, so scores are too. The backward pass has two products for each of the forward.
    """
    if family == "mamba":
        return None
    J, H, L, K, V = T // CHUNK, HEADS2, CHUNK, STATE2, 64
    scores = J * (H if family == "mamba3" else 1)
    sizes = (scores, L, K, L), (J * H, L, L, V), (J * H, L, K, V), (J * H, K, L, V)
    calls: list[Task] = []
    for batch, i, k, j in sizes:
        a, b, c = torch.randn(batch, i, k), torch.randn(batch, k, j), torch.randn(batch, i, j)
        da, db = torch.empty(batch, i, k), torch.empty(batch, k, j)
        one: list[Task] = [lambda a=a, b=b, c=c: torch.bmm(a, b, out=c)]
        if backward:
            one += [
                lambda c=c, b=b, da=da: torch.bmm(c, b.mT, out=da),
                lambda a=a, c=c, db=db: torch.bmm(a.mT, c, out=db),
            ]
        calls += one * layers

    def run() -> None:
        for call in calls:
            call()

    return run


def rate() -> float:
    """GFLOP/s of a product of matrices of 1,536."""
    a, b, c = torch.randn(1536, 1536), torch.randn(1536, 1536), torch.empty(1536, 1536)
    seconds = turns({"": lambda: torch.mm(a, b, out=c)}, 9)[""]
    return 2 * 1536**3 / seconds / 1e9


def turns(tasks: dict[str, Task | None], rounds: int, patience: float = 15.0) -> dict[str, float]:
    """Median seconds of each task, taking turns after one round that does not count; a task slower than `patience` runs once.

    Another one begins in each round: who comes after a pause may find pages gone that others left behind.
    """
    times: dict[str, list[float]] = {}
    slow: dict[str, float] = {}
    order = list(tasks.items())
    for turn in range(rounds + 1):
        first = turn % len(order)
        for name, task in order[first:] + order[:first]:
            if task is None or name in slow:
                continue
            begin = time.perf_counter()
            task()
            seconds = time.perf_counter() - begin
            if turn:
                times.setdefault(name, []).append(seconds)
            elif seconds > patience:
                slow[name] = seconds
    return {name: median(found) for name, found in times.items()} | slow


def seconds(value: float | None) -> str:
    """For a cell."""
    return "" if value is None else f"{value:.0f} s" if value >= 10 else f"{value:.2f} s"


def times(value: float | None, base: float | None) -> str:
    """value / base, for a cell."""
    return "" if value is None or base is None else f"{value / base:.2f}"
