"""ScheduledModifierManager in loops written by hand."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.compat.sparseml import ScheduledModifierManager
from trainwright.compat.sparseml.pytorch.utils import ModuleExporter
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.modifier import Modifier
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
from trainwright.recipes.quantization.modifier import QuantizationModifier

MakeArgs = Callable[..., TrainingArguments]

ROWS = classification_rows(16)
BATCHES = [
    {name: torch.stack([row[name] for row in ROWS[start : start + 4]]) for name in ("x", "labels")}
    for start in (0, 4, 8, 12)
]
PRUNE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
  - !LearningRateFunctionModifier
      {lr_func: linear, init_lr: 0.2, final_lr: 0.0, start_epoch: 0.0, end_epoch: 3.0}
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: __ALL_PRUNABLE__, init_sparsity: 0.1, final_sparsity: 0.8, start_epoch: 0.5, end_epoch: 2.0,
       update_frequency: 0.25}
"""
DISTIL = "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5, start_epoch: 1.0}\n"
QUANTIZE = "quantization_modifiers:\n  - !QuantizationModifier {start_epoch: 2.0}\n"
LAYER = "pruning_modifiers:\n  - !LayerPruningModifier {layers: [extra], start_epoch: 1.0}\n"


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def loop(manager: ScheduledModifierManager, optimizer: Any, model: nn.Module, first: int = 0, last: int = 12) -> None:
    """Three epochs of four batches, as anybody would write them."""
    for step in range(first, last):
        batch = BATCHES[step % 4]
        optimizer.zero_grad()
        outputs = model(**batch)
        loss = manager.loss_update(
            outputs["loss"],
            model,
            optimizer,
            step / 4,
            4,
            student_outputs=outputs,
            student_inputs={"x": batch["x"], "labels": batch["labels"]},
        )
        loss.backward()
        optimizer.step()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("recipe", [PRUNE, PRUNE + DISTIL, PRUNE + DISTIL + QUANTIZE])
def test_a_loop_by_hand_is_the_trainer_to_the_last_bit(make_args: MakeArgs, recipe: str) -> None:
    model = Plain()
    manager = ScheduledModifierManager.from_yaml(recipe)
    teacher: dict[str, Any] = {"distillation_teacher": Plain(seed=9)} if "Distil" in recipe else {}
    optimizer = manager.modify(model, sgd(model), steps_per_epoch=4, **teacher)
    loop(manager, optimizer, model)
    manager.finalize(model)
    native = Plain()
    args = make_args(per_device_train_batch_size=4, train_sampling_strategy="sequential", max_grad_norm=0)
    more: dict[str, Any] = {"teacher": Plain(seed=9)} if teacher else {}
    trainer = Trainer(native, args, train_dataset=ROWS, recipe=recipe, optimizers=(sgd(native), None), **more)
    with pytest.warns(TrainwrightWarning, match="sets the learning rate"):
        trainer.train()
    assert equal(weights(model), weights(native))
    assert all(int((p == 0).sum()) == round(0.8 * p.numel()) for p in model.parameters() if p.ndim > 1)


@pytest.mark.parametrize("recipe", [PRUNE + DISTIL + QUANTIZE, "composed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_loop_goes_on_to_the_last_bit(recipe: str, when: str, tmp_path: Path) -> None:
    """Staged recipes too, whose state the original cannot give."""

    def make() -> ScheduledModifierManager:
        if recipe != "composed":
            return ScheduledModifierManager.from_yaml(recipe)
        more = PRUNE.replace("0.1,", "__FROM_PARAM__,").replace("0.8", "0.9").replace("3.0", "1.0")
        more = more.replace("start_epoch: 0.5, end_epoch: 2.0", "start_epoch: 0.0, end_epoch: 0.5")
        return ScheduledModifierManager.compose_staged(PRUNE.replace("3.0", "2.0"), more + DISTIL.replace("1.0", "0.0"))

    def begin(model: nn.Module, manager: ScheduledModifierManager, epoch: float) -> tuple[Any, Any]:
        plain = sgd(model)
        return plain, manager.modify(model, plain, 4, epoch=epoch, distillation_teacher=Plain(seed=9))

    whole, manager = Plain(), make()
    loop(manager, begin(whole, manager, 0)[1], whole)
    for stop in (1, 5, 9):
        model, manager = Plain(), make()
        plain, optimizer = begin(model, manager, 0)
        loop(manager, optimizer, model, 0, stop)
        saved = io.BytesIO()
        torch.save([model.state_dict(), plain.state_dict(), manager.state_dict()], saved)
        saved.seek(0)
        states = torch.load(saved, weights_only=True)
        model, manager = Plain(seed=4), make()
        model.load_state_dict(states[0])
        if when == "before":
            manager.load_state_dict(states[2])
        plain, optimizer = begin(model, manager, stop / 4)
        if when == "after":
            manager.load_state_dict(states[2])
        optimizer.load_state_dict(states[1])
        loop(manager, optimizer, model, stop, 12)
        assert equal(weights(model), weights(whole)), stop


def test_a_state_of_another_recipe() -> None:
    state = ScheduledModifierManager.from_yaml(PRUNE).state_dict()
    other = ScheduledModifierManager.from_yaml(QUANTIZE)
    with pytest.raises(IndexError, match=r"MagnitudePruningModifier\.0"):
        other.load_state_dict(state)
    other.load_state_dict(state, strict=False)


class WithExtra(Plain):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.extra = nn.Linear(3, 3)

    def logits(self, x: Tensor) -> Tensor:
        return self.extra(super().logits(x))


@pytest.mark.parametrize("first", [True, False])
def test_a_loop_whose_model_became_smaller_goes_on(first: bool) -> None:
    """With ``apply_structure`` before the optimizer is made, or all at once afterwards."""
    torch.manual_seed(1)
    whole, manager = WithExtra(), ScheduledModifierManager.from_yaml(LAYER)
    began = weights(whole)
    loop(manager, manager.modify(whole, sgd(whole), 4), whole)
    model, manager = WithExtra(), ScheduledModifierManager.from_yaml(LAYER)
    model.load_state_dict(began)
    plain = sgd(model)
    loop(manager, manager.modify(model, plain, 4), model, 0, 6)
    states = [model.state_dict(), plain.state_dict(), manager.state_dict()]
    built, again = WithExtra(), ScheduledModifierManager.from_yaml(LAYER)
    again.load_state_dict(states[2])
    if first:
        again.apply_structure(built, 1.5)
        assert not list(built.extra.parameters())
    optimizer = again.modify(built, sgd(built), 4, epoch=1.5)
    built.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    loop(again, optimizer, built, 6, 12)
    assert equal(weights(built), weights(whole))


# ---- what modify returns


def test_it_is_an_optimizer() -> None:
    model = Plain()
    inner = sgd(model)
    manager = ScheduledModifierManager.from_yaml(
        PRUNE.replace("training", "other").split("pruning")[0] + "modifiers: []"
    )
    modified = manager.modify(model, inner, 4)
    assert isinstance(modified, torch.optim.Optimizer)
    optimizer: Any = modified
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert len(inner.param_groups) == 2
    assert optimizer.state_dict() == inner.state_dict()
    optimizer.something = 3
    assert inner.something == 3  # type: ignore[attr-defined]
    assert (optimizer.wrapped, optimizer.wrapped_optimizer, optimizer.wrapped_manager) == (inner, inner, manager)
    assert optimizer.wrapped_module is model
    assert (optimizer.wrapped_steps, optimizer.wrapped_steps_per_epoch) == (0, 4)
    optimizer.emulated_step()
    assert optimizer.wrapped_epoch == 0.25
    assert "SGD" in repr(optimizer)
    with pytest.raises(ValueError, match="more than 0"):
        manager.modify(model, inner, 0)


@pytest.mark.parametrize("around", ["inner", "modified"])
def test_schedules_of_torch(around: str) -> None:
    """Whichever of the two they were made for."""
    recipe = "pruning" + PRUNE.split("pruning", 1)[1]
    results = []
    for scheduled in ("by hand", around):
        model = Plain()
        manager = ScheduledModifierManager.from_yaml(recipe)
        inner = sgd(model)
        optimizer = manager.modify(model, inner, 4)
        chosen: Any = inner if scheduled == "inner" else optimizer
        schedule = None if scheduled == "by hand" else torch.optim.lr_scheduler.StepLR(chosen, 4, 0.5)
        for step in range(12):
            loop(manager, optimizer, model, step, step + 1)
            if schedule is not None:
                schedule.step()
            elif step % 4 == 3:
                optimizer.param_groups[0]["lr"] *= 0.5
        results.append(weights(model))
        assert optimizer.wrapped_steps == 12
    assert equal(*results)


@pytest.mark.parametrize("way", ["wrap_optim", "around"])
@pytest.mark.parametrize("unscaled", [True, False])
def test_with_a_gradient_scaler(way: str, unscaled: bool) -> None:
    recipe = PRUNE.replace("MagnitudePruning", "MovementPruning")
    plain, manager = Plain(), ScheduledModifierManager.from_yaml(recipe)
    loop(manager, manager.modify(plain, sgd(plain), 4), plain)
    model, manager = Plain(), ScheduledModifierManager.from_yaml(recipe)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inner = sgd(model)
    optimizer: Any = inner
    if way == "wrap_optim":
        scaler = manager.modify(model, inner, 4, wrap_optim=scaler)
    else:
        optimizer = manager.modify(model, inner, 4)
    for step in range(12):
        optimizer.zero_grad()
        scaler.scale(model(**BATCHES[step % 4])["loss"]).backward()
        if unscaled or way == "around":
            # Around an optimizer the scaler unscales by itself, but only just before the step.
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert equal(weights(model), weights(plain))


def test_compiled_models() -> None:
    plain, manager = Plain(), ScheduledModifierManager.from_yaml(PRUNE)
    loop(manager, manager.modify(plain, sgd(plain), 4), plain)
    model, manager = Plain(), ScheduledModifierManager.from_yaml(PRUNE)
    compiled: Any = torch.compile(model, backend="eager")
    loop(manager, manager.modify(compiled, sgd(model), 4), compiled)
    assert equal(weights(model), weights(plain))


def test_parallel_models_have_names_of_their_own_unless_told_otherwise() -> None:
    named = PRUNE.replace("__ALL_PRUNABLE__", "[first.weight]")
    for allow, recipe in ((False, named), (True, named.replace("first", "module.first"))):
        model = Plain()
        parallel = nn.DataParallel(model)
        manager = ScheduledModifierManager.from_yaml(recipe)
        optimizer = manager.modify(parallel, sgd(model), 4, allow_parallel_module=allow)
        loop(manager, optimizer, model)
        assert int((model.first.weight == 0).sum()) == round(0.8 * model.first.weight.numel())


def test_loops_that_call_the_manager_themselves() -> None:
    model, manager = Plain(), ScheduledModifierManager.from_yaml(PRUNE)
    optimizer = sgd(model)
    manager.initialize(model)
    for step in range(12):
        epoch = step / 4
        optimizer.zero_grad()
        loss = manager.loss_update(model(**BATCHES[step % 4])["loss"], model, optimizer, epoch, 4)
        loss.backward()
        manager.update(model, optimizer, epoch, 4)
        manager.optimizer_pre_step(model, optimizer, epoch, 4)
        optimizer.step()
        manager.optimizer_post_step(model, optimizer, epoch, 4)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * (1 - epoch / 3))
    manager.finalize(model)
    assert all(int((p == 0).sum()) == round(0.8 * p.numel()) for p in model.parameters() if p.ndim > 1)
    driven = ScheduledModifierManager.from_yaml(PRUNE)
    driven.modify(model, optimizer, 4)
    with pytest.raises(ValueError, match="by itself"):
        driven.update(model, optimizer, 0.0, 4)


def test_switched_off_it_is_a_plain_loop() -> None:
    plain, model = Plain(), Plain()
    optimizer = sgd(plain)
    for step in range(12):
        optimizer.zero_grad()
        plain(**BATCHES[step % 4])["loss"].backward()
        optimizer.step()
    manager = ScheduledModifierManager.from_yaml(DISTIL)
    driven = manager.modify(model, sgd(model), 4, distillation_teacher="self")
    manager.enabled = False
    loop(manager, driven, model)
    assert equal(weights(model), weights(plain))


# ---- teachers


def test_teachers_of_a_loop() -> None:
    model = Plain()
    with pytest.raises(ValueError, match="needs a teacher"):
        ScheduledModifierManager.from_yaml(DISTIL).modify(model, sgd(model), 4, distillation_teacher=None)
    with pytest.warns(TrainwrightWarning, match="there is no distillation_teacher="):
        ScheduledModifierManager.from_yaml(DISTIL).modify(model, sgd(model), 4)
    manager = ScheduledModifierManager.from_yaml(DISTIL.replace("1.0", "0.0"))
    optimizer = manager.modify(model, sgd(model), 4, distillation_teacher="self")
    outputs = model(**BATCHES[0])
    with pytest.raises(ValueError, match="pass student_outputs="):
        optimizer.loss_update(outputs["loss"])
    same = optimizer.loss_update(outputs["loss"], outputs, BATCHES[0])
    torch.testing.assert_close(same, 0.5 * outputs["loss"])


def test_inputs_that_only_the_teacher_gets() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    manager = ScheduledModifierManager.from_yaml(
        DISTIL.replace("0.5", "1.0").replace("start_epoch: 1.0", "end_epoch: 9")
    )
    model = nn.Linear(3, 3)
    manager.modify(model, sgd(model), 4, distillation_teacher=Two())
    a, b, zero = torch.randn(2, 3), torch.randn(2, 3), torch.tensor(0.0)
    wanted = 4 * F.kl_div(F.log_softmax(a / 2, -1), F.softmax((a + b) / 2, -1), reduction="batchmean")
    ways: list[dict[str, Any]] = [
        {"student_inputs": (a, b)},
        {"student_inputs": {"x": a}, "teacher_inputs": {"a": a, "b": b}},
    ]
    for inputs in ways:
        found = manager.loss_update(zero, model, None, 0, 4, student_outputs=a, **inputs)
        torch.testing.assert_close(found, wanted)


# ---- data


def builder(options: Any) -> Iterator[tuple[list[Any], dict[str, Any], Any]]:
    while True:
        for batch in BATCHES:
            yield [], {"x": batch["x"]}, batch["labels"]


def test_gradients_for_second_order_pruning() -> None:
    recipe = PRUNE.replace("MagnitudePruning", "OBSPruning").replace("update", "num_grads: 8, update")
    sampler = {"data_loader_builder": builder, "loss_function": lambda out, y: F.cross_entropy(out["logits"], y)}
    model, manager = Plain(), ScheduledModifierManager.from_yaml(recipe)
    loop(manager, manager.modify(model, sgd(model), 4, grad_sampler=sampler), model)
    total = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    assert sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1) == pytest.approx(0.8 * total, abs=1)
    with pytest.raises(ValueError, match="has no loss_function"):
        ScheduledModifierManager.from_yaml(recipe).initialize(model, grad_sampler={"data_loader_builder": builder})
    one = Plain()
    ScheduledModifierManager.from_yaml(recipe).apply(one, grad_sampler=sampler)
    assert sum(int((p == 0).sum()) for p in one.parameters() if p.ndim > 1) == round(0.8 * total)


# ---- without a training


def test_apply() -> None:
    model = Plain()
    manager = ScheduledModifierManager.from_yaml(PRUNE + QUANTIZE)
    manager.apply(model, calibration_dataloader=[((), {"x": batch["x"]}) for batch in BATCHES])
    assert all(int((p == 0).sum()) == round(0.8 * p.numel()) for p in model.parameters() if p.ndim > 1)
    assert float(model.first.input_fake_quantizer.high) > 0  # type: ignore[union-attr]
    seen: list[Any] = []
    other = Plain()
    ScheduledModifierManager.from_yaml(QUANTIZE).apply(
        other, calibration_dataloader=BATCHES, calibration_function=lambda batch, module: seen.append(module(**batch))
    )
    assert len(seen) == 4
    with pytest.warns(TrainwrightWarning, match="Activations are not quantized"):
        ScheduledModifierManager.from_yaml(QUANTIZE).apply(Plain())
    half = Plain()
    ScheduledModifierManager.from_yaml(PRUNE).apply(half, epoch=0.5, finalize=False)
    assert all(int((p == 0).sum()) == round(0.1 * p.numel()) for p in half.parameters() if p.ndim > 1)


def test_apply_structure_leaves_the_rest_alone() -> None:
    model = WithExtra()
    manager = ScheduledModifierManager.from_yaml(PRUNE + LAYER.split("\n", 1)[1])
    manager.apply_structure(model, 0.5)
    assert list(model.extra.parameters())
    manager.apply_structure(model, float("inf"))
    assert not list(model.extra.parameters())
    assert not any((p == 0).any() for p in model.parameters() if p.ndim > 1)


# ---- what it knows


def test_modifiers_by_kind() -> None:
    manager = ScheduledModifierManager.from_yaml(PRUNE + DISTIL + QUANTIZE)
    kinds = {
        "epoch": "EpochRange",
        "learning_rate": "LearningRateFunction",
        "pruning": "MagnitudePruning",
        "distillation": "Distillation",
        "quantization": "Quantization",
    }
    for kind, name in kinds.items():
        assert [type(m).__name__ for m in getattr(manager, f"{kind}_modifiers")] == [f"{name}Modifier"]
    assert manager.structured_modifiers == manager.quantization_modifiers
    assert list(manager) == list(manager.iter_modifiers()) == manager.modifiers
    assert (manager.min_epochs, manager.max_epochs, manager.num_stages()) == (0, 3, 1)
    assert manager.get_start_end_epochs() == {"all": (0, 3)}
    staged = ScheduledModifierManager.compose_staged(manager, PRUNE)
    assert list(staged.modifiers) == ["stage_0", "stage_1"]
    assert staged.get_start_end_epochs() == {"stage_0": (0, 3), "stage_1": (3, 6)}
    assert (staged.max_epochs, staged.num_stages()) == (6, 2)


def test_stages_that_do_not_say_when() -> None:
    """The original assigns into a tuple."""
    manager = ScheduledModifierManager.from_yaml(
        "a:\n  modifiers:\n    - !EpochRangeModifier {start_epoch: -1, end_epoch: 2}\n"
        "b:\n  modifiers:\n    - !SetWeightDecayModifier {weight_decay: 0.0}\n"
    )
    assert manager.get_start_end_epochs() == {"a": (0.0, 2.0), "b": (2.0, -1.0)}


def pruning(start: float, end: float) -> MagnitudePruningModifier:
    return MagnitudePruningModifier(
        params="__ALL_PRUNABLE__", init_sparsity=0.0, final_sparsity=0.5, start_epoch=start, end_epoch=end
    )


@pytest.mark.parametrize(
    ("pruned", "quantized", "expected"),
    [
        ([], [], {0: "dense"}),
        ([(10, 20)], [], {9.999: "dense", 10: None, 15: None, 20: None, 20.0001: "pruned"}),
        ([], [10], {9.999: "dense", 10: None, 10.0001: "dense_quantized"}),
        ([], [10, 20], {15: None, 20: None, 20.0001: "dense_quantized"}),
        ([(10, 20), (15, 30)], [], {25: None, 30: None, 30.0001: "pruned"}),
        ([(10, 20)], [25], {20.0001: "pruned", 24.999: "pruned", 25: None, 25.0001: "pruned_quantized"}),
        ([(10, 20), (15, 25)], [25, 35], {25.0001: None, 35: None, 35.0001: "pruned_quantized"}),
        ([(30, 40), (35, 45)], [10, 20], {20.0001: "dense_quantized", 30: None, 45: None, 45.0001: "quantized_pruned"}),
    ],
)
def test_phases(pruned: list[tuple[float, float]], quantized: list[float], expected: dict[float, str | None]) -> None:
    modifiers: list[Modifier] = [
        *(pruning(*span) for span in pruned),
        *(QuantizationModifier(start_epoch=e) for e in quantized),
    ]
    manager = ScheduledModifierManager(modifiers)
    assert {epoch: manager.phase(epoch) for epoch in expected} == expected
    assert manager.qat_active(8) is False
    assert manager.qat_active(50) is bool(quantized)


@given(st.floats(0, 50), st.lists(st.floats(0, 20), max_size=2), st.lists(st.floats(0, 20), max_size=2))
def test_any_recipe_has_a_phase(epoch: float, pruned: list[float], quantized: list[float]) -> None:
    modifiers: list[Modifier] = [
        *(pruning(start, start + 5) for start in pruned),
        *(QuantizationModifier(start_epoch=e) for e in quantized),
    ]
    found = ScheduledModifierManager(modifiers).phase(epoch)
    if epoch > 26:
        assert found is not None
        assert ("quantized" in found, "pruned" in found) == (bool(quantized), bool(pruned))
    else:
        assert found in (None, "dense", "pruned", "dense_quantized", "pruned_quantized", "quantized_pruned")


# ---- as text


def test_two_of_four_survives_composing_and_saving(tmp_path: Path) -> None:
    """Written without quotes, 2:4 is 124 to YAML 1.1."""
    recipe = PRUNE.replace("update", "mask_type: '2:4', update").replace("0.8", "0.5")
    ScheduledModifierManager.compose_staged(recipe, recipe, save_path=tmp_path / "below" / "both.yaml")
    again = ScheduledModifierManager.from_yaml(str(tmp_path / "below" / "both.yaml"))
    assert [m.mask_type for m in again.pruning_modifiers] == ["2:4", "2:4"]  # type: ignore[attr-defined]
    assert read_recipe(str(again)) == read_recipe(tmp_path / "below" / "both.yaml")
    kept = ScheduledModifierManager.compose_staged(recipe, recipe, keep_original_epochs=True)
    assert kept.max_epochs == 3


def test_metadata_and_variables(tmp_path: Path) -> None:
    manager = ScheduledModifierManager.from_yaml(
        "last: 3\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(last)}\n",
        recipe_variables="last=5",
        metadata={"level": 1},
    )
    assert manager.max_epochs == 5
    assert manager.metadata["level"] == 1
    assert any("torch_version" in line for line in manager.to_string_lines())
    manager.save(tmp_path / "r.yaml", include_metadata=False)
    assert ScheduledModifierManager.from_yaml(tmp_path / "r.yaml").metadata is None


def test_modifiers_that_were_added() -> None:
    manager = ScheduledModifierManager.from_yaml(PRUNE, add_modifiers=[pruning(0, 9)])
    assert manager.max_epochs == 9
    assert len(manager.pruning_modifiers) == 2
    with pytest.raises(ValueError, match="put them into the recipe"):
        str(manager)


def test_what_has_no_effect_is_said() -> None:
    model = Plain()
    with pytest.raises(ValueError, match="nonsense"):
        ScheduledModifierManager.from_yaml(PRUNE).modify(model, sgd(model), 4, nonsense=1)


@pytest.mark.slow
def test_the_exporter(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    exporter = ModuleExporter(nn.DataParallel(model), tmp_path)
    assert exporter.export_pytorch().model.name == "model.safetensors"
    assert exporter.export_onnx(torch.randn(2, 4)).model.is_file()
    with pytest.raises(ValueError, match="given up"):
        exporter.export_torchscript()
    with pytest.raises(ValueError, match="opset"):
        exporter.export_onnx(torch.randn(2, 4), opset=11)
