"""Sizes of a published checkpoint, read from the shapes of its tensors and held against its config; the pattern that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conca.models.published_configs import Said
from conca.models.published_names import Prefixes
from conca.models.tensor_files import Tensors
from conca.types import BadInput, nearest

__all__ = ["OPTIONS", "Sizes", "found_prefixes"]

OPTIONS = {"mamba2": ("norm_groups",), "mamba3": ("activation", "pairing")}
"""What the checkpoints of a family do not say and whoever reads one may."""
TABLES = ("embeddings.weight", "embedding.weight")


def found_prefixes(tensors: Tensors, where: str) -> Prefixes:
    """What the names of a checkpoint begin with. Raises BadInput if there is no embedding."""
    names = tensors.names()
    known = set(names)
    tables = [(name.removesuffix(end), name) for name in names for end in TABLES if name.endswith(end)]
    backbone, table = next(
        ((prefix, name) for prefix, name in tables if f"{prefix}norm_f.weight" in known),
        tables[0] if tables else ("", ""),
    )
    if not table:
        raise BadInput(f"{where}: the tensor 'backbone.embeddings.weight' is missing; is it a language model?")
    outer = backbone.removesuffix("backbone.")
    return Prefixes(backbone, table, next((h for h in (f"{outer}lm_head.weight",) if h in known), "lm_head.weight"))


@dataclass(frozen=True)
class Sizes:
    """The shapes of a checkpoint, and what its config says.

    Args:
        tensors: of the checkpoint; only their shapes are looked at.
        said: what its config says.
        prefixes: of its names.
        options: those of `OPTIONS`.
    """

    tensors: Tensors
    said: Said
    prefixes: Prefixes
    options: Mapping[str, Any]

    def family(self) -> str:
        """The family, of the tensors where the config does not say. Raises BadInput for options that are not the family's."""
        family = self.said.family
        if family is None:
            family = "mamba" if self._has("x_proj.weight") else "mamba3" if self._has("B_bias") else "mamba2"
        known = OPTIONS.get(family, ())
        for name in self.options:
            if name not in known:
                hint = nearest(name, known) if known else "it has none"
                raise BadInput(f"{self.said.where}: {family} has no option '{name}'; {hint}")
        return family

    def rows(self) -> tuple[int, int, int]:
        """Rows of the table, tokens that exist, and the width of the model."""
        vocab_size, d_model = self._shape(self.prefixes.table, 2)
        n_tokens = self.said.vocab or vocab_size
        if n_tokens > vocab_size:
            raise BadInput(
                f"{self.said.where}: vocab_size is {n_tokens}, but '{self.prefixes.table}' has only {vocab_size} rows"
            )
        self._check("d_model", d_model, self.prefixes.table)
        return vocab_size, n_tokens, d_model

    def layers(self) -> int:
        """How many layers there are. Raises BadInput if the config says that there are more."""
        start = f"{self.prefixes.backbone}layers."
        found = {n.removeprefix(start).partition(".")[0] for n in self.tensors.names() if n.startswith(start)}
        said = self.said.layers or len(found)
        if said > len(found):
            raise BadInput(f"{self.said.where}: the tensors of {said - len(found)} of {said} layers are missing")
        return said

    def pattern(self, d_model: int) -> str:
        """The stack, with all options written out."""
        family = self.family()
        read = {"mamba2": self._mamba2, "mamba3": self._mamba3}.get(family, self._mamba)
        word = f"{family.removeprefix('falcon_')}({', '.join(f'{k}={_text(v)}' for k, v in read(d_model).items())})"
        mlp = f"{self._layer()}mlp.fc2.weight"
        if mlp not in self.tensors.names():
            return f"{word}*{self.layers()}"
        inner = self._shape(mlp, 2)[1]
        return " ".join([f"{word} gatedmlp(expand={inner / d_model!r})"] * self.layers())

    def notices(self) -> list[str]:
        """What was taken without being said."""
        found = list(self.said.notices)
        if self.family() == "mamba3":
            where, mean = self.said.where, "activation of A in Mamba-3"
            if not self.options.get("activation"):
                found.append(f"{where}: does not say the {mean}; heavy-tail is taken, softplus is the other one")
        return found

    def _mamba(self, d_model: int) -> dict[str, Any]:
        E, N = self._mixer("A_log", 2)
        found = {
            "d_state": self._check("d_state", N, "A_log"),
            "d_conv": self._check("d_conv", self._mixer("conv1d.weight", 3)[2], "conv1d.weight"),
            "expand": self._expand(self._check("d_inner", E, "A_log"), d_model),
            "dt_rank": self._check("dt_rank", self._mixer("dt_proj.weight", 2)[1], "dt_proj.weight"),
            "bias": self._has("in_proj.bias"),
        }
        return found | ({} if self.said.select_norm is None else {"select_norm": self.said.select_norm})

    def _mamba2(self, d_model: int) -> dict[str, Any]:
        (H,), E = self._mixer("A_log", 1), self._mixer("out_proj.weight", 2)[1]
        channels, _, width = self._mixer("conv1d.weight", 3)
        if self._mixer("D", 1) == (E,) and E != H:
            raise BadInput(
                f"{self.said.where}: D_has_hdim, a number D for each channel, is not read; a head has one here"
            )
        rows = self._mixer("in_proj.weight", 2)[0]
        if rows != E + channels + H:
            raise self._bad(
                "in_proj.weight", f"z, x, B, C and dt of {E}, {channels} and {H} make {E + channels + H} rows"
            )
        G, N = self._groups(channels - E)
        found = {
            "d_state": N,
            "d_head": self._head(E, H),
            "expand": self._whole_expand(E, d_model),
            "n_groups": G,
            "d_conv": self._check("d_conv", width, "conv1d.weight"),
            "bias": self._has("in_proj.bias"),
        }
        gate: dict[str, Any] = {"eps": self.said.gate_eps}
        gate |= {} if self.said.norm else {"norm": False}
        gate |= {"norm_first": True} if self.said.norm_first else {}
        gate |= {"groups": self.options["norm_groups"]} if self.options.get("norm_groups") is not None else {}
        limited = self.said.limit != (0.0, math.inf)
        return found | {"gate": gate} | ({"decay": {"limit": self.said.limit}} if limited else {})

    def _mamba3(self, d_model: int) -> dict[str, Any]:
        E = self._mixer("out_proj.weight", 2)[1]
        H, R, N = self._mixer("B_bias", 3)
        rest = self._mixer("in_proj.weight", 2)[0] - 2 * E - 3 * H
        ways = [(G, f) for f in (0.5, 1.0) if (G := (rest - int(N * f) // 2) // (2 * R * N)) > 0
                and 2 * R * N * G + int(N * f) // 2 == rest]  # fmt: skip
        if not ways:
            raise self._bad("in_proj.weight", f"no groups of {R} keys of {N} and {H} heads make that many rows")
        G, fraction = ways[0]
        rotation = {"fraction": fraction, "pairing": self.options.get("pairing") or ("neighbours", "halves")[R > 1]}
        return {
            "d_state": self._check("d_state", N, "B_bias"),
            "d_head": self._head(E, H),
            "expand": self._whole_expand(E, d_model),
            "n_groups": self._check("n_groups", G, "in_proj.weight"),
            "rank": self._check("rank", R, "B_bias"),
            "rotation": rotation,
            "decay": {"activation": self.options.get("activation") or "heavy-tail", "floor": self.said.floor},
            "norm": self._has("norm.weight"),
        }

    def _groups(self, keys: int) -> tuple[int, int]:
        """Groups and d_state of Mamba-2, which together make the channels of the convolution beyond x."""
        asked = {name: self.said.sizes[name][1] for name in ("n_groups", "d_state") if name in self.said.sizes}
        both = keys // 2
        if "n_groups" in asked or "d_state" not in asked:
            G = asked.get("n_groups", self.said.n_groups)
            N = both // G
        else:
            N = asked["d_state"]
            G = both // N
        if keys < 2 or keys != 2 * G * N or asked.get("d_state", N) != N:
            wanted = f"{G} groups of {asked.get('d_state', N)} states make {2 * G * asked.get('d_state', N)}"
            raise self._bad("conv1d.weight", f"{keys} of its channels are B and C, but by {self.said.where} {wanted}")
        return G, N

    def _head(self, E: int, H: int) -> int:
        """The width of a head."""
        self._check("n_heads", H, "dt_bias")
        if E % H:
            raise self._bad("dt_bias", f"{H} heads do not divide the inner width {E}")
        return self._check("d_head", E // H, "out_proj.weight")

    def _whole_expand(self, E: int, d_model: int) -> int:
        if E % d_model:
            raise self._bad(
                "out_proj.weight", f"the inner width {E} is no multiple of the width {d_model}, which is not read"
            )
        return E // d_model

    def _expand(self, E: int, d_model: int) -> int | float:
        """What makes E, exactly, of the width; the config's own is not believed."""
        ways = (E / d_model, math.nextafter(E / d_model, 0), math.nextafter(E / d_model, math.inf))
        return E // d_model if E % d_model == 0 else next((x for x in ways if x * d_model == E), E / d_model)

    def _check(self, name: str, value: int, tensor: str) -> int:
        """A size that the shape of a tensor shows. Raises BadInput if the config says another."""
        key, wanted = self.said.sizes.get(name, (name, value))
        if wanted != value:
            raise self._bad(tensor, f"that is {value} where {self.said.where} says {key} {wanted}")
        return value

    def _has(self, name: str) -> bool:
        return f"{self._layer()}mixer.{name}" in self.tensors.names()

    def _layer(self) -> str:
        return f"{self.prefixes.backbone}layers.0."

    def _mixer(self, name: str, axes: int) -> tuple[int, ...]:
        return self._shape(f"{self._layer()}mixer.{name}", axes)

    def _shape(self, name: str, axes: int) -> tuple[int, ...]:
        if name not in self.tensors.names():
            raise BadInput(f"{self.said.where}: the tensor '{name}' is missing; the checkpoint is not whole")
        shape = self.tensors.shape(name)
        if len(shape) != axes:
            raise self._bad(name, f"it has {len(shape)} axes where {axes} are expected")
        return shape

    def _bad(self, tensor: str, line: str) -> BadInput:
        """An error about a tensor, named as it stands in the checkpoint."""
        full = tensor if tensor in self.tensors.names() else f"{self._layer()}mixer.{tensor}"
        return BadInput(f"the tensor '{full}' is {self.tensors.shape(full)}: {line}")


def _text(value: Any) -> str:
    """A value as a pattern holds it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_text(own)}" for key, own in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_text, value)) + ")"
    return "1e999" if value == math.inf else repr(value)
