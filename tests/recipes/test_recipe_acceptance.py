"""What a recipe must reach on handwritten digits: thresholds on the mean over seeds, exactness in each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows
from tests.recipes.digits import (
    MLP,
    accuracy,
    control_recipe,
    dense,
    follow,
    one_shot,
    pruning_recipe,
    quantizing_recipe,
    trainer_for,
)
from trainwright import EMACallback, Trainer, TrainerCallback, TrainingArguments
from trainwright.recipes.pruning.sparsity import interpolate

MakeArgs = Callable[..., TrainingArguments]


def seeds(request: pytest.FixtureRequest) -> range:
    return range(request.config.getoption("seeds"))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


class EveryStep(TrainerCallback):
    """Looks at the weights after each update, when masks have been put on, and after each step, when they changed."""

    def __init__(self, look: Callable[[Any, nn.Module], None]) -> None:
        self.look = look

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.look(state, kwargs["model"])

    on_step_end = on_optimizer_step


# ---- A: exactness


@pytest.mark.slow
def test_realised_sparsity_is_the_target_after_every_update(tmp_path: Path, seed: int) -> None:
    """With Adam's momentum pulling at masked weights, and again after a save and a resume."""
    recipe = pruning_recipe(0.9, 3.0, 4.0)

    def check(state: Any, model: nn.Module) -> None:
        epoch = (state.epoch or 0.0) + 1e-9
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            zeros = parameter.numel() - int(parameter.count_nonzero())
            if epoch < 1:
                continue
            # The schedule moves at the first step that reaches the next quarter of an epoch.
            quarter = max(1.0 + 0.25 * k for k in range(9) if 1.0 + 0.25 * k <= epoch)
            reached = math.ceil(quarter * 43 - 1e-6) / 43
            target = interpolate((min(reached, 3.0) - 1.0) / 2.0, 0.3, 0.9)
            if abs(epoch - reached) < 0.5 / 43:
                # Between this step's update and its end the mask is about to change.
                continue
            assert abs(zeros - target * parameter.numel()) <= 1, (name, epoch, zeros / parameter.numel(), target)

    torch.manual_seed(seed)
    model = MLP(48)
    options: dict[str, Any] = {"recipe": recipe, "callbacks": [EveryStep(check)]}
    saving = {"save_strategy": "steps", "save_steps": 60}
    trainer_for(model, tmp_path, seed, 1, args=saving, **options).train()
    again = MLP(48)
    resumed = trainer_for(again, tmp_path, seed, 1, args=saving, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-120"))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    stored = tmp_path / "model"
    resumed.save_model(stored)
    from safetensors.torch import load_file

    for name, tensor in load_file(stored / "model.safetensors").items():
        if tensor.ndim > 1:
            assert abs((tensor == 0).sum().item() - 0.9 * tensor.numel()) <= 1, name
            assert not torch.signbit(tensor[tensor == 0]).any(), "a zero is a zero, not -0.0"


# ---- B: the schedule


def test_the_cubic_schedule_in_a_run(make_args: MakeArgs) -> None:
    recipe = """
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: ["first.weight"], init_sparsity: 0.05, final_sparsity: 0.8, start_epoch: 0, end_epoch: 4,
       update_frequency: 1}
"""
    seen: list[float] = []

    class Big(Plain):
        def __init__(self) -> None:
            super().__init__(width=500)

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(float((kwargs["model"].first.weight == 0).double().mean()))

        on_epoch_end = on_train_begin

    args = make_args(per_device_train_batch_size=4)
    rows = classification_rows(16, width=500)
    Trainer(Big(), args, train_dataset=rows, callbacks=[Look()], recipe=recipe).train()
    expected = [0.05, 0.48359375, 0.70625, 0.78828125, 0.8]
    # 4000 weights: the nearest whole number of zeros.
    assert seen == pytest.approx(expected, abs=0.5 / 4000)


# ---- C: accuracy on digits


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_wide_network_keeps_its_accuracy_at_90_percent(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found, floors, shares = [], [], []
    for seed in seeds(request):
        model, before = dense(512, tmp_path, seed)
        _, after = follow(model, pruning_recipe(0.9, 20, 30), tmp_path, seed)
        floor = one_shot(model, 0.9, tmp_path, seed)
        found.append(after)
        floors.append(floor)
        shares.append(after / before)
    assert mean(shares) >= 0.99
    assert mean(found) - mean(floors) >= 20


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_narrow_network_at_90_and_95_percent(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shares: dict[float, list[float]] = {0.9: [], 0.95: []}
    for seed in seeds(request):
        model, before = dense(128, tmp_path, seed)
        for sparsity, found in shares.items():
            _, after = follow(model, pruning_recipe(sparsity, 25, 40), tmp_path, seed)
            found.append(after / before)
    assert mean(shares[0.9]) >= 0.975
    assert mean(shares[0.95]) >= 0.95


# ---- E: quantization on digits


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_int8_training_keeps_zeros_and_accuracy(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shares = []
    for seed in seeds(request):
        model, _ = dense(512, tmp_path, seed)
        sparse, before = follow(model, pruning_recipe(0.9, 20, 30), tmp_path, seed)
        quantized, after = follow(sparse, quantizing_recipe(8, 4, constant=True), tmp_path, seed)
        shares.append(after / before)
        for (name, old), new in zip(sparse.named_parameters(), quantized.parameters(), strict=True):
            if old.ndim > 1:
                assert torch.equal(old == 0, new == 0), name
    assert mean(shares) >= 0.99


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_two_bits_can_be_learned(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Never worse than rounding at the end, and better on the whole, with and without as much training before it."""
    shares, gains = [], []
    for seed in seeds(request):
        model, before = dense(512, tmp_path, seed)
        _, rounded = follow(model, quantizing_recipe(2, 0), tmp_path, seed, calibrates=True)
        longer, _ = follow(model, control_recipe(12), tmp_path, seed)
        _, control = follow(longer, quantizing_recipe(2, 0), tmp_path, seed, calibrates=True)
        _, learned = follow(model, quantizing_recipe(2, 12), tmp_path, seed)
        assert learned >= max(rounded, control)
        gains.append(learned - max(rounded, control))
        shares.append(learned / before)
    assert mean(gains) > 0
    assert mean(shares) >= 0.99


# ---- G: resume


RECIPES = {
    "gmp": pruning_recipe(0.8, 2.0, 3.0),
    "everything": """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
  - !LearningRateFunctionModifier
      {lr_func: cosine, init_lr: 0.01, final_lr: 0.001, start_epoch: 0.0, end_epoch: 3.0}
  - !SetWeightDecayModifier {weight_decay: 0.01, start_epoch: 1.0}
  - !TrainableParamsModifier {params: ["layers.1.bias"], trainable: False, start_epoch: 0.5, end_epoch: 1.5}
pruning_modifiers:
  - !MovementPruningModifier
      {params: ["layers.3.weight"], init_sparsity: 0.1, final_sparsity: 0.7, start_epoch: 0.2, end_epoch: 2.0,
       update_frequency: 0.3}
  - !GlobalMagnitudePruningModifier
      {params: ["layers.1.weight", "layers.5.weight"], init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0.5,
       end_epoch: 2.5, update_frequency: 0.2}
distillation_modifiers:
  - !DistillationModifier {hardness: 0.3}
""",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The recipe sets the learning rate")
@pytest.mark.parametrize("name", list(RECIPES))
@pytest.mark.parametrize("stop", [7, 86, 101])
def test_resume_at_any_step_gives_the_same_bits(tmp_path: Path, name: str, stop: int, seed: int) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

    def run(folder: str, **options: Any) -> tuple[Trainer, nn.Module]:
        torch.manual_seed(seed)
        model = MLP(24)
        teacher = "self" if name == "everything" else None
        args = {"optim": "adamw_torch", "logging_strategy": "steps", "logging_steps": 10}
        return (
            trainer_for(model, tmp_path / folder, seed, 1, recipe=RECIPES[name], teacher=teacher, args=args, **options),
            model,
        )

    whole, straight = run("whole")
    whole.train()
    run("parts", callbacks=[Stop()])[0].train()
    resumed, parted = run("parts")
    resumed.train(resume_from_checkpoint=True)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), parted.parameters(), strict=True))
    for one, other in zip(whole.modifiers, resumed.modifiers, strict=True):
        masks, others = getattr(one, "masks", {}), getattr(other, "masks", {})
        assert masks.keys() == others.keys()
        assert all(torch.equal(masks[key], others[key]) for key in masks)
    later = [entry for entry in whole.state.log_history if entry["step"] > stop and "loss" in entry]
    assert later == [entry for entry in resumed.state.log_history if entry["step"] > stop and "loss" in entry]


# ---- with the rest of a run


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 8},
        {"bf16": True},
        {"micro_batch": 5},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"optim": "sgd", "learning_rate": 0.05},
    ],
    ids="-".join,
)
def test_masks_hold_with(tmp_path: Path, options: dict[str, Any]) -> None:
    model = MLP(24)
    trainer = trainer_for(model, tmp_path, 0, 1, recipe=pruning_recipe(0.85, 1.5, 2.0), args=options)
    trainer.train()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert abs(int((parameter == 0).sum()) - 0.85 * parameter.numel()) <= 1, name


def test_averaged_weights_are_as_sparse(tmp_path: Path) -> None:
    model = MLP(24)
    average = EMACallback(decay=0.9, use_at_end=True)
    trainer = trainer_for(model, tmp_path, 0, 1, recipe=pruning_recipe(0.85, 1.5, 2.0), callbacks=[average])
    trainer.train()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert abs(int((parameter == 0).sum()) - 0.85 * parameter.numel()) <= 1, name


@pytest.mark.slow
def test_best_is_looked_for_only_when_the_model_is_final(tmp_path: Path) -> None:
    model = MLP(24)
    args = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
    }
    trainer = trainer_for(model, tmp_path, 0, 1, recipe=pruning_recipe(0.95, 3.0, 4.0), args=args)
    trainer.train()
    assert trainer.state.best_global_step is not None
    assert trainer.state.best_global_step >= 3 * 43
    for parameter in model.parameters():
        if parameter.ndim > 1:
            assert abs(int((parameter == 0).sum()) - 0.95 * parameter.numel()) <= 1


@pytest.mark.slow
def test_an_earlier_best_keeps_its_own_masks(tmp_path: Path) -> None:
    """Asked for by hand: the best model is loaded as it was, not with the zeros of the end."""
    model = MLP(24)
    args = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "best_model_after_epoch": 0,
    }
    trainer = trainer_for(model, tmp_path, 0, 1, recipe=pruning_recipe(0.98, 3.0, 3.0), args=args)
    trainer.train()
    best = Path(str(trainer.state.best_model_checkpoint))
    from safetensors.torch import load_file

    stored = load_file(best / "model.safetensors")
    assert trainer.state.best_global_step != 3 * 43
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[name])


def test_the_recipe_decides_how_long_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_for(MLP(8), tmp_path, 0, 7, recipe=pruning_recipe(0.5, 1.5, 2.0))
    assert "The recipe trains for 2 epochs: num_train_epochs=7 does not act." in caplog.text
    assert trainer.train().global_step == 2 * 43


def test_a_stream_follows_the_recipe_over_max_steps(make_args: MakeArgs) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            while True:
                yield from classification_rows(16)

    seen = {}

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen[state.global_step] = int((kwargs["model"].first.weight == 0).sum())

    recipe = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
pruning_modifiers:
  - !GMPruningModifier
      {params: ["first.weight"], init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 1, end_epoch: 3,
       update_frequency: 1, inter_func: linear}
"""
    args = make_args(max_steps=8, per_device_train_batch_size=4)
    Trainer(Plain(), args, train_dataset=Stream(), callbacks=[Look()], recipe=recipe).train()
    assert seen == {1: 0, 2: 0, 3: 0, 4: 12, 5: 12, 6: 24, 7: 24, 8: 24}


def test_saved_models_and_checkpoints_carry_the_recipe(tmp_path: Path) -> None:
    from trainwright.recipes.language.reading import read_recipe

    recipe = pruning_recipe(0.5, 1.0, 1.0)
    trainer = trainer_for(
        MLP(8),
        tmp_path,
        0,
        1,
        recipe=recipe,
        metadata_args=["learning_rate", "seed"],
        args={"save_strategy": "epoch"},
    )
    trainer.train()
    trainer.save_model(tmp_path / "model")
    for folder in (tmp_path / "model", tmp_path / "checkpoint-43"):
        saved = read_recipe(folder / "recipe.yaml")
        assert saved.modifiers == read_recipe(recipe).modifiers
        assert saved.metadata is not None
        assert saved.metadata["learning_rate"] == 1e-3
    assert accuracy(trainer) > 0
    assert json.loads((tmp_path / "checkpoint-43" / "manifest.json").read_text())


def test_a_run_goes_on_only_with_its_recipe(tmp_path: Path) -> None:
    saving = {"save_strategy": "epoch"}
    trainer_for(MLP(8), tmp_path, 0, 1, recipe=pruning_recipe(0.5, 1.0, 2.0), args=saving).train()
    with pytest.raises(ValueError, match="saved by a run with a recipe: pass recipe="):
        trainer_for(MLP(8), tmp_path, 0, 3, args=saving).train(resume_from_checkpoint=True)
    other = "pruning_modifiers:\n  - !ConstantPruningModifier {params: __ALL_PRUNABLE__, end_epoch: 3}\n"
    with pytest.raises(ValueError, match="has EpochRangeModifier, GMPruningModifier, this one Constant"):
        trainer_for(MLP(8), tmp_path, 0, 3, recipe=other, args=saving).train(resume_from_checkpoint=True)


def test_a_learning_rate_in_the_recipe_replaces_the_schedule(tmp_path: Path) -> None:
    from trainwright.config.warnings import TrainwrightWarning

    recipe = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 4}
  - !SetLearningRateModifier {learning_rate: 0.02, start_epoch: 0}
  - !LearningRateFunctionModifier {lr_func: linear, init_lr: 0.02, final_lr: 0.0, start_epoch: 2, end_epoch: 4}
"""
    rates: list[float] = []

    class Look(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rates.append(kwargs["optimizer"].param_groups[0]["lr"])

    args = {"lr_scheduler_type": "linear", "warmup_steps": 10}
    trainer = trainer_for(MLP(8), tmp_path, 0, 1, recipe=recipe, args=args, callbacks=[Look()])
    with pytest.warns(TrainwrightWarning, match="The recipe sets the learning rate"):
        trainer.train()
    assert rates[: 2 * 43] == [0.02] * (2 * 43)
    assert rates[2 * 43 :] == pytest.approx([0.02 * (1 - k / 86) for k in range(86)])
