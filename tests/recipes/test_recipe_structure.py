"""Networks that become smaller in the middle of a run, and what has to follow them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import Plain, classification_rows
from trainwright import EMACallback, Trainer, TrainerCallback, TrainingArguments
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
from trainwright.recipes.pruning.obs import OBSPruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.training.recipe import refuse_for_sharded
from trainwright.training.recipe_folder import restore_recipe

RECIPE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 4.0}
pruning_modifiers:
  - !StructuredPruningModifier
      param_groups: [["layers.0.weight"], ["layers.3.weight"]]
      mask_type: filter
      init_sparsity: 0.0
      final_sparsity: 0.5
      start_epoch: 0.0
      end_epoch: 2.0
      update_frequency: 1.0
  - !LayerThinningModifier
      structure_type: filter
      start_epoch: 2.0
      update_epochs: [2.0]
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(6 * 4 * 4, 10),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


def rows(count: int = 64) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randn(count, 1, 8, 8, generator=generator)
    return [{"pixels": pixels[i], "labels": torch.tensor(i % 10)} for i in range(count)]


def train(folder: Path, *, resume: str | None = None, callbacks: Any = None, **more: Any) -> tuple[Trainer, nn.Module]:
    torch.manual_seed(1)
    model = Net()
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        save_strategy="steps",
        save_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        report_to="none",
        **more,
    )
    trainer = Trainer(model, args, train_dataset=rows(), recipe=RECIPE, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, model


@pytest.mark.slow
def test_the_network_is_really_smaller_and_goes_on_training(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}

    class Sizes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            sizes[state.global_step] = sum(p.numel() for p in kwargs["model"].parameters())

    trainer, model = train(tmp_path, callbacks=[Sizes()])
    assert sizes[15] == sum(p.numel() for p in Net().parameters())
    layers: Any = model.layers
    assert (layers[0].out_channels, layers[3].in_channels, layers[3].out_channels) == (4, 4, 3)
    assert layers[7].in_features == 3 * 16
    assert sizes[16] == sizes[32] == sum(p.numel() for p in model.parameters())
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in model.parameters()}
    for parameter in model.parameters():
        assert trainer.optimizer.state[parameter]["exp_avg"].shape == parameter.shape


@pytest.mark.slow
@pytest.mark.parametrize("stop", [10, 16, 25])
def test_resume_before_at_and_after_it(tmp_path: Path, stop: int) -> None:
    _, whole = train(tmp_path)
    _, parts = train(tmp_path, resume=str(tmp_path / f"checkpoint-{stop}"))
    assert whole.state_dict().keys() == parts.state_dict().keys()
    for one, other in zip(whole.state_dict().values(), parts.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_compiled_and_averaged(tmp_path: Path) -> None:
    average = EMACallback(decay=0.5, use_at_end=True)
    _, plain = train(tmp_path / "plain", callbacks=[EMACallback(decay=0.5, use_at_end=True)])
    _, model = train(tmp_path, callbacks=[average], torch_compile=True, torch_compile_backend="eager")
    for one, other in zip(plain.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    assert average.state_dict()["tensors"]["layers.0.weight"].shape == (4, 1, 3, 3)


@pytest.mark.slow
def test_a_saved_small_network_is_read_into_one_as_it_was_built(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer, model = train(tmp_path)
    trainer.save_model(tmp_path / "model")
    fresh = Net()
    restore_recipe(fresh, tmp_path / "model")
    fresh.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(fresh.eval()(x), model.eval()(x))


def test_what_needs_whole_tensors_is_refused_on_shards(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Plain()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        gradual: dict[str, Any] = {
            "params": "__ALL_PRUNABLE__",
            "init_sparsity": 0.0,
            "final_sparsity": 0.5,
            "start_epoch": 0,
            "end_epoch": 1,
            "update_frequency": 1,
        }
        with pytest.raises(ValueError, match="OBSPruningModifier needs them whole"):
            refuse_for_sharded([OBSPruningModifier(**gradual)])
        refuse_for_sharded([MagnitudePruningModifier(**gradual)])
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_masks_beside_a_saved_model_take_a_bit_each(tmp_path: Path) -> None:
    from trainwright.training.recipe_folder import read_recipe_state

    trainer, _ = train(tmp_path)
    trainer.save_model(tmp_path / "model")
    saved = read_recipe_state(tmp_path / "model")
    [structured] = [m for m in trainer.modifiers if isinstance(m, StructuredPruningModifier)]
    stored = saved["StructuredPruningModifier.0"]["tensors"]
    assert {name.split(".")[1] for name in structured.masks} == {"0", "1", "3"}, "never the classes"
    for name, mask in structured.masks.items():
        assert torch.equal(stored[f"mask.{name}"], mask)
    wide = Plain(width=4000)
    args = TrainingArguments(str(tmp_path / "wide"), disable_tqdm=True, use_cpu=True, save_strategy="no", max_steps=1)
    half = MagnitudePruningModifier(
        params=["first.weight"], init_sparsity=0.5, final_sparsity=0.5, start_epoch=0, end_epoch=1
    )
    other = Trainer(wide, args, train_dataset=classification_rows(8, width=4000), recipe=[half])
    other.train()
    other.save_model(tmp_path / "wide" / "model")
    weights, state = (
        (tmp_path / "wide" / "model" / name).stat().st_size
        for name in ("model.safetensors", "recipe_state.safetensors")
    )
    assert state < 0.05 * weights


@pytest.mark.slow
def test_a_checkpoint_of_the_model_alone_knows_its_masks(tmp_path: Path) -> None:
    from trainwright.training.recipe_folder import read_recipe_state

    trainer, _ = train(tmp_path, save_only_model=True)
    states = read_recipe_state(tmp_path / "checkpoint-32")
    [structured] = [m for m in trainer.modifiers if isinstance(m, StructuredPruningModifier)]
    stored = states["StructuredPruningModifier.0"]["tensors"]
    assert structured.masks
    assert all(torch.equal(stored[f"mask.{name}"], mask) for name, mask in structured.masks.items())


def test_what_is_frozen_while_layers_shrink_is_clipped_and_summed_later(tmp_path: Path) -> None:
    frozen = """
  - !TrainableParamsModifier {params: ["layers.7.bias"], trainable: False, start_epoch: 1.0, end_epoch: 3.0}
"""
    torch.manual_seed(1)
    model = Net()
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, save_strategy="no", disable_tqdm=True, use_cpu=True
    )
    recipe = RECIPE.replace("pruning_modifiers:", frozen.strip("\n") + "\npruning_modifiers:")
    trainer = Trainer(model, args, train_dataset=rows(), recipe=recipe)
    trainer.train()
    assert {id(p) for p in trainer.engine.parameters} == {id(p) for p in model.parameters()}
