"""A published Mamba, rebuilt: which bytes of a text are Python, which are SQL, which are prose?

    pip install --no-deps --target tagger typeseg==0.2.7
    python examples/byte_tagger.py tagger/typeseg [TEXT_FILE]

The package typeseg (Apache-2.0) carries six trained layers of Mamba, 1.4 million numbers, which give each byte one of
35 labels. We take its numbers, leave its code alone, and put the network together from the parts of conca.
"""

import importlib.util
import json
import re
import sys
from collections import OrderedDict
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conca.layers.short_conv import ShortConv
from conca.ops.selective_scan import selective_scan

TEXT = b"""Water that flows into a basin stays there for a while. What came first drains first, and after a day nobody can \
tell where it came from.

SELECT word, COUNT(*) FROM words WHERE length > 3 GROUP BY word ORDER BY 2 DESC;

<ul class="words"><li><a href="/the">the</a></li><li><a href="/of">of</a></li></ul>

def count(path):
    return collections.Counter(word for line in open(path) for word in line.split())
"""
TOKENS = bytes(byte if 32 <= byte < 127 or byte in b"\t\n\r" else 128 for byte in range(256))  # 128: not printable
NAMES = {
    "__": ".", r"^\w*Block1D_(\d+)": r"layers.\1", r"(layers.*)Dense_0": r"\1in_proj", "Dense_0": "head", "Dense_1": "x_proj",
    "Dense_2": "dt_proj", "Dense_3": "out_proj", "LayerNorm_0": "norm", "Conv_0": "conv", "Embed_0": "bytes",
    "kernel|scale|embedding": "weight",
}  # fmt: skip


class Layer(nn.Module):
    """Mamba that looks both ways. A tagger may know the future, so one memory reads the text from either end."""

    def __init__(self, D: int, N: int, R: int) -> None:
        super().__init__()
        self.norm, self.in_proj, self.conv = nn.LayerNorm(D, eps=1e-6), nn.Linear(D, 2 * D), ShortConv(D, d_conv=4)
        self.x_proj, self.dt_proj, self.out_proj = nn.Linear(D, R + 2 * N), nn.Linear(R, D), nn.Linear(D, D)
        self.A_log, self.D = nn.Parameter(torch.zeros(D, N)), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        # A byte sees one neighbour to its left and two to its right; our convolution sees three to the left. So let the
        # text go on for two silent steps, and take what the convolution says two steps late.
        u = self.conv(F.pad(u, (0, 0, 0, 2)))[0][:, 2:]
        # Each byte says itself how long its step lasts, what to write (B), and what to look for (C).
        dt, B, C = self.x_proj(u).split([self.dt_proj.in_features] + 2 * [self.A_log.shape[1]], -1)
        told = u, F.softplus(self.dt_proj(dt)) + 1e-4, B, C, gate
        ahead, back = self.memory(*told), self.memory(*(part.flip(1) for part in told))
        return x + self.out_proj(ahead + back.flip(1))

    def memory(self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, gate: Tensor) -> Tensor:
        empty = u.new_zeros(len(u), *self.A_log.shape)
        return selective_scan(u, dt, -self.A_log.exp(), B, C, empty, D_E=self.D, z_BTE=gate)[0]


def tagger(arrays: dict[str, np.ndarray]) -> nn.Module:
    """Tokens (batch, time) to scores (batch, time, labels). Sizes are those of the arrays; names change one by one."""
    ours = {}
    for name, array in arrays.items():
        # Flax keeps a map as (in, out), and a window from left to right; we (out, in), and what comes last first.
        array = array[::-1, 0] if array.ndim == 3 else array
        ours[name] = torch.tensor(np.array(array.T if name.endswith("kernel") else array))
    for theirs, mine in NAMES.items():
        ours = {re.sub(theirs, mine, name): tensor for name, tensor in ours.items()}
    (D, N), R = ours["layers.0.A_log"].shape, ours["layers.0.dt_proj.weight"].shape[1]
    tokens, head = nn.Embedding(*ours["bytes.weight"].shape), nn.Linear(D, len(ours["head.bias"]))
    layers, norm = (Layer(D, N, R) for name in ours if "A_log" in name), nn.LayerNorm(D, eps=1e-6)
    model = nn.Sequential(OrderedDict(bytes=tokens, layers=nn.Sequential(*layers), norm=norm, head=head))
    model.load_state_dict(ours)  # which is strict: nothing is missing or left over, and all shapes fit
    return model


if __name__ == "__main__":
    spec = importlib.util.find_spec("typeseg")  # which looks for the package, and does not import it
    folder = Path(sys.argv[1] if sys.argv[1:] else spec.submodule_search_locations[0] if spec else "typeseg") / "data"
    if not (folder / "mamba_al.npz").is_file():
        raise SystemExit(f"no weights in {folder}: pip install --no-deps typeseg==0.2.7, or say where that package is")
    text = Path(sys.argv[2]).read_bytes() if sys.argv[2:] else TEXT
    with np.load(folder / "mamba_al.npz") as arrays, torch.inference_mode():
        scores = tagger(dict(arrays))(torch.tensor([[*text.translate(TOKENS)]], dtype=torch.long)).log_softmax(-1)
    # Where one label fades into the next, a byte alone is undecided: nine neighbours vote.
    votes = F.avg_pool1d(F.pad(scores.mT, (4, 4)), 9, stride=1)[0].argmax(0).tolist()
    labels, end = json.loads((folder / "manifest.json").read_text())["labels"], 0
    for label, span in groupby(votes):
        begin, end = end, end + len([*span])
        print(f"{begin:7} {end:7}  {labels[label]:22}{text[begin:end].decode(errors='replace')[:60]!r}")
