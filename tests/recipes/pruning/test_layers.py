"""Layer pruning: layers let their input through, for good or for a while."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recipes.pruning.runs import Mixed, Training
from trainwright.recipes.manual_loop import ManualLoop
from trainwright.recipes.pruning.layers import LayerPruningModifier, PassThrough, returned_length


def test_layers_that_are_out_do_nothing() -> None:
    training = Training([LayerPruningModifier(layers=["second"], start_epoch=1)]).run(3)
    model = training.model
    assert isinstance(model, Mixed)
    count = sum(len(group["params"]) for group in training.optimizer.param_groups)
    training.run(6)
    assert isinstance(model.get_submodule("second"), PassThrough)
    assert sum(len(group["params"]) for group in training.optimizer.param_groups) == count - 2
    assert "second.weight" not in model.state_dict()


def test_layers_that_come_back_are_as_they_were() -> None:
    training = Training([LayerPruningModifier(layers=["second"], start_epoch=1, end_epoch=2)]).run(4)
    before = training.model.get_parameter("second.weight").detach().clone()
    names = set(training.model.state_dict())
    x = torch.randn(2, 8, 6)
    assert training.model.get_submodule("second")(x) is x
    training.run(7)
    assert torch.equal(training.model.get_parameter("second.weight"), before)
    assert set(training.model.state_dict()) == names
    training.run(8)
    assert training.model.get_submodule("second")(x) is not x
    training.run(10)
    assert not torch.equal(training.model.get_parameter("second.weight"), before)


def test_from_the_start_the_optimizer_never_trains_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    drive = ManualLoop([LayerPruningModifier(layers=["re:1"])], model, optimizer, 4)
    drive.loss(model(torch.randn(2, 4)).sum()).backward()
    drive.step()
    assert [type(layer).__name__ for layer in model] == ["Linear", "PassThrough", "Linear"]
    assert len(optimizer.param_groups[0]["params"]) == 4


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2"])
@pytest.mark.parametrize("end", [-1.0, 1.0])
def test_blocks_of_transformers(kind: str, end: float) -> None:
    import transformers

    small: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 20}
    models = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**small, intermediate_size=16)),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, intermediate_size=16)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=20)
        ),
    }
    blocks = {"bert": "encoder.layer", "llama": "model.layers", "gpt2": "transformer.h"}
    torch.manual_seed(0)
    model = models[kind]().eval()
    tokens = torch.randint(0, 20, (2, 5))
    drive = ManualLoop([LayerPruningModifier(layers=[f"{blocks[kind]}.1"], end_epoch=end)], model, None, 2)
    drive.start()
    with torch.no_grad():
        pruned = model(tokens)[0]
    torch.manual_seed(0)
    shorter = models[kind]().eval()
    layers: Any = shorter.get_submodule(blocks[kind])
    del layers[1]
    shorter.config.num_hidden_layers = 2
    with torch.no_grad():
        assert torch.allclose(pruned, shorter(tokens, use_cache=False)[0], atol=1e-6)


class Grown(nn.Module):
    def forward(self, x: Tensor) -> Any:
        weights = None
        outputs = (x,) + (weights,)  # noqa: RUF005
        return outputs


def test_results_keep_their_form() -> None:
    assert returned_length(Grown()) == 1
    assert PassThrough(Grown())(3) == (3,)
    assert returned_length(nn.TransformerEncoderLayer(4, 2)) == 0
    assert PassThrough(nn.Linear(2, 2))(input=5) == 5
    layer = nn.LSTM(2, 2)
    assert PassThrough(layer).hidden_size == 2


def test_layers_inside_layers_go_once() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    modifier = LayerPruningModifier(layers=["re:0.*"])
    modifier.prepare_model(model)
    assert modifier.values_to_save() == {"names": ["0"], "are_out": True}
    with pytest.raises(ValueError, match="fits nothing"):
        LayerPruningModifier(layers=["9"]).prepare_model(model)
