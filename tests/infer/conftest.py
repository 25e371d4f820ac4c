"""What the tests of writing have in common."""

import pytest
import torch

from conca.models.language import LanguageConfig, LanguageNetwork


@pytest.fixture
def theirs():
    """Makes a small model of transformers, and ours with its weights."""
    from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

    def made(kind):
        common = {
            "vocab_size": 15,
            "hidden_size": 8,
            "num_hidden_layers": 2,
            "state_size": 3,
            "pad_token_id": 0,
            "bos_token_id": 1,
        }
        if kind == "mamba":
            model = MambaForCausalLM(MambaConfig(**common, eos_token_id=2, time_step_rank=2))
            layers = "mamba(d_state=3,dt_rank=2)*2"
        else:
            sizes = {"num_heads": 4, "head_dim": 4, "n_groups": 1, "chunk_size": 4}
            model = Mamba2ForCausalLM(Mamba2Config(**common, eos_token_id=2, tie_word_embeddings=True, **sizes))
            layers = "mamba2(d_head=4,d_state=3)*2"
        model = model.double().eval()
        net = LanguageNetwork(LanguageConfig(15, 15, layers, 8)).eval()
        named = {}
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.4 * torch.randn_like(p))
            for name, value in model.backbone.state_dict().items():
                for old, new in {
                    "embeddings.": "embedding.",
                    "norm_f.": "norm.",
                    "layers.": "stack.parts.",
                    ".mixer.": ".inner.",
                }.items():
                    name = name.replace(old, new)
                name = name.replace(".dt_proj.bias", ".dt_bias").replace("conv1d", "conv")
                named[name] = value[:, 0].flip(1) if name.endswith("conv.weight") else value
            net.load_state_dict(named)
        return model, net

    return made
