"""Language models at the prompt: options that their commands share, and a model that is opened by them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typer import Argument, Option

from conca.cli.kind import given
from conca.cli.screen import notice
from conca.types import BadInput

if TYPE_CHECKING:
    from conca.estimators.language import LanguageModel

__all__ = [
    "ID", "MaxNewTokens", "MinP", "Penalty", "Quantize", "Quiet", "Revision", "Save", "Seed", "Stop", "Temperature", "Tokenizer",
    "TopK", "TopP", "check_save", "opened", "saved",
]  # fmt: skip

ID: TypeAlias = Annotated[
    str,
    Argument(
        metavar="RUN_OR_ID",
        help="Folder that `conca fit --task text` wrote; an ID of the Hugging Face hub; a folder of such weights; a .gguf file.",
    ),
]
MaxNewTokens: TypeAlias = Annotated[
    int | None, Option("-n", "--max-new-tokens", metavar="N", help="Tokens to write, at most [256].")
]
Temperature: TypeAlias = Annotated[
    float | None, Option(metavar="X", help="Draw: logits are divided by it; 0 takes the likeliest token.")
]
TopK: TypeAlias = Annotated[int | None, Option(metavar="N", help="Draw from the N likeliest tokens; 0: from all.")]
TopP: TypeAlias = Annotated[
    float | None, Option(metavar="X", help="Draw from the likeliest tokens whose probabilities sum to X.")
]
MinP: TypeAlias = Annotated[
    float | None, Option(metavar="X", help="Draw no token less likely than X times the likeliest.")
]
Penalty: TypeAlias = Annotated[
    float | None,
    Option("--repetition-penalty", metavar="X", help="Make tokens that were there less likely; 1: do not."),
]
Seed: TypeAlias = Annotated[int | None, Option(metavar="N", help="Of the draws; the same seed, the same text.")]
Stop: TypeAlias = Annotated[
    list[str] | None, Option(metavar="TEXT", help="End where this would be written; may be given again.")
]
Quantize: TypeAlias = Annotated[
    str | None,
    Option(metavar="WORD", help="int8 or bfloat16: narrow the weights of matrix products while they are read."),
]
Save: TypeAlias = Annotated[
    Path | None, Option(metavar="FOLDER", help="With --quantize: keep the narrowed model here, to be loaded again.")
]
Tokenizer: TypeAlias = Annotated[
    Path | None, Option(metavar="FILE", help="tokenizer.json, or a folder with it; default: that of the model.")
]
Revision: TypeAlias = Annotated[str | None, Option(metavar="WORD", help="Of an ID: branch, tag or commit.")]
Quiet: TypeAlias = Annotated[bool, Option("-q", "--quiet", help="No notices.")]


def opened(
    place: str,
    *,
    quantize: str | None = None,
    tokenizer: Path | None = None,
    revision: str | None = None,
    quiet: bool = False,
) -> LanguageModel:
    """A language model, ready to be used and not to be trained. Raises BadInput for a run of another kind, and as `conca.load` does."""
    from conca.estimators.kinds import kind_of
    from conca.estimators.language import LanguageModel
    from conca.train.pages import keep_memory

    keep_memory()
    if (kind := kind_of(place)) != "text":
        raise BadInput(
            f"{place}: is a run to {kind}, and has no text to write or to judge; `conca info {place}` says more"
        )
    options: dict[str, Any] = given(quantize=quantize, tokenizer=tokenizer, revision=revision)
    model = LanguageModel.from_pretrained(place, **options).for_decoding()
    warm(model)
    for line in () if quiet else model.notices:
        notice(line)
    return model


def warm(model: LanguageModel) -> None:
    """Read and step once: kernels are fetched now, and what is timed later is the model's own."""
    import torch

    from conca.infer.generating import generate
    from conca.infer.sampling import Sampling

    generate(model, torch.zeros(1, 2, dtype=torch.int64), Sampling(max_new_tokens=2))


def check_save(save: Path | None, quantize: str | None) -> None:
    """Raise BadInput, before anything is read, where nothing is narrowed, or the folder is there."""
    if save is not None and quantize is None:
        raise BadInput("--save keeps a narrowed model; say how with --quantize int8")
    if save is not None and (save.exists() or save.is_symlink()):
        raise BadInput(f"--save: {save} exists; name another folder")


def saved(model: LanguageModel, save: Path | None, quantize: str | None, quiet: bool) -> None:
    """Keep a narrowed model, and say how large it is."""
    from conca.models.costs import bytes_of

    if quantize is not None and not quiet:
        size = bytes_of(model)
        whole = sum(p.numel() for p in model.state_dict().values()) * 4
        notice(f"{quantize}: {size / 2**20:,.1f} MiB, in float32 it would be {whole / 2**20:,.1f}")
    if save is not None:
        model.save_pretrained(save)
        if not quiet:
            notice(f"wrote {save}")
