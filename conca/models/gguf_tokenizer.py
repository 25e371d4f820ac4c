"""The tokenizer inside a GGUF file, as the tokenizer.json that it was before: tokens, merges, and how text is cut first.

Text is cut by patterns, one after the other, before merges join its bytes; a file names the patterns of its tokenizer, not themselves.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as decode
from tokenizers import pre_tokenizers as cut
from tokenizers.models import BPE

from conca.models.gguf_file import GGUFFile
from conca.types import BadInput, nearest

__all__ = ["known_words", "special_words", "tokenizer_files"]

KEY = "tokenizer.ggml."
NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5
"""Kinds of tokens: made of merges; special; taken out of text as they are; there to fill the table."""

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SIGNS, THREE = r"[\p{P}\$\+<=>\^~\|`]+", r"[0-9][0-9][0-9]"
CUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais", "trillion", "phi-2"), (WORDS,)),
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
        BadInput: for a tokenizer of another kind than byte-level merges, unknown patterns, and merges of tokens that are not there.
    """
    model = file.said(f"{KEY}model")
    if model in (None, "no_vocab", "none"):
        return None
    whole = file.said("tokenizer.huggingface.json")
    if whole is None and model != "gpt2":
        line = f"{file.path}: its tokenizer is of the kind {model!r}; gpt2 is read"
        raise BadInput(f"{line}; name the tokenizer.json of the model")
    text = whole or _json(file)
    tokens, config = file.said(f"{KEY}tokens", []), dict[str, Any]()
    for word, i in special_words(file).items():
        if 0 <= i < len(tokens):
            config[word.replace("_token_id", "_token")] = tokens[i]
    config["add_bos_token"] = _begins(file)
    if (template := file.said("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return {"tokenizer.json": text.encode(), "tokenizer_config.json": json.dumps(config, indent=2).encode()}


def special_words(file: GGUFFile) -> dict[str, int]:
    """Ids of the begin and the end of a text and of what fills rows, in the words of a generation_config.json."""
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    found = {f"{ours}_token_id": file.said(f"{KEY}{theirs}_token_id") for theirs, ours in names.items()}
    return {name: i for name, i in found.items() if type(i) is int}


def known_words(file: GGUFFile) -> int | None:
    """How many words there are, without those that only fill the table; None where the file does not list them."""
    tokens, kinds = file.said(f"{KEY}tokens"), file.said(f"{KEY}token_type")
    if not tokens:
        return None
    used = [i for i, kind in enumerate((kinds or [])[: len(tokens)]) if kind != UNUSED]
    return used[-1] + 1 if used else len(tokens)


def _begins(file: GGUFFile) -> bool:
    """Whether the begin of a text stands before every prompt."""
    said = file.said(f"{KEY}add_bos_token")
    return bool(file.said(f"{KEY}pre") in WHOLE if said is None else said)


def _json(file: GGUFFile) -> str:
    """The tokenizer.json of tokens and merges."""
    name = file.said(f"{KEY}pre", "default")
    if name not in CUTS:
        raise BadInput(f"{file.path}: its tokenizer cuts text as {name!r} does; {nearest(str(name), CUTS)}")
    tokens, merges = file.said(f"{KEY}tokens"), file.said(f"{KEY}merges")
    if not tokens or merges is None:
        raise BadInput(
            f"{file.path}: its tokenizer has no {'tokens' if not tokens else 'merges'}; the file is not whole"
        )
    kinds = file.said(f"{KEY}token_type") or [NORMAL] * len(tokens)
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind != UNUSED}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    try:
        inner = Tokenizer(BPE(vocab=vocab, merges=pairs, ignore_merges=name in WHOLE))
    except Exception as error:  # the package raises no other kind
        raise BadInput(f"{file.path}: its tokenizer cannot be read ({' '.join(str(error).split())})") from None
    pieces = [cut.Split(Regex(pattern), "isolated") for pattern in CUTS[name]]
    inner.pre_tokenizer = cut.Sequence([*pieces, cut.ByteLevel(add_prefix_space=False, use_regex=False)])
    inner.decoder = decode.ByteLevel()
    inner.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == CONTROL]
    )
    inner.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds) if k == USER])
    return inner.to_str()
