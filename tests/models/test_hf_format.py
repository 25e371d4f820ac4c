"""Networks in the format of transformers: it reads them with the same logits; what it has no model for is refused."""

import json

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from conca.layers.quantised import narrowed
from conca.models.hf_format import save_hf
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.models.published import read_pretrained
from conca.types import BadInput


class Wide(TorchFunctionMode):
    """What asks for single precision gets double."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {key: torch.float64 if a is torch.float32 else a for key, a in (kwargs or {}).items()}
        return args[0].double() if func is torch.Tensor.float else func(*args, **kwargs)


def made(layers, **options):
    """A network with parameters far from where they start."""
    torch.manual_seed(0)
    network = LanguageNetwork(LanguageConfig(vocab_size=24, n_tokens=20, layers=layers, d_model=8, **options)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize(
    ("layers", "options", "family"),
    [
        ("mamba(d_state=3)*2", {}, "mamba"),
        ("mamba(d_state=3, expand=1.5, dt_rank=2, bias=True, d_conv=2)*2", {"tied": False, "eps": 1e-3}, "mamba"),
        ("mamba2(d_state=3, d_head=4, n_groups=2)*2", {"tied": False}, "mamba2"),
        ("mamba2(d_state=3, d_head=4, decay={'limit': (0.2, 1e999)}, bias=True)*2", {}, "mamba2"),
        ("mamba(d_state=3, select_norm=1e-3)*2", {"eps": 1e-4}, "falcon_mamba"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_transformers_reads_what_is_written(layers, options, family, dtype, tmp_path):
    network = made(layers, **options)
    network = (network if dtype == torch.float64 else network.float()).to(dtype)
    save_hf(network, network.config, tmp_path / "model", generation={"eos_token_id": [3, 4], "temperature": 0.5})
    theirs, notes = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto", output_loading_info=True)
    assert not any(notes.values())
    assert theirs.config.model_type == family
    assert theirs.dtype == dtype
    assert theirs.config.eos_token_id == [3, 4]
    assert theirs.generation_config.temperature == 0.5
    again = read_pretrained(tmp_path / "model")
    assert (again.family, again.generation) == (family, {"eos_token_id": [3, 4], "temperature": 0.5})
    own = network.state_dict()
    assert again.network.state_dict().keys() == own.keys()
    for name, tensor in again.network.state_dict().items():
        assert torch.equal(tensor, own[name]), name
    ids = torch.randint(0, 24, (2, 11))
    with torch.no_grad():
        got = network(ids)[0]
        if dtype == torch.float64:
            with Wide():
                want = theirs(ids).logits
        else:
            want = theirs(ids).logits.to(got.dtype)
    close = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    assert_close(got, want, rtol=close, atol=close)


def test_a_checkpoint_in_shards(tmp_path):
    network = made("mamba2(d_state=3, d_head=4)*2")
    save_hf(network, network.config, tmp_path, shard=2000)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(names) > 3
    assert names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert all(path.stat().st_size < 4000 for path in tmp_path.glob("*.safetensors"))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in network.parameters())
    ids = torch.randint(0, 24, (1, 7))
    assert torch.equal(read_pretrained(tmp_path).network(ids)[0], network(ids)[0])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    with torch.no_grad(), Wide():
        assert_close(theirs(ids).logits, network(ids)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("layers", "line"),
    [
        ("mamba lstm", "transformers has no model with LSTM; it has Mamba alone and Mamba2 alone"),
        ("mamba mamba2(d_head=4)", "all layers have the same options"),
        ("mamba(d_state=2) mamba(d_state=3)", "all layers have the same options"),
        ("mamba(hold='zoh')", "has no Mamba with hold='zoh'"),
        ("mamba2(gate={'norm': False})", "has no Mamba-2 with this gate"),
        ("mamba2(gate={'norm_first': True})", "has no Mamba-2 with this gate"),
        ("mamba2(gate={'eps': 1e-3})", "has no Mamba-2 with this gate"),
        ("mamba2(n_groups=2, d_head=4, gate={'groups': 1})", "has no Mamba-2 with this gate"),
        ("mamba3(d_head=4, d_state=4)", "no model with Mamba3"),
    ],
)
def test_what_transformers_has_no_model_for(layers, line, tmp_path):
    network = made(layers)
    with pytest.raises(BadInput, match=line):
        save_hf(network, network.config, tmp_path / "model")
    assert not [*tmp_path.iterdir()]


def test_a_folder_is_whole_or_not_there(tmp_path):
    network = made("mamba")

    def ill(folder):
        assert (folder / "model.safetensors").is_file()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        save_hf(network, network.config, tmp_path / "model", also=ill)
    assert not [*tmp_path.iterdir()]
    save_hf(network, network.config, tmp_path / "model", also=lambda folder: (folder / "more").touch())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert (tmp_path / "model" / "more").is_file()
    with pytest.raises(BadInput, match="model: exists; name another folder"):
        save_hf(network, network.config, tmp_path / "model")
    with pytest.raises(BadInput, match="narrow weights are not written"):
        save_hf(narrowed(network, "int8"), network.config, tmp_path / "other")
