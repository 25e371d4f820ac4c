"""The tokenizer of published weights: beside them, or the one that all of their family were trained with."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

from conca.data.tokenizer import Tokenizer, read_tokenizer
from conca.models.hub import reachable
from conca.models.published import Pretrained
from conca.models.tensor_files import line_of
from conca.types import BadInput

__all__ = ["tokenizer_of"]

SHARED = {(family, n): "EleutherAI/gpt-neox-20b" for family in ("mamba", "mamba2") for n in (50277, 50280, 50288)} | {
    ("mamba3", 128256): "meta-llama/Llama-3.1-8B"
}
"""Whose tokenizer models of a family with a vocabulary of this size use, where their own repository holds none."""
FILES = "tokenizer.json", "tokenizer.model", "tokenizer_config.json"


def tokenizer_of(folder: Path, found: Pretrained, lines: list[str]) -> Tokenizer | None:
    """The tokenizer in a folder, or that of its family; None, and a line for the user, where neither can be had.

    Raises:
        BadInput: for a tokenizer in the folder that cannot be read.
    """
    there = [name for name in FILES if (folder / name).is_file()]
    try:
        if there:
            return read_tokenizer(folder)
    except BadInput:
        if there != [FILES[2]]:  # a description without a tokenizer is common
            raise
    origin = SHARED.get((found.family, found.config.n_tokens))
    advice = "name a tokenizer.json (tokenizer, --tokenizer) to use text"
    if origin is None:
        lines.append(f"{folder}: holds no tokenizer; {advice}")
        return None
    try:
        here = not reachable()
        with suppress(EntryNotFoundError):
            hf_hub_download(origin, FILES[2], local_files_only=here)
        return read_tokenizer(Path(hf_hub_download(origin, FILES[0], local_files_only=here)))
    except BadInput as error:
        why = f"is damaged: {error}"
    except LocalEntryNotFoundError:
        why = "is not in the cache, and the hub cannot be reached"
    except (OSError, HfHubHTTPError, ValueError) as error:
        why = f"cannot be had ({line_of(error)})"
    lines.append(f"{folder}: holds no tokenizer, and that of {origin} {why}; {advice}")
    return None
