"""A language model with its tokenizer: published weights or a run of one's own, to generate, to score, to train, and to disk and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conca.data.decoding import encoded
from conca.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, check_vocab, read_tokenizer
from conca.estimators.arguments import folder_of
from conca.estimators.kinds import is_run
from conca.estimators.published_tokenizer import tokenizer_of
from conca.infer.generating import Generation, generate, prompts_of
from conca.infer.past import Past
from conca.infer.sampling import Sampling
from conca.infer.scoring import Tally, score
from conca.layers.quantised import kind_of, narrowed
from conca.models.gguf_file import GGUFFile
from conca.models.gguf_model import read_gguf
from conca.models.gguf_tokenizer import tokenizer_files
from conca.models.hf_format import save_hf
from conca.models.hub import located
from conca.models.language import LanguageNetwork
from conca.models.published import Pretrained, read_pretrained
from conca.models.published_sizes import OPTIONS
from conca.models.run import new_folder
from conca.types import BadInput, nearest

if TYPE_CHECKING:
    from conca.estimators.text_runs import TextRun

__all__ = ["LanguageModel"]


OFFLINE, LATER = "set the environment variable HF_HUB_OFFLINE=1", "load it, and then model.to(device)"
FOREIGN = {
    "torch_dtype": "conca says 'dtype'", "local_files_only": OFFLINE, "device": LATER, "device_map": LATER,
    "load_in_8bit": "conca says quantize='int8'", "load_in_4bit": "conca says quantize='int8'",
    "quantization_config": "conca says quantize='int8'", "trust_remote_code": "nothing in a checkpoint is run; leave it out",
    "cache_dir": "set the environment variable HF_HUB_CACHE", "token": "log in with `hf auth login`",
    "low_cpu_mem_usage": "so it is always; leave it out",
}  # fmt: skip
"""What others say when they load a model, and what is said here."""


class LanguageModel(LanguageNetwork):
    """A `conca.models.language.LanguageNetwork` that knows its tokens and how it wants to be sampled.

    `model(ids)` gives logits and a state, `model.generate` writes, `model.score` says how likely a text is. It is a `torch.nn.Module`
    like any other, to be trained by `model.loss` or by `conca fit corpus.txt --task text --from ID`.

    tokenizer   turns text into tokens and back; None where there is none
    generation  what a generation_config.json says
    family      "mamba", "mamba2", "falcon_mamba", "mamba3", or None for layers of another kind
    notices     lines that the user should know
    run         that it was read from; None: it was none
    """

    tokenizer: Tokenizer | None
    generation: dict[str, Any]
    family: str | None
    notices: list[str]
    run: TextRun | None

    @classmethod
    def around(
        cls,
        network: LanguageNetwork,
        tokenizer: Tokenizer | None = None,
        *,
        generation: Mapping[str, Any] | None = None,
        family: str | None = None,
        notices: Sequence[str] = (),
    ) -> Self:
        """The model whose network this is; nothing is copied. Raises BadInput for a tokenizer that does not fit its table."""
        if tokenizer is not None:
            check_vocab(tokenizer, network.config.vocab_size)
            if tokenizer.eos is None and isinstance(tokenizer, FileTokenizer):
                tokenizer.eos = next(iter(ends_of(generation or {})), None)
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model.__dict__.update(network.__dict__)
        model.tokenizer, model.generation, model.family = tokenizer, dict(generation or {}), family
        if tokenizer is not None and tokenizer.size < network.config.n_tokens:  # the rest of the table is padding
            model.config = replace(network.config, n_tokens=tokenizer.size)
        model.notices, model.run = list(notices), None
        return model

    @classmethod
    def from_pretrained(
        cls,
        place: str | Path,
        *,
        dtype: torch.dtype | None = None,
        quantize: str | None = None,
        revision: str | None = None,
        tokenizer: str | Path | None = None,
        **options: Any,
    ) -> Self:
        """Weights that were published, or a run of text.

        Args:
            place: an ID of the Hugging Face hub, read through its cache; a folder; a .gguf file; a run folder.
            dtype: of the parameters; None: as they are stored. What a recurrence needs stays float32.
            quantize: "int8" or "bfloat16" narrows the weights of products while they are read; such a model is not trained.
            revision: of an ID.
            tokenizer: a tokenizer.json, or a folder with one; None: that of the place.
            options: of Mamba-3 `activation` ("heavy-tail" or "softplus") and `pairing` ("neighbours" or "halves"), which its
                checkpoints do not say; of Mamba-2 `norm_groups`.

        Raises:
            BadInput: one line, for what cannot be found, is not whole, or is of an unknown architecture.
        """
        _check_loading(place, dtype, options)
        given = None if tokenizer is None else read_tokenizer(tokenizer)
        if is_run(place):
            for name in (*options, *(["revision"] if revision is not None else ())):
                raise BadInput(f"{place}: {name!r} belongs to published weights, and this is a run; leave it out")
            return cls._of_run(folder_of(place), given, dtype, quantize)
        path = located(place, revision)
        with torch.inference_mode(False):  # wherever it is loaded, it can be trained
            if path.suffix == ".gguf":
                found, own = _of_gguf(path, dtype, quantize, options)
            else:
                found, own = read_pretrained(path, dtype=dtype, quantize=quantize, options=options), None
        lines = list(found.notices)
        chosen = given or own or tokenizer_of(path, found, lines)
        return cls.around(found.network, chosen, generation=found.generation, family=found.family, notices=lines)

    @classmethod
    def _of_run(
        cls, folder: Path, tokenizer: Tokenizer | None, dtype: torch.dtype | None, quantize: str | None
    ) -> Self:
        """The model of a run folder."""
        from conca.estimators.text_runs import read_text_run  # it needs pandas, and published weights do not

        run = read_text_run(folder, quantize=quantize)
        model = cls.around(run.network, tokenizer or run.tokenizer, family=run.family, generation=run.generation)
        model.run = run
        return model if dtype is None else model.to(dtype)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `conca.load` reads; Mamba, Mamba-2 and FalconMamba in the form that transformers reads, too.

        Narrowed weights and other layers are written as conca's own.

        Raises:
            BadInput: for a folder that is there and not empty.
        """
        folder, tokenizer = folder_of(folder), self.tokenizer
        if self.family in ("mamba", "mamba2", "falcon_mamba") and kind_of(self) is None:
            save_hf(
                self,
                self.config,
                folder,
                generation=self.generation,
                also=None if tokenizer is None else tokenizer.write,
            )
        else:
            from conca.estimators.text_runs import TextRun, write_text_run

            run = TextRun(None, self, tokenizer, source="", family=self.family, generation=self.generation)
            with new_folder(folder) as place:
                write_text_run(place, run)

    def for_decoding(self) -> Self:
        """The same model for use alone: weights of products in half precision stay bfloat16 under activations in float32.

        So decoding is fast on a processor, and memory what it was. In place; what was narrowed is no longer trained.
        """
        if any(p.dtype == torch.float16 for p in self.parameters()):
            self.float()
        elif any(p.dtype == torch.bfloat16 for p in self.parameters()):
            narrowed(self, "bfloat16")
            self.float()
        return self.eval()

    def sampling(self, **options: Any) -> Sampling:
        """How it writes: what its generation_config.json says, and `options` (None: not given) over it; see `Sampling`."""
        ends = {} if self.tokenizer is None or self.tokenizer.eos is None else {"eos_token_id": self.tokenizer.eos}
        return Sampling.from_generation_config(ends | self.generation, **options)

    def write(
        self, prompts: Sequence[Any] | Tensor | str, *, past: Past | None = None, samples: int = 1, **options: Any
    ) -> Generation:
        """Go on from prompts; texts, their tokens, why they ended, and the past to go on from.

        Args:
            prompts: a text, several, or tokens of each, of unequal lengths.
            past: what was read and written before, one row for each prompt.
            samples: texts for each prompt.
            options: as in `generate`.
        """
        asked = [prompts] if isinstance(prompts, str | bytes) else prompts
        rows = [self.encoded(p) if isinstance(p, str | bytes) else p for p in asked]
        return generate(self, rows, self.sampling(**options), past=past, samples=samples, tokenizer=self.tokenizer)

    @overload
    def generate(
        self, prompts: str, *, attention_mask: Tensor | None = None, samples: int = 1, **options: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompts: Sequence[str], *, attention_mask: Tensor | None = None, samples: int = 1, **options: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompts: Tensor, *, attention_mask: Tensor | None = None, samples: int = 1, **options: Any
    ) -> Tensor: ...
    def generate(
        self,
        prompts: Tensor | str | Sequence[str] | None = None,
        *,
        attention_mask: Tensor | None = None,
        samples: int = 1,
        **options: Any,
    ) -> Tensor | str | list[str]:
        """Write on. Tokens (B, T) give tokens (B * samples, T + N), prompts first; texts give the texts that were written.

        Args:
            prompts: tokens, or a text, or several.
            attention_mask: (B, T) of tokens that are padded on one side.
            samples: texts for each prompt.
            options: max_new_tokens, do_sample, temperature, top_k, top_p, min_p, repetition_penalty, num_beams, seed, stop, eos:
                names and meaning are those of `conca.infer.sampling.Sampling`.

        Rows that end before others are filled with the token that ends a text, or with 0.

        Raises:
            BadInput: for options out of range, an empty prompt, prompts of another kind (`write` takes tokens of unequal lengths), and
                texts where there is no tokenizer.
        """
        self.sampling(**options)  # a name that is not known says more than prompts that are missing
        if isinstance(prompts, Tensor):
            if prompts.ndim != 2:
                raise BadInput(f"prompts: expected tokens of shape (batch, time), got {tuple(prompts.shape)}")
            found = self.write(prompts_of(prompts, attention_mask), samples=samples, **options)
            fill = next(iter(self.sampling(**options).eos), 0)
            new = nn.utils.rnn.pad_sequence([row.ids for row in found.rows], batch_first=True, padding_value=fill)
            if torch.iinfo(prompts.dtype).max < self.config.vocab_size - 1:
                prompts = prompts.long()
            return torch.cat([prompts.repeat_interleave(len(new) // len(prompts), 0), new.to(prompts)], 1)
        if (
            not isinstance(prompts, Iterable)
            or isinstance(prompts, Mapping)
            or not all(isinstance(p, str) for p in prompts)
        ):
            raise BadInput("prompts: expected a text, several, or tokens as a tensor (batch, time), each row as long")
        if attention_mask is not None:
            raise BadInput("attention_mask belongs to tokens that are padded; texts need none, leave it out")
        texts = [str(row.text) for row in self.write(prompts, samples=samples, **options).rows]
        return texts[0] if isinstance(prompts, str) and samples == 1 else texts

    def score(self, text: str | bytes) -> Tally:
        """How likely a text is: `.bits_per_byte`, `.perplexity`, `.nats` of all tokens but the first, which has none before it.

        Raises:
            BadInput: for what is no text, one without tokens, and where there is no tokenizer.
        """
        if not isinstance(text, str | bytes):
            raise BadInput(
                "text: expected a str or bytes; of tokens, conca.infer.scoring.score gives the log-likelihoods"
            )
        tokens, tally = self.encoded(text, opening=False), Tally()
        for part in score(self, tokens, bos=self.opening):
            tally.add(part)
        whole = len(encoded(text) if isinstance(text, str) else text)
        tally.bytes = whole if self.opening is not None else whole - self._first(text)
        return tally

    def _first(self, text: str | bytes) -> int:
        """Bytes that the first token of a text stands for; it may be a part of a character."""
        if self.tokenizer is None or isinstance(self.tokenizer, ByteTokenizer):
            return 1
        found = self.tokenizer.measured(text.decode() if isinstance(text, bytes) else text)
        return 0 if found is None else int(found[1][0])

    def decoded(self, ids: Sequence[int] | NDArray[Any] | Tensor) -> str:
        """The text of tokens. Raises BadInput where there is no tokenizer."""
        if self.tokenizer is None:
            raise BadInput("the model has no tokenizer; give one (tokenizer, --tokenizer)")
        return self.tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids)

    def encoded(self, text: str | bytes, *, opening: bool = True) -> NDArray[Any]:
        """The tokens of a text, with what the tokenizer puts before a prompt. Raises BadInput where there is no tokenizer."""
        if self.tokenizer is None:
            raise BadInput("the model has no tokenizer; give one (tokenizer, --tokenizer), or tokens as numbers")
        return self.tokenizer.encode(text, special=opening)

    @property
    def opening(self) -> int | None:
        """The token that the tokenizer puts before a text, if it does so."""
        return self.tokenizer.opening[-1] if self.tokenizer is not None and self.tokenizer.opening else None


def _check_loading(place: str | Path, dtype: object, options: Mapping[str, Any]) -> None:
    """Raise BadInput for an option that no checkpoint has, and a dtype that is none of floats."""
    known = {"dtype", "quantize", "revision", "tokenizer"}.union(*OPTIONS.values())
    for name in options.keys() - known:
        raise BadInput(f"{place}: unknown option {name!r} of loading; {FOREIGN.get(name) or nearest(name, known)}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise BadInput(f"dtype must be a type of floats such as torch.float32, or None: as stored; not {dtype!r}")


def ends_of(generation: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that end a text, by a generation_config.json; what are no tokens are passed over."""
    found = generation.get("eos_token_id")
    return tuple(token for token in (found if isinstance(found, list | tuple) else [found]) if type(token) is int)


def _of_gguf(
    path: Path, dtype: torch.dtype | None, quantize: str | None, options: Mapping[str, Any]
) -> tuple[Pretrained, Tokenizer | None]:
    """Weights and tokenizer of a .gguf file."""
    found = read_gguf(path, dtype=dtype, quantize=quantize, options=options)
    with GGUFFile(path) as file:
        inside = tokenizer_files(file)
    if inside is None:
        return found, None
    with TemporaryDirectory(prefix="conca-") as folder:
        for name, content in inside.items():
            (Path(folder) / name).write_bytes(content)
        return found, read_tokenizer(folder)
