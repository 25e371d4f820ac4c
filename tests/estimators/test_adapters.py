"""Adapters: they add nothing at first, every form sees them, nothing else learns, and PEFT and transformers read them."""

import json

import peft
import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

from conca.estimators.adapters import is_adapted, load_adapter, lora, merge, save_adapter
from conca.infer.decoder import Decoder
from conca.models.language import LanguageConfig, LanguageNetwork
from conca.types import BadInput

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])


def network(layers, d_model=16):
    return LanguageNetwork(LanguageConfig(11, 11, layers, d_model)).eval()


def disturbed(net):
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)


@pytest.mark.parametrize("layers", ["mamba(d_state=4) mamba2(d_state=4,d_head=8)", "s5(d_state=8) attention"])
def test_every_form_sees_an_adapter_and_merging_changes_nothing(layers, tmp_path):
    net = network(layers)
    plain = net(IDS)[0].detach()
    frozen = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    lora(net, 3, seed=1)
    torch.testing.assert_close(net(IDS)[0], plain, rtol=0, atol=0)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(IDS)[0].square().sum().backward()
        optimizer.step()
    moved = net(IDS)[0].detach()
    assert (moved - plain).abs().max() > 1e-2
    own = {name.replace(".base_layer", ""): tensor for name, tensor in net.state_dict().items() if "lora_" not in name}
    assert own.keys() == frozen.keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in frozen.items())
    fast = Decoder(net.stack, embedding=net.embedding, norm=net.norm, head=net.embedding)
    for stepping in (net, fast):
        state = net.init_state(2)
        for t in range(8):
            logits, state = stepping.step(IDS[:, t], state)
            torch.testing.assert_close(logits, moved[:, t])
    save_adapter(net, tmp_path / "adapter")
    merge(net)
    assert not is_adapted(net) and net.state_dict().keys() == frozen.keys()
    torch.testing.assert_close(net(IDS)[0], moved)
    other = network(layers)
    other.load_state_dict(frozen)
    load_adapter(other, tmp_path / "adapter")
    torch.testing.assert_close(other(IDS)[0], moved)


def published(kind):
    """A tiny model of transformers, and ours with its weights."""
    small = {"vocab_size": 11, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "use_cache": False}
    small["tie_word_embeddings"] = True
    if kind == "mamba":
        model = MambaForCausalLM(MambaConfig(**small))
        net = network("mamba(d_state=4)*2")
    else:
        model = Mamba2ForCausalLM(Mamba2Config(**small, num_heads=4, head_dim=8, n_groups=1, chunk_size=4))
        net = network("mamba2(d_state=4,d_head=8)*2")
    theirs, ours = model.eval().double().state_dict(), {}
    names = {"embeddings": "embedding", "embedding": "embedding", "norm_f": "norm"}
    for name, tensor in theirs.items():
        parts = name.removeprefix("backbone.").split(".")
        if parts[0] in names:
            ours[f"{names[parts[0]]}.weight"] = tensor
        elif parts[0] == "layers":
            rest = ".".join(parts[2:]).replace("mixer.", "inner.").replace("dt_proj.bias", "dt_bias")
            tensor = tensor[:, 0].flip(1) if rest.endswith("conv1d.weight") else tensor
            ours[f"stack.parts.{parts[1]}.{rest.replace('conv1d', 'conv')}"] = tensor
    net.load_state_dict(ours)
    return model, net


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_peft_puts_it_beside_the_model_of_transformers(kind, tmp_path):
    model, net = published(kind)
    with torch.no_grad():
        torch.testing.assert_close(net(IDS)[0], model(IDS).logits.double(), rtol=1e-5, atol=1e-6)
        lora(net, 2, family=kind)
        disturbed(net)
        save_adapter(net, tmp_path, family=kind, base="somebody/model")
        said = json.loads((tmp_path / "adapter_config.json").read_text())
        assert said["peft_type"] == "LORA" and said["r"] == 2 and said["base_model_name_or_path"] == "somebody/model"
        before = model(IDS).logits.double()
        theirs = peft.PeftModel.from_pretrained(model, str(tmp_path)).eval()(IDS).logits.double()
        assert (theirs - before).abs().max() > 1e-3
        torch.testing.assert_close(net(IDS)[0], theirs, rtol=1e-5, atol=1e-6)


def test_an_adapter_of_peft_is_read(tmp_path):
    model, net = published("mamba")
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["in_proj", "x_proj"], task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(model, config).eval()
    disturbed(theirs)
    theirs.save_pretrained(str(tmp_path))
    load_adapter(net, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(net(IDS)[0], theirs(IDS).logits.double(), rtol=1e-5, atol=1e-6)


def test_ill_adapters(tmp_path):
    with pytest.raises(BadInput, match=r"would touch nothing: .* they have none at all"):
        lora(network("lstm", 8), 2)
    with pytest.raises(BadInput, match=r"called queries; they have .*in_proj"):
        lora(network("mamba(d_state=4)"), 2, ["queries"])
    with pytest.raises(BadInput, match=r"called 'inproj'; did you mean 'in_proj'"):
        lora(network("mamba(d_state=4)"), 2, ["x_proj", "inproj"])
    net = network("mamba(d_state=4)*2")
    with pytest.raises(BadInput, match="no adapter to save"):
        save_adapter(net, tmp_path)
    lora(net, 2)
    with pytest.raises(BadInput, match="has an adapter already"):
        lora(net, 2)
    with pytest.raises(BadInput, match=r"adapter_config\.json is missing"):
        load_adapter(network("mamba(d_state=4)"), tmp_path)
    save_adapter(net, tmp_path / "a")
    with pytest.raises(BadInput, match=r"belongs beside 'stack\.parts\.1"):
        load_adapter(network("mamba(d_state=4)"), tmp_path / "a")
    with pytest.raises(BadInput, match="the map has width"):
        load_adapter(network("mamba(d_state=4)*2", 32), tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match="cannot be read"):
        load_adapter(network("mamba(d_state=4)*2"), tmp_path / "a")
