"""The tokenizer inside a GGUF file, as the tokenizer.json that it was before: tokens, merges, and how text is cut first.

"gpt2"   text is cut by patterns, one after the other, before merges join its bytes; a file names the patterns, not themselves
"llama"  nothing is cut, a space stands before every text, and of two neighbours those join first whose token has the highest score
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as decode
from tokenizers import normalizers as normal
from tokenizers import pre_tokenizers as cut
from tokenizers.models import BPE

from conca.models.gguf_file import GGUFFile
from conca.types import BadInput, nearest

__all__ = ["known_tokens", "special_tokens", "tokenizer_files"]

KEY = "tokenizer.ggml."
SPACE = "▁"
NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5
"""Kinds of tokens: made of merges; special; taken out of text as they are; there to fill the table."""

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SIGNS, THREE = r"[\p{P}\$\+<=>\^~\|`]+", r"[0-9][0-9][0-9]"
CUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais", "trillion", "phi-2"), (WORDS,)),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", WORDS)
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "dbrx", "smaug-bpe"), (MODERN % 3,)),
    **dict.fromkeys(("qwen2", "stablelm2"), (MODERN.replace("{1,%d}", ""),)),
    "falcon": (SIGNS, WORDS, THREE),
    "default": (SIGNS.replace("`", ""), WORDS, r"\p{N}+", THREE),
}
"""Patterns of cutting by their names in a file."""
WHOLE = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1")
"""Tokenizers that take a piece as it is where it is a token, without merges; they put the begin of a text before a prompt."""


def tokenizer_files(file: GGUFFile) -> dict[str, bytes] | None:
    """The files that a folder of this tokenizer would have, by name; None where the file has none.

    They are tokenizer.json and tokenizer_config.json: the ids of the begin and the end of a text, whether a begin stands before every
    prompt, the chat template.

    Raises:
        BadInput: for a tokenizer of another kind, unknown patterns, and merges of tokens that are not there.
    """
    model = file.said(f"{KEY}model")
    if model in (None, "no_vocab", "none"):
        return None
    whole = file.said("tokenizer.huggingface.json")
    if whole is None and model not in MADE:
        line = f"{file.path}: its tokenizer is of the kind {model!r}; {' and '.join(MADE)} are read"
        raise BadInput(f"{line}; name the tokenizer.json of the model")
    text = whole or _json(file, model)
    tokens, config = file.said(f"{KEY}tokens", []), dict[str, Any]()
    for name, i in special_tokens(file).items():
        if 0 <= i < len(tokens):
            config[name.replace("_token_id", "_token")] = tokens[i]
    config["add_bos_token"] = _begins(file)
    if (template := file.said("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return {"tokenizer.json": text.encode(), "tokenizer_config.json": json.dumps(config, indent=2).encode()}


def special_tokens(file: GGUFFile) -> dict[str, int]:
    """Ids of the begin and the end of a text and of what fills rows, in the words of a generation_config.json."""
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    found = {f"{ours}_token_id": file.said(f"{KEY}{theirs}_token_id") for theirs, ours in names.items()}
    return {name: i for name, i in found.items() if type(i) is int}


def known_tokens(file: GGUFFile) -> int | None:
    """How many tokens there are, without those that only fill the table; None where the file does not list them."""
    tokens, kinds = file.said(f"{KEY}tokens"), file.said(f"{KEY}token_type")
    if not tokens:
        return None
    used = [i for i, kind in enumerate((kinds or [])[: len(tokens)]) if kind != UNUSED]
    return used[-1] + 1 if used else len(tokens)


def _begins(file: GGUFFile) -> bool:
    """Whether the begin of a text stands before every prompt."""
    said = file.said(f"{KEY}add_bos_token")
    usual = file.said(f"{KEY}model") == "llama" or file.said(f"{KEY}pre") in WHOLE
    return bool(usual if said is None else said)


def _json(file: GGUFFile, model: str) -> str:
    """The tokenizer.json of tokens, and of merges or scores."""
    tokens = file.said(f"{KEY}tokens")
    if not tokens:
        raise BadInput(f"{file.path}: its tokenizer has no tokens; the file is not whole")
    kinds = file.said(f"{KEY}token_type") or [NORMAL] * len(tokens)
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind != UNUSED}
    try:
        inner = MADE[model](file, vocab)
    except BadInput:
        raise
    except Exception as error:  # the package raises no other kind
        raise BadInput(f"{file.path}: its tokenizer cannot be read ({' '.join(str(error).split())})") from None
    special = [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds) if kind == CONTROL]
    inner.add_special_tokens(special)
    inner.add_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, kinds) if kind == USER])
    return inner.to_str()


def _of_merges(file: GGUFFile, vocab: dict[str, int]) -> Tokenizer:
    """Merges of bytes, in pieces of text."""
    name, merges = file.said(f"{KEY}pre", "default"), file.said(f"{KEY}merges")
    if name not in CUTS:
        raise BadInput(f"{file.path}: its tokenizer cuts text as {name!r} does; {nearest(str(name), CUTS)}")
    if merges is None:
        raise BadInput(f"{file.path}: its tokenizer has no merges; the file is not whole")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    inner = Tokenizer(BPE(vocab=vocab, merges=pairs, ignore_merges=name in WHOLE))
    pieces = [cut.Split(Regex(pattern), "isolated") for pattern in CUTS[name]]
    inner.pre_tokenizer = cut.Sequence([*pieces, cut.ByteLevel(add_prefix_space=False, use_regex=False)])
    inner.decoder = decode.ByteLevel()
    return inner


def _of_scores(file: GGUFFile, vocab: dict[str, int]) -> Tokenizer:
    """Merges of characters, those first that make a token of a high score; characters that are no tokens are bytes."""
    scores = file.said(f"{KEY}scores")
    if scores is None or len(scores) <= max(vocab.values()):
        raise BadInput(f"{file.path}: its tokenizer has no scores; the file is not whole")
    made = [
        (-scores[i], at, token)
        for token, i in vocab.items()
        for at in range(1, len(token))
        if token[:at] in vocab and token[at:] in vocab
    ]
    pairs = [(token[:at], token[at:]) for _, at, token in sorted(made)]
    unknown = next((token for token, i in vocab.items() if i == file.said(f"{KEY}unknown_token_id", 0)), None)
    inner = Tokenizer(BPE(vocab=vocab, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    first = bool(file.said(f"{KEY}add_space_prefix", True))
    spaces = normal.Replace(" ", SPACE)
    inner.normalizer = normal.Sequence([normal.Prepend(SPACE), spaces]) if first else spaces
    back = [decode.Replace(SPACE, " "), decode.ByteFallback(), decode.Fuse()]
    inner.decoder = decode.Sequence([*back, decode.Strip(" ", 1, 0)] if first else back)
    return inner


MADE: dict[str, Callable[[GGUFFile, dict[str, int]], Tokenizer]] = {"gpt2": _of_merges, "llama": _of_scores}
"""The kinds that are read."""
