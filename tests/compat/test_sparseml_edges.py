"""Scripts of SparseML at the edges: schedules beside recipes, wrapped models, damaged folders, nothing to train."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Plain, classification_rows, sentence_rows, tiny_bert
from trainwright import TrainerCallback
from trainwright.compat.sparseml import ScheduledModifierManager, Trainer, TrainingArguments
from trainwright.compat.sparseml.pytorch.utils import ModuleExporter
from trainwright.config.warnings import TrainwrightWarning

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
PRUNE = """
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: [first.weight], init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0.0, end_epoch: 2.0}
"""
RATE = """
training_modifiers:
  - !LearningRateFunctionModifier
      {lr_func: linear, init_lr: 0.4, final_lr: 0.0, start_epoch: 0.0, end_epoch: 2.0}
"""
DISTIL = "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5}\n"
QUANTIZE = "quantization_modifiers:\n  - !QuantizationModifier {start_epoch: 0.0}\n"
DROP = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 1.0}
pruning_modifiers:
  - !LayerPruningModifier {layers: [bert.encoder.layer.1], start_epoch: 0.0}
"""


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: Any, optimizer: Any, schedule: Any = None, steps: int = 8) -> list[float]:
    rates = []
    inner = optimizer.wrapped_optimizer
    inner.register_step_post_hook(lambda *_: rates.append(inner.param_groups[0]["lr"]))
    for _ in range(steps):
        optimizer.zero_grad()
        model(X)["logits"].square().mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return rates


def arguments(folder: Path, **kwargs: Any) -> TrainingArguments:
    usual: dict[str, Any] = {"disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "report_to": "none"}
    return TrainingArguments(str(folder / "run"), **{**usual, **kwargs})


# ---- loops


@pytest.mark.parametrize("kind", ["LambdaLR", "StepLR"])
def test_a_schedule_beside_the_recipes_rate_does_not_decide(kind: str) -> None:
    manager, model = ScheduledModifierManager.from_yaml(RATE), Plain()
    expected = train(model, manager.modify(model, sgd(model), 4))
    manager, other = ScheduledModifierManager.from_yaml(RATE), Plain()
    optimizer = manager.modify(other, sgd(other), 4)
    schedule: Any = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        if kind == "LambdaLR"
        else torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    )
    with pytest.warns(TrainwrightWarning, match="the recipe's acts"):
        assert train(other, optimizer, schedule) == pytest.approx(expected)
    assert torch.equal(model.first.weight, other.first.weight)


def test_a_schedule_alone_decides_once_the_recipe_is_done() -> None:
    manager, model = ScheduledModifierManager.from_yaml(RATE.replace("2.0", "0.5")), Plain()
    optimizer = manager.modify(model, sgd(model), 4)
    train(model, optimizer, steps=2)
    optimizer.param_groups[0]["lr"] = 0.3
    assert train(model, optimizer, steps=2)[-1] == 0.3


def test_one_manager_for_one_model() -> None:
    """Its masks would be put on the other."""
    manager, model = ScheduledModifierManager.from_yaml(PRUNE), Plain()
    train(model, manager.modify(model, sgd(model), 4))
    other = Plain(seed=3)
    with pytest.raises(ValueError, match="another model"):
        manager.modify(other, sgd(other), 4)
    manager.modify(nn.DataParallel(model), sgd(model), 4, allow_parallel_module=False)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_compiled_and_then_distributed(process_group: None) -> None:
    manager, model = ScheduledModifierManager.from_yaml(PRUNE), Plain()
    inside: Any = torch.compile(model, backend="eager")
    outside = nn.parallel.DistributedDataParallel(inside)
    train(outside, manager.modify(outside, sgd(model), 4, allow_parallel_module=False))
    manager.finalize(outside)
    assert int((model.first.weight == 0).sum()) == 24


def test_apply_to_a_compiled_model() -> None:
    model = Plain()
    compiled: Any = torch.compile(model, backend="eager")
    ScheduledModifierManager.from_yaml(PRUNE).apply(compiled)
    assert int((model.first.weight == 0).sum()) == 24


def test_the_older_optimizer() -> None:
    from trainwright.compat.sparseml.pytorch.optim import ScheduledOptimizer

    manager, model = ScheduledModifierManager.from_yaml(PRUNE + DISTIL), Plain()
    teacher = {"distillation_teacher": "disable"}
    train(model, ScheduledOptimizer(sgd(model), model, manager, 4, initialize_kwargs=teacher))
    assert int((model.first.weight == 0).sum()) == 24


@pytest.mark.parametrize("name", ["QuestionAnsweringTrainer", "postprocess_qa_predictions", "SparseAutoModel"])
def test_names_that_are_not_here_say_what_is(name: str) -> None:
    import trainwright.compat.sparseml.transformers.sparsification as door

    with pytest.raises(ImportError, match="transformers"):
        getattr(door, name)


def test_rounding_is_always_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="convert_qat"):
        ModuleExporter(Plain(), tmp_path).export_onnx(X, convert_qat=False)


# ---- the Trainer


def test_arguments_for_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    rows = classification_rows()
    with pytest.raises(ValueError, match="there is no recipe"):
        Trainer(Plain(), None, None, args=arguments(tmp_path, recipe_args="epochs=3"), train_dataset=rows)
    assert Trainer(Plain(), None, "", args=arguments(tmp_path), train_dataset=rows).manager is None


def test_one_shot_needs_no_teacher_and_reads_no_checkpoint(tmp_path: Path) -> None:
    model = Plain()
    trainer = Trainer(model, None, PRUNE + DISTIL, args=arguments(tmp_path), one_shot=True)
    with pytest.raises(ValueError, match="reads no checkpoint"):
        trainer.train(resume_from_checkpoint=str(tmp_path))
    trainer.train(resume_from_checkpoint=None)
    assert int((model.first.weight == 0).sum()) == 24


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    trainer = Trainer(Plain(), None, QUANTIZE, args=arguments(tmp_path), train_dataset=classification_rows())
    trainer.train()
    trainer.save_model(str(tmp_path / "int8"))
    (tmp_path / "int8" / "recipe_state.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"int8.*is damaged"):
        Trainer(Plain(), tmp_path / "int8", None, args=arguments(tmp_path))


@pytest.fixture
def shorter(tmp_path: Path) -> Path:
    """A model of which a recipe took a layer."""
    trainer = Trainer(tiny_bert(), None, DROP, args=arguments(tmp_path), train_dataset=sentence_rows())
    trainer.train()
    trainer.save_model(str(tmp_path / "shorter"))
    return tmp_path / "shorter"


@pytest.mark.filterwarnings("ignore::trainwright.config.warnings.TrainwrightWarning")
def test_damaged_weights_are_named(shorter: Path, tmp_path: Path) -> None:
    (shorter / "model.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        Trainer(tiny_bert(), shorter, None, args=arguments(tmp_path))
    os.remove(shorter / "model.safetensors")
    index = '{"weight_map": {"a": "model-1.safetensors"}}'
    (shorter / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=r"model-1\.safetensors is not there"):
        Trainer(tiny_bert(), shorter, None, args=arguments(tmp_path))


@pytest.mark.filterwarnings("ignore::trainwright.config.warnings.TrainwrightWarning")
def test_a_teacher_does_not_get_layers_at_random(shorter: Path, tmp_path: Path) -> None:
    """from_pretrained fills in what a recipe took out."""
    options: dict[str, Any] = {"args": arguments(tmp_path), "train_dataset": sentence_rows()}
    recipe = "training_modifiers:\n  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 1.0}\n" + DISTIL
    with pytest.raises(ValueError, match="has no weights for"):
        Trainer(tiny_bert(), None, recipe, teacher=shorter, **options).train()
    # The same for a network that no configuration describes.
    plain = tmp_path / "plain"
    shutil.copytree(shorter, plain)
    (plain / "config.json").unlink()
    with pytest.raises(ValueError, match="has no weights for"):
        Trainer(tiny_bert(), None, recipe, teacher=plain, **options).train()


def test_a_trainer_that_evaluates_its_own_way(tmp_path: Path) -> None:
    """As those for answering questions do: they score texts, and tell callbacks themselves."""
    heard = []

    class Listener(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            heard.append(metrics["eval_exact"])

    class Answering(Trainer):
        def evaluate(self, eval_dataset: Any = None, **kwargs: Any) -> dict[str, float]:  # type: ignore[override]
            loader = self.get_eval_dataloader(eval_dataset)
            found = self.evaluation_loop(loader, description="Evaluation", prediction_loss_only=False)
            metrics = {"eval_exact": float((found.predictions.argmax(1) == found.label_ids).mean())}
            self.log(metrics)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    args = arguments(tmp_path, eval_strategy="epoch")
    rows = classification_rows()
    Answering(Plain(), None, PRUNE, args=args, train_dataset=rows, eval_dataset=rows, callbacks=[Listener()]).train()
    assert len(heard) == 2
