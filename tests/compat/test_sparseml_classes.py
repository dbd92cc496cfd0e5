"""SparseML's classes of modifiers, from Python: managers and recipes made of them, and classes of one's own."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows
from trainwright.compat.sparseml import ScheduledModifierManager, Trainer
from trainwright.compat.sparseml.classes.catalogue import _CLASSES
from trainwright.compat.sparseml.optim import BaseModifier, update_recipe_variables, validate_metadata
from trainwright.compat.sparseml.pytorch.sparsification import (
    ConstantPruningModifier,
    DistillationModifier,
    EpochRangeModifier,
    GMPruningModifier,
    LearningRateFunctionModifier,
    MagnitudePruningModifier,
    Modifier,
    ModifierProp,
    PyTorchModifierYAML,
    QuantizationModifier,
    QuantizationScheme,
    ScheduledModifier,
    ScheduledUpdateModifier,
    SetLearningRateModifier,
)
from trainwright.compat.sparseml.pytorch.sparsification.quantization.legacy_modifier_quantization import (
    QuantizationModifier as FirstQuantizationModifier,
)
from trainwright.compat.sparseml.pytorch.utils import LambdaLogger, LoggerManager
from trainwright.config.arguments import TrainingArguments
from trainwright.recipes.building import arguments_of, modifier_class

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def prune(**more: Any) -> Any:
    given: dict[str, Any] = {"params": ["re:.*weight"], "init_sparsity": 0.2, "final_sparsity": 0.8, **more}
    return GMPruningModifier(start_epoch=0.0, end_epoch=2.0, update_frequency=0.5, **given)


def train(manager: ScheduledModifierManager, model: nn.Module, epochs: int = 3, **more: Any) -> Any:
    optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), steps_per_epoch=4, **more)
    for _ in range(4 * epochs):
        optimizer.zero_grad()
        loss = optimizer.loss_update(model(X)["logits"].square().mean(), model(X), {"x": X})
        loss.backward()
        optimizer.step()
    manager.finalize(model)
    return optimizer


def test_a_manager_of_modifiers_does_what_its_recipe_does(tmp_path: Path) -> None:
    made, read = Plain(), Plain()
    manager = ScheduledModifierManager([prune(), EpochRangeModifier(0.0, 3.0), SetLearningRateModifier(0.2)])
    manager.save(tmp_path / "recipe.yaml")
    train(manager, made)
    again = ScheduledModifierManager.from_yaml(tmp_path / "recipe.yaml")
    assert str(again) == str(manager)
    assert again.max_epochs == 3
    train(again, read)
    assert all(torch.equal(one, other) for one, other in zip(made.parameters(), read.parameters(), strict=True))
    assert int((made.first.weight == 0).sum()) == round(0.8 * made.first.weight.numel())


def test_the_layout_of_a_recipe() -> None:
    manager = ScheduledModifierManager([prune(mask_type="2:4", final_sparsity=0.5), EpochRangeModifier(0, 3)])
    assert str(manager).splitlines() == [
        "version: 1.1.0",
        "",
        "modifiers:",
        "    - !GMPruningModifier",
        "        end_epoch: 2.0",
        "        final_sparsity: 0.5",
        "        global_sparsity: False",
        "        init_sparsity: 0.2",
        "        inter_func: cubic",
        "        leave_enabled: True",
        "        mask_type: '2:4'",
        "        params: ['re:.*weight']",
        "        start_epoch: 0.0",
        "        update_frequency: 0.5",
        "",
        "    - !EpochRangeModifier",
        "        end_epoch: 3.0",
        "        start_epoch: 0.0",
    ]
    both = ScheduledModifierManager.compose_staged(manager, manager)
    text = str(both)
    assert text.startswith(
        "version: 1.1.0\n\nstage_0:\n  __metadata__: None\n\n  stage_0_modifiers:\n      - !GMPruning"
    )
    assert [m.start_epoch for m in ScheduledModifierManager.from_yaml(text).pruning_modifiers] == [0.0, 3.0]


@pytest.mark.parametrize("name", sorted(_CLASSES))
def test_defaults_are_those_of_the_modifier(name: str) -> None:
    """They are written into recipes, so that they must not say something else than leaving them out."""
    ours = arguments_of(modifier_class(name))
    for parameter in inspect.signature(_CLASSES[name]).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.default in (parameter.empty, None):
            continue
        assert parameter.name in ours, parameter.name
        default = ours[parameter.name].default
        assert default in (parameter.default, None, inspect.Parameter.empty), parameter.name


def test_one_modifier_as_text() -> None:
    written = str(SetLearningRateModifier(2e-6, start_epoch=50))
    assert written == "!SetLearningRateModifier\n    constant_logging: False\n    end_epoch: -1.0\n    " + (
        "learning_rate: 2e-06\n    start_epoch: 50.0"
    )
    again = Modifier.load_obj(written)
    assert isinstance(again, SetLearningRateModifier)
    assert (again.learning_rate, again.start_epoch) == (2e-6, 50.0)
    assert isinstance(Modifier.load_obj("!QuantizationModifier\n  submodules: ['']"), FirstQuantizationModifier)
    pattern = ConstantPruningModifier([r"re:a\.b", "it's"])
    assert Modifier.load_obj(str(pattern)).params == pattern.params
    scheme = QuantizationModifier(scheme=QuantizationScheme(weights=None))
    assert Modifier.load_obj(str(scheme)).scheme == scheme.scheme
    assert BaseModifier.yaml_key(GMPruningModifier, "pytorch") == "!pytorch.GMPruningModifier"
    with pytest.raises(ValueError, match="describes no modifier"):
        Modifier.load_obj("a: 1")


def test_properties_are_checked_and_stay_once_in_use() -> None:
    modifier = prune()
    modifier.final_sparsity = 0.9
    modifier.end_epoch = 4.0
    assert (modifier.native.final_sparsity, modifier.native.end_epoch) == (0.9, 4.0)
    with pytest.raises(ValueError, match="final_sparsity"):
        modifier.final_sparsity = 1.5
    with pytest.raises(ValueError, match="start_epoch"):
        modifier.start_epoch = -2.0
    with pytest.raises(ValueError, match="update_frequency"):
        modifier.update_frequency = -2.0
    with pytest.raises(TypeError, match="sparsty"):
        GMPruningModifier(sparsty=0.5)  # type: ignore[call-arg]
    modifier.initialize(Plain())
    with pytest.raises(AttributeError, match="in use"):
        modifier.final_sparsity = 0.5


def test_a_modifier_without_a_manager() -> None:
    model, modifier = Plain(), prune()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="initialize"):
        modifier.scheduled_update(model, optimizer, 0.0, 4)
    modifier.initialize(model)
    for step in range(12):
        if modifier.update_ready(step / 4, 4):
            modifier.scheduled_update(model, optimizer, step / 4, 4)
        model(X)["logits"].square().mean().backward()
        modifier.optimizer_pre_step(model, optimizer, step / 4, 4)
        optimizer.step()
        modifier.optimizer_post_step(model, optimizer, step / 4, 4)
    assert modifier.ended
    assert modifier.applied_sparsity == pytest.approx([0.8, 0.8], abs=0.02)
    masks = modifier.state_dict()
    assert sorted(masks) == ["first.weight.sparsity_mask", "second.weight.sparsity_mask"]
    modifier.load_state_dict({name: torch.zeros_like(mask) for name, mask in masks.items()})
    modifier.finalize(model)
    assert not model.first.weight.any()
    sparse = Plain()
    MagnitudePruningModifier(0.0, 0.5, 0.0, 1.0, 1.0, "__ALL_PRUNABLE__").apply(sparse)
    assert float((sparse.first.weight == 0).float().mean()) == 0.5


def test_a_teacher_without_a_manager() -> None:
    model, modifier = Plain(), DistillationModifier(hardness=1.0)
    modifier.initialize(model, distillation_teacher=Plain(seed=5))
    outputs = model(X)
    loss = modifier.loss_update(outputs["logits"].mean(), model, None, 0.0, 4, outputs, {"x": X})
    assert float(loss.detach()) > 0
    with pytest.raises(ValueError, match="student_outputs"):
        modifier.loss_update(outputs["logits"].mean(), model, None, 0.25, 4)


# ---- classes of one's own


@PyTorchModifierYAML()
class ShrinkBiasModifier(ScheduledUpdateModifier):
    """Halves biases every epoch, and makes the loss count double."""

    def __init__(
        self, factor: float = 0.5, start_epoch: float = -1.0, end_epoch: float = -1.0, update_frequency: float = 1.0
    ) -> None:
        super().__init__(
            start_epoch=start_epoch, end_epoch=end_epoch, update_frequency=update_frequency, end_comparator=-1
        )
        self._factor = factor
        self.updates: list[float] = []
        self.finals = 0

    @ModifierProp()
    def factor(self) -> float:
        return self._factor

    def update(self, module: nn.Module, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        super().update(module, optimizer, epoch, steps_per_epoch)
        self.updates.append(epoch)
        with torch.no_grad():
            module.get_parameter("second.bias").mul_(self._factor)

    def loss_update(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return super().loss_update(loss, *args, **kwargs) * 2

    def finalize(self, module: nn.Module | None = None, reset_loggers: bool = True, **kwargs: Any) -> None:
        super().finalize(module, reset_loggers, **kwargs)
        self.finals += 1


def test_a_modifier_of_ones_own_in_a_loop_and_in_a_recipe() -> None:
    modifier = ShrinkBiasModifier(factor=0.0, start_epoch=1.0, end_epoch=2.0)
    model = Plain()
    manager = ScheduledModifierManager([modifier, EpochRangeModifier(0, 3)])
    train(manager, model)
    assert (modifier.updates, modifier.finals) == ([1.0, 2.0], 1)
    read = ScheduledModifierManager.from_yaml(str(manager))
    (again,) = [m for m in read if isinstance(m, ShrinkBiasModifier)]
    assert (again.factor, again.start_epoch) == (0.0, 1.0)
    loss = torch.tensor(1.0)
    read.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    assert float(read.loss_update(loss, model, None, 0.0, 4)) == 2.0


def test_a_modifier_of_ones_own_in_the_trainer(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), report_to="none", save_strategy="no", per_device_train_batch_size=4)
    recipe = "modifiers:\n  - !ShrinkBiasModifier {factor: 0.0, start_epoch: 1.0, end_epoch: 2.0}\n"
    trainer = Trainer(Plain(), None, recipe, args=args, train_dataset=classification_rows(8))
    trainer.train()
    manager = trainer.manager
    assert manager is not None
    (modifier,) = manager.modifiers
    assert (modifier.updates, modifier.finals, trainer.state.epoch) == ([1.0, 2.0], 1, 2.0)


class Doubling(MagnitudePruningModifier):
    """Of a class that is here, with something added."""

    def loss_update(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().loss_update(loss, *args, **kwargs)


def test_a_class_derived_from_one_that_is_here() -> None:
    model = Plain()
    manager = ScheduledModifierManager([Doubling(0.0, 0.5, 0.0, 1.0, 0.5, "__ALL_PRUNABLE__")])
    optimizer = manager.modify(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    model(X)
    assert float(optimizer.loss_update(torch.tensor(1.0))) == 2.0
    train(ScheduledModifierManager([Doubling(0.0, 0.5, 0.0, 1.0, 0.5, "__ALL_PRUNABLE__")]), model)
    assert float((model.first.weight == 0).float().mean()) == 0.5


class Counting(ScheduledModifierManager):
    """As somebody overrides a manager."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        self.__dict__.setdefault("epochs", []).append(args[2])


def test_the_update_of_a_manager_of_ones_own_is_called() -> None:
    model, manager = Plain(), Counting([prune(), EpochRangeModifier(0, 2)])
    train(manager, model, epochs=2)
    # At the start, before each step, and at the end.
    assert manager.epochs == [0.0, *(step / 4 for step in range(8)), 2.0]  # type: ignore[attr-defined]
    assert float((model.first.weight == 0).float().mean()) == pytest.approx(0.8, abs=0.02)


# ---- the rest of its words


def test_loggers_hear_what_modifiers_say() -> None:
    seen: list[tuple[str, int]] = []
    loggers = LoggerManager([LambdaLogger(lambda **said: seen.append((said["tag"], said["step"])))], log_frequency=1.0)
    recipe = (
        "modifiers:\n  - !SparsificationLoggingModifier {start_epoch: 0.0, end_epoch: 3.0, update_frequency: 1.0}\n"
    )
    train(ScheduledModifierManager.from_yaml(recipe), Plain(), loggers=loggers)
    assert seen
    assert {step for _, step in seen} == {1, 5, 9}


def test_a_manager_is_asked_only_once_it_knows_its_model() -> None:
    manager, model = ScheduledModifierManager([EpochRangeModifier(0, 1)]), Plain()
    with pytest.raises(RuntimeError, match="initialize"):
        manager.update(model, None, 0.0, 4)
    manager.initialize(model)
    manager.enabled = False
    with pytest.raises(RuntimeError, match="switched off"):
        manager.update(model, None, 0.0, 4)


def test_functions_about_recipes(caplog: pytest.LogCaptureFixture) -> None:
    entry = "!EpochRangeModifier {start_epoch: 0, end_epoch: eval(epochs)}"
    recipe = f"epochs: 3\n__metadata__: {{seed: 1}}\nmodifiers:\n  - {entry}\n"
    assert ScheduledModifierManager.from_yaml(update_recipe_variables(recipe, {"epochs": 5})).max_epochs == 5
    with pytest.raises(ValueError, match="no variable 'epoch'"):
        update_recipe_variables(recipe, {"epoch": 5})
    with caplog.at_level(logging.WARNING):
        assert validate_metadata({"seed": 2}, recipe) == {"__metadata__": {"seed": 2}}
    assert "overwritten" in caplog.text


def test_what_recipes_name_is_found_where_it_was() -> None:
    from trainwright.compat.sparseml.pytorch.sparsification.pruning.modifier_pruning_magnitude import (
        GMPruningModifier as same,
    )

    assert same is GMPruningModifier
    assert issubclass(GMPruningModifier, ScheduledUpdateModifier)
    assert issubclass(LearningRateFunctionModifier, ScheduledModifier)
