"""A Mamba of conca as a file that llama.cpp reads, and llama.cpp running it: needs gguf and llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mamba_sides import INNER, RANK, STATE, VOCAB, WIDTH, WINDOW, Language
from torch import Tensor

NARROW = "token_embd", "ssm_in", "ssm_out"
"""What llama.cpp's own converter makes narrow; it keeps the small maps in float32."""


def tensors(model: Language) -> Iterator[tuple[str, Tensor]]:
    """Names and values as llama.cpp wants them."""
    yield "token_embd.weight", model.embedding.weight
    yield "output_norm.weight", model.norm.weight
    for i, part in enumerate(model.stack.parts):
        layer: Any = part.inner
        yield f"blk.{i}.attn_norm.weight", part.norm.weight
        yield f"blk.{i}.ssm_in.weight", layer.in_proj.weight
        yield f"blk.{i}.ssm_conv1d.weight", layer.conv.weight.flip(1)
        yield f"blk.{i}.ssm_conv1d.bias", layer.conv.bias
        yield f"blk.{i}.ssm_x.weight", layer.x_proj.weight
        yield f"blk.{i}.ssm_dt.weight", layer.dt_proj.weight
        yield f"blk.{i}.ssm_dt.bias", layer.dt_bias
        yield f"blk.{i}.ssm_a", -layer.A_log.exp()
        yield f"blk.{i}.ssm_d", layer.D
        yield f"blk.{i}.ssm_out.weight", layer.out_proj.weight


@torch.no_grad()
def write(model: Language, path: Path, kind: str) -> None:
    """The model at `path`, its large maps as F32, BF16, Q8_0 or Q4_0; without a vocabulary."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    quantised = GGMLQuantizationType[kind]
    out = GGUFWriter(path, "mamba")
    out.add_context_length(2**20)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(0)
    out.add_head_count(0)
    out.add_block_count(len(model.stack.parts))
    out.add_ssm_conv_kernel(WINDOW)
    out.add_ssm_inner_size(INNER)
    out.add_ssm_state_size(STATE)
    out.add_ssm_time_step_rank(RANK)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("no_vocab")
    for name, value in tensors(model):
        data = value.detach().contiguous().float().numpy()
        if name.endswith("weight") and any(part in name for part in NARROW) and kind != "F32":
            out.add_tensor(name, quants.quantize(data, quantised), raw_dtype=quantised)
        else:
            out.add_tensor(name, data)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class Llama:
    """llama.cpp with a model file: one row, greedy callers only."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp.llama_cpp as api

        self.api = api
        self.silent = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.silent, ctypes.c_void_p(0))
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        settings = api.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 4096, 512, 512
        settings.n_threads = settings.n_threads_batch = threads
        settings.no_perf = True
        self.context = api.llama_init_from_model(self.model, settings)
        if not self.model or not self.context:
            raise RuntimeError(f"llama.cpp does not take {path}")

    def forget(self) -> None:
        """Begin anew."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def read(self, tokens: list[int]) -> np.ndarray:
        """Go on with these tokens; the logits after the last."""
        row = (ctypes.c_int32 * len(tokens))(*tokens)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(row, len(tokens))):
            raise RuntimeError("llama_decode failed")
        return np.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, -1), (VOCAB,))

    def close(self) -> None:
        """Give the memory back."""
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)
