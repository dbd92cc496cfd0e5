"""SparseML's Trainer through the door: every argument, its past in a folder, and what the original got wrong."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import IterableDataset

from tests.experiment.tiny import tokenizer_folder
from tests.models import Plain, classification_rows, sentence_rows, tiny_bert
from trainwright.compat.sparseml import Trainer, TrainingArguments
from trainwright.config.warnings import TrainwrightWarning
from trainwright.recipes.language.reading import read_recipe
from trainwright.training.recipe_folder import restore_recipe

MakeArgs = Callable[..., TrainingArguments]

PRUNE = """
epochs: 2
sparsity: 0.5
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(epochs)}
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: __ALL_PRUNABLE__, init_sparsity: 0.0, final_sparsity: eval(sparsity), start_epoch: 0.0,
       end_epoch: eval(epochs), update_frequency: 0.5}
"""
KEEP = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 1.0}
pruning_modifiers:
  - !ConstantPruningModifier {params: __ALL_PRUNABLE__, start_epoch: 0.0}
"""
DISTIL = "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5, temperature: 2.0, end_epoch: 1.0}\n"
DROP = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 1.0}
pruning_modifiers:
  - !LayerPruningModifier {layers: [bert.encoder.layer.1], start_epoch: 0.0}
"""
QUANTIZE = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 1.0}
quantization_modifiers:
  - !QuantizationModifier {start_epoch: 0.0, ignore: [classifier]}
"""
THIN = """
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 1.0}
pruning_modifiers:
  - !StructuredPruningModifier
      {param_groups: [[first.weight]], mask_type: filter, init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0.0,
       end_epoch: 0.5, update_frequency: 0.5}
  - !LayerThinningModifier {start_epoch: 0.5, update_epochs: [0.5]}
"""


@pytest.fixture
def make_args(tmp_path: Path) -> MakeArgs:
    def make(**kwargs: Any) -> TrainingArguments:
        usual: dict[str, Any] = {"output_dir": str(tmp_path / "run"), "disable_tqdm": True, "use_cpu": True}
        usual |= {"save_strategy": "no", "learning_rate": 1e-2}
        return TrainingArguments(**{**usual, **kwargs})

    return make


def train(args: TrainingArguments, model: nn.Module, recipe: Any, path: Any = None, **options: Any) -> Trainer:
    options.setdefault("train_dataset", classification_rows())
    trainer = Trainer(model, path, recipe, args=args, **options)
    trainer.train()
    return trainer


def zeros(model: nn.Module) -> dict[str, float]:
    return {name: float((p == 0).float().mean()) for name, p in model.named_parameters() if p.ndim > 1}


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- names


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", ["Trainer", "TrainingArguments", "ScheduledModifierManager", "export_model"]),
        (".transformers.sparsification", ["Trainer", "TrainingArguments"]),
        (".transformers", ["Trainer", "TrainingArguments"]),
        (".pytorch.optim", ["ScheduledModifierManager"]),
        (".pytorch.utils", ["ModuleExporter"]),
    ],
)
def test_the_paths_of_the_original(path: str, names: list[str]) -> None:
    module = importlib.import_module(f"trainwright.compat.sparseml{path}")
    for name in names:
        assert getattr(module, name).__module__.startswith("trainwright.")
    with pytest.raises(ImportError, match="subclass Trainer"):
        module.TrainerInterface  # noqa: B018
    assert not hasattr(module, "Trainr")


# ---- arguments, one by one


def test_model_and_recipe_by_position(make_args: MakeArgs) -> None:
    model = Plain()
    trainer = train(make_args(num_train_epochs=7), model, PRUNE)
    assert trainer.args.num_train_epochs == 2
    assert all(abs(share - 0.5) <= 0.03 for share in zeros(model).values())
    assert trainer.manager is not None
    assert trainer.manager.max_epochs == 2
    assert trainer.arch_manager is None


@pytest.mark.parametrize("given", [{"sparsity": 0.75, "epochs": 1}, "sparsity=0.75,epochs=1", '{"sparsity": 0.75}'])
def test_recipe_args_in_three_forms(make_args: MakeArgs, given: Any) -> None:
    model = Plain()
    train(make_args(), model, PRUNE, recipe_args=given)
    assert all(abs(share - 0.75) <= 0.03 for share in zeros(model).values())


def test_recipe_args_that_are_not_there(make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match="did you mean 'sparsity'"):
        Trainer(Plain(), None, PRUNE, recipe_args="sparsty=0.5", args=make_args())


def test_no_recipe_is_plain_training(make_args: MakeArgs, tmp_path: Path) -> None:
    """The original touches a manager that is None when it resumes."""
    model = Plain()
    args = make_args(max_steps=4, save_strategy="steps", save_steps=2)
    train(args, model, None)
    again = Plain(seed=5)
    trainer = Trainer(again, None, None, args=args, train_dataset=classification_rows())
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert equal(weights(model), weights(again))
    trainer.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "recipe.yaml").exists()


def test_arguments_may_say_it(make_args: MakeArgs, tmp_path: Path) -> None:
    """The original's command line has recipe, recipe_args and distill_teacher among the training arguments."""
    (tmp_path / "r.yaml").write_text(PRUNE + DISTIL)
    args = make_args(recipe=str(tmp_path / "r.yaml"), recipe_args="epochs=1,sparsity=0.25", distill_teacher="self")
    model = Plain()
    trainer = train(args, model, None)
    assert trainer.args.num_train_epochs == 1
    assert all(abs(share - 0.25) <= 0.03 for share in zeros(model).values())
    with pytest.raises(ValueError, match="keep one"):
        Trainer(Plain(), None, "other.yaml", args=args)


@dataclass
class DataArguments:
    task_name: str = "sst2"
    max_seq_length: int = 128
    one_shot: bool = False
    seed: int = 1


def test_metadata_from_both_kinds_of_arguments(make_args: MakeArgs, tmp_path: Path) -> None:
    trainer = Trainer(
        Plain(),
        None,
        PRUNE,
        metadata_args=["learning_rate", "task_name"],
        args=make_args(),
        data_args=DataArguments(),
        train_dataset=classification_rows(),
    )
    trainer.save_model(str(tmp_path / "saved"))
    found = read_recipe(tmp_path / "saved" / "recipe.yaml").metadata
    assert found is not None
    assert (found["learning_rate"], found["task_name"]) == (0.01, "sst2")
    assert "torch_version" in found["framework_metadata"]


def test_metadata_mistakes(make_args: MakeArgs) -> None:
    def build(names: Any) -> Trainer:
        return Trainer(Plain(), None, PRUNE, metadata_args=names, args=make_args(), data_args=DataArguments())

    with pytest.raises(ValueError, match="seed is in args and in data_args"):
        build(["seed"])
    with pytest.raises(ValueError, match="secret"):
        build(["hub_token"])
    with pytest.raises(ValueError, match="pass a list of names"):
        build("task_name")
    with pytest.warns(TrainwrightWarning, match="there is no argument 'lerning_rate'"):
        trainer = build(["lerning_rate"])
    assert trainer._saved_recipe is not None
    assert trainer._saved_recipe.metadata is not None
    assert trainer._saved_recipe.metadata["lerning_rate"] is None


@pytest.mark.parametrize("name", ["teacher", "distill_teacher"])
@pytest.mark.parametrize("kind", ["module", "self", "disable", "path"])
def test_teachers(make_args: MakeArgs, tmp_path: Path, name: str, kind: str) -> None:
    """The original's 'self' raises."""
    teacher: Any = kind
    if kind == "module":
        teacher = Plain(seed=9)
    elif kind == "path":
        teacher = tmp_path / "teacher"
        train(make_args(num_train_epochs=1), Plain(seed=9), None).save_model(str(teacher))
    plain, taught = Plain(), Plain()
    train(make_args(num_train_epochs=1, seed=3), plain, None)
    train(make_args(num_train_epochs=1, seed=3), taught, DISTIL, **{name: teacher})
    assert equal(weights(plain), weights(taught)) is (kind == "disable")


def test_a_teacher_that_is_missing_or_given_twice(make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match="needs a teacher"):
        Trainer(Plain(), None, DISTIL, args=make_args())
    with pytest.raises(ValueError, match="not both"):
        Trainer(Plain(), None, DISTIL, args=make_args(), teacher="self", distill_teacher="self")


@pytest.mark.parametrize(
    "given",
    [
        {"recipe": "zoo:nlp/text_classification/bert?recipe_type=transfer"},
        {"model_state_path": "zoo:nlp/text_classification/bert"},
        {"teacher": "zoo:nlp/text_classification/bert"},
        {"distill_teacher": "zoo:nlp/text_classification/bert"},
    ],
)
def test_the_zoo_is_refused_by_name(make_args: MakeArgs, given: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {"model_state_path": None, "recipe": DISTIL, **given}
    with pytest.raises(ValueError, match="SparseZoo is gone"):
        Trainer(Plain(), args=make_args(), **wanted)


def test_keyword_arguments_reach_the_native_trainer(make_args: MakeArgs) -> None:
    asked: list[str] = []

    def metrics(prediction: Any) -> dict[str, float]:
        asked.append("metrics")
        return {"accuracy": 0.5}

    trainer = Trainer(
        model=Plain(),
        model_state_path="",
        recipe=None,
        args=make_args(max_steps=1),
        train_dataset=classification_rows(),
        eval_dataset=classification_rows(),
        compute_metrics=metrics,
        optimizers=(None, None),
    )
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] == 0.5
    with pytest.raises(TypeError, match="nonsense"):
        Trainer(Plain(), None, None, args=make_args(), nonsense=1)


def test_best_is_not_looked_for_before_the_model_is_final(make_args: MakeArgs) -> None:
    args = make_args(
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        best_model_after_epoch=1,
    )
    trainer = train(args, Plain(), PRUNE, eval_dataset=classification_rows())
    assert trainer.state.best_model_checkpoint is not None
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-4"


# ---- model_state_path


def test_it_supplies_tokenizer_and_configuration(make_args: MakeArgs, tmp_path: Path) -> None:
    folder = tmp_path / "came-from"
    tokenizer_folder(folder)
    tiny_bert().save_pretrained(folder)
    trainer = Trainer(tiny_bert(), folder, None, args=make_args(max_steps=1), train_dataset=sentence_rows())
    assert trainer.processing_class is not None
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    assert (tmp_path / "saved" / "config.json").is_file()
    plain = Trainer(Plain(), folder, None, args=make_args(), train_dataset=classification_rows())
    plain.save_model(str(tmp_path / "plain"))
    assert (tmp_path / "plain" / "config.json").read_text() == (folder / "config.json").read_text()
    own = tokenizer_folder(tmp_path / "own")
    assert Trainer(tiny_bert(), folder, None, args=make_args(), tokenizer=own).processing_class is own


def test_a_name_that_is_no_folder(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    Trainer(Plain(), "bert-base-uncased", None, args=make_args())
    assert "is not a folder" in caplog.text


def test_a_sparse_checkpoint_with_a_new_head_keeps_its_zeros(make_args: MakeArgs, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    sparse = tmp_path / "sparse"
    train(make_args(), tiny_bert(), PRUNE, train_dataset=sentence_rows()).save_model(str(sparse))
    model = AutoModelForSequenceClassification.from_pretrained(sparse, num_labels=5, ignore_mismatched_sizes=True)
    before = {name: parameter == 0 for name, parameter in model.named_parameters() if parameter.ndim > 1}
    trainer = train(make_args(), model, KEEP, sparse, train_dataset=sentence_rows(classes=5))
    after = dict(model.named_parameters())
    moved = [name for name, mask in before.items() if not torch.equal(after[name] == 0, mask)]
    assert moved == []
    assert zeros(model)["classifier.weight"] == 0
    assert zeros(model)["bert.encoder.layer.0.output.dense.weight"] == pytest.approx(0.5, abs=0.01)
    trainer.save_model(str(tmp_path / "tuned"))
    stages = read_recipe(tmp_path / "tuned" / "recipe.yaml").stages
    assert [stage.name for stage in stages] == ["stage_0", "stage_1"]
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned")
    restore_recipe(again, tmp_path / "tuned")
    assert equal(weights(again), weights(model))


def test_recipes_accumulate_over_generations(make_args: MakeArgs, tmp_path: Path) -> None:
    folders = [tmp_path / f"generation-{number}" for number in range(3)]
    train(make_args(), Plain(), PRUNE).save_model(str(folders[0]))
    for before, after in pairwise(folders):
        model = Plain()
        model.load_state_dict(load_file(before / "model.safetensors"))
        train(make_args(), model, KEEP, before).save_model(str(after))
        assert all(share >= 0.47 for share in zeros(model).values())
    recipe = read_recipe(folders[2] / "recipe.yaml")
    assert [stage.name for stage in recipe.stages] == ["stage_0", "stage_1", "stage_3"]
    assert recipe.stage_epochs() == {"stage_0": (0, 2), "stage_1": (2, 3), "stage_3": (3, 4)}
    assert len(restore_recipe(Plain(), folders[2])) == 6


@pytest.mark.slow
def test_a_folder_of_a_plain_run_goes_on_with_its_past(make_args: MakeArgs, tmp_path: Path) -> None:
    """recipe=None after a recipe: weights are free, and the past is still told of."""
    train(make_args(), Plain(), PRUNE).save_model(str(tmp_path / "sparse"))
    model = Plain()
    model.load_state_dict(load_file(tmp_path / "sparse" / "model.safetensors"))
    args = make_args(max_steps=4, save_strategy="steps", save_steps=2, output_dir=str(tmp_path / "free"))
    trainer = train(args, model, None, tmp_path / "sparse")
    assert all(share < 0.3 for share in zeros(model).values())
    trainer.save_model(str(tmp_path / "dense"))
    assert read_recipe(tmp_path / "dense" / "recipe.yaml") == read_recipe(tmp_path / "sparse" / "recipe.yaml")
    other = Plain()
    restored = restore_recipe(other, tmp_path / "dense")
    assert not any(getattr(modifier, "masks", {}) for modifier in restored)
    again = Trainer(Plain(), tmp_path / "sparse", None, args=args, train_dataset=classification_rows())
    again.train(resume_from_checkpoint=str(tmp_path / "free" / "checkpoint-2"))
    assert equal(weights(again.model), weights(model))


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_layers_that_were_dropped_stay_dropped(make_args: MakeArgs, tmp_path: Path, ending: str) -> None:
    """The original looks for pytorch_model.bin alone, and goes on with random weights where there is none."""
    folder = tmp_path / "dropped"
    model = tiny_bert()
    train(make_args(), model, DROP, train_dataset=sentence_rows()).save_model(str(folder))
    if ending == "bin":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    built = tiny_bert(seed=4)
    trainer = Trainer(built, folder, KEEP, args=make_args(), train_dataset=sentence_rows())
    assert not list(built.bert.encoder.layer[1].parameters())
    assert equal(weights(built), weights(model))
    trainer.train()
    trainer.save_model(str(tmp_path / "next"))
    last = tiny_bert(seed=6)
    Trainer(last, tmp_path / "next", None, args=make_args())
    assert equal(weights(last), weights(built))


def test_a_folder_that_sparseml_wrote(make_args: MakeArgs, tmp_path: Path) -> None:
    """It has a recipe and weights, and nothing else to say about either."""
    model = tiny_bert()
    both = DROP.replace("start_epoch: 0.0}", "start_epoch: 0.5}") + QUANTIZE.split("\n", 3)[3]
    train(make_args(), model, both, train_dataset=sentence_rows()).save_model(str(tmp_path / "theirs"))
    (tmp_path / "theirs" / "recipe_state.safetensors").unlink()
    built = tiny_bert(seed=4)
    with pytest.warns(TrainwrightWarning, match="ranges of activations are not known"):
        Trainer(built, tmp_path / "theirs", KEEP, args=make_args(), train_dataset=sentence_rows())
    assert equal(weights(built), weights(model))
    assert built.get_submodule("bert.pooler.dense").rounds


def test_smaller_layers_are_read_back(make_args: MakeArgs, tmp_path: Path) -> None:
    model = Plain()
    train(make_args(), model, THIN).save_model(str(tmp_path / "thin"))
    assert model.first.out_features == 4
    built = Plain(seed=7)
    train(make_args(), built, KEEP, tmp_path / "thin")
    assert built.first.out_features == 4
    assert built.second.in_features == 4


@pytest.mark.slow
def test_rounding_is_kept_and_its_ranges_do_not_move(make_args: MakeArgs, tmp_path: Path) -> None:
    rows = sentence_rows()
    model = tiny_bert()
    first = train(make_args(), model, QUANTIZE, train_dataset=rows)
    first.save_model(str(tmp_path / "int8"))
    built = tiny_bert(seed=4)
    built.load_state_dict(model.state_dict())
    second = Trainer(
        built, tmp_path / "int8", KEEP, args=make_args(), train_dataset=rows, eval_dataset=rows, tokenizer=None
    )
    assert second.evaluate()["eval_loss"] == first.evaluate(rows)["eval_loss"]
    name = "bert.encoder.layer.0.output.dense"
    before = built.get_submodule(name).input_fake_quantizer.high.clone()
    second.train()
    assert torch.equal(built.get_submodule(name).input_fake_quantizer.high, before)
    second.save_model(str(tmp_path / "next"))
    last = tiny_bert(seed=6)
    last.load_state_dict(built.state_dict())
    third = Trainer(last, tmp_path / "next", None, args=make_args(), eval_dataset=rows)
    assert third.evaluate()["eval_loss"] == second.evaluate()["eval_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [QUANTIZE, THIN, DROP])
def test_the_same_again(make_args: MakeArgs, tmp_path: Path, recipe: str) -> None:
    """Twice smaller, or rounded anew: what is saved gives the model back."""
    is_bert = "bert" in recipe or "classifier" in recipe

    def make(seed: int) -> Any:
        return tiny_bert(seed=seed) if is_bert else Plain(seed=seed)

    rows = sentence_rows() if is_bert else classification_rows()
    model = make(0)
    train(make_args(), model, recipe, train_dataset=rows).save_model(str(tmp_path / "0"))
    again = recipe.replace("layer.1", "layer.0")
    second = train(make_args(), model, again, tmp_path / "0", train_dataset=rows, eval_dataset=rows)
    second.save_model(str(tmp_path / "1"))
    built = make(5)
    if recipe == QUANTIZE:
        built.load_state_dict(load_file(tmp_path / "1" / "model.safetensors"))
    third = Trainer(built, tmp_path / "1", None, args=make_args(), eval_dataset=rows)
    assert equal(weights(built), weights(model))
    assert third.evaluate()["eval_loss"] == second.evaluate()["eval_loss"]
    if recipe == THIN:
        assert built.first.out_features == 2


@pytest.mark.slow
def test_a_run_with_a_past_resumes_to_the_last_bit(make_args: MakeArgs, tmp_path: Path) -> None:
    """The same kinds of modifiers in both recipes: what is saved of them must not be confused."""
    train(make_args(), tiny_bert(), PRUNE + QUANTIZE.split("\n", 3)[3], train_dataset=sentence_rows()).save_model(
        str(tmp_path / "first")
    )
    more = PRUNE.replace("0.5\ntr", "0.8\ntr") + "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5}\n"

    def build(run: str) -> Trainer:
        model = tiny_bert(seed=5)
        model.load_state_dict(load_file(tmp_path / "first" / "model.safetensors"))
        args = make_args(output_dir=str(tmp_path / run), save_strategy="steps", save_steps=1, seed=4)
        return Trainer(model, tmp_path / "first", more, args=args, train_dataset=sentence_rows(), teacher="self")

    whole = build("whole")
    whole.train()
    for step in (1, 3):
        parts = build("parts")
        parts.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert equal(weights(whole.model), weights(parts.model)), step
    kinds = [type(modifier).__name__ for modifier in restore_recipe(tiny_bert(), tmp_path / "whole" / "checkpoint-3")]
    assert kinds.count("MagnitudePruningModifier") == 2


def test_what_cannot_have_a_past(make_args: MakeArgs, tmp_path: Path) -> None:
    train(make_args(), Plain(), PRUNE).save_model(str(tmp_path / "sparse"))
    with pytest.raises(ValueError, match="not model_init="):
        Trainer(None, tmp_path / "sparse", None, args=make_args(), model_init=Plain)
    with pytest.raises(ValueError, match="list of modifiers"):
        Trainer(Plain(), tmp_path / "sparse", [], args=make_args())
    train(make_args(), tiny_bert(), DROP, train_dataset=sentence_rows()).save_model(str(tmp_path / "dropped"))
    with pytest.raises(ValueError, match="does not fit this model"):
        Trainer(Plain(), tmp_path / "dropped", None, args=make_args())


# ---- without training


def test_one_shot(make_args: MakeArgs, tmp_path: Path) -> None:
    model = tiny_bert()
    recipe = PRUNE + QUANTIZE.split("\n", 3)[3]
    rows = sentence_rows()
    trainer = Trainer(
        model,
        None,
        recipe,
        args=make_args(),
        data_args=DataArguments(one_shot=True),
        train_dataset=rows,
        eval_dataset=rows,
    )
    assert trainer.one_shot
    assert trainer.train().global_step == 0
    assert zeros(model)["classifier.weight"] == pytest.approx(0.5, abs=0.05)
    assert model.get_submodule("bert.pooler.dense").rounds
    found = trainer.evaluate()["eval_loss"]
    trainer.save_model(str(tmp_path / "saved"))
    again = tiny_bert(seed=3)
    again.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    second = Trainer(again, tmp_path / "saved", None, args=make_args(), eval_dataset=rows)
    assert second.evaluate()["eval_loss"] == found
    with pytest.raises(ValueError, match="there is none"):
        Trainer(Plain(), None, None, args=make_args(), one_shot=True)


def test_one_shot_by_second_order_scores(make_args: MakeArgs) -> None:
    recipe = PRUNE.replace("MagnitudePruning", "OBSPruning").replace("update", "num_grads: 4, update")
    model = Plain()
    trainer = Trainer(model, None, recipe, args=make_args(), train_dataset=classification_rows(), one_shot=True)
    trainer.train()
    total = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    assert sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1) == round(total / 2)
    assert all(parameter.grad is None for parameter in model.parameters())


# ---- what the original got wrong


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        yield from classification_rows(64)


def test_a_stream_has_no_length_and_needs_none(make_args: MakeArgs) -> None:
    model = Plain()
    train(make_args(max_steps=8), model, PRUNE, train_dataset=Stream())
    assert all(abs(share - 0.5) <= 0.03 for share in zeros(model).values())


def test_a_frequency_that_would_not_act_is_refused(make_args: MakeArgs) -> None:
    with pytest.raises(ValueError, match="a teacher is asked in every step"):
        Trainer(Plain(), None, DISTIL.replace("}", ", update_frequency: 0.5}"), args=make_args(), teacher="self")


def test_rates_above_one(make_args: MakeArgs) -> None:
    recipe = "modifiers:\n  - !SetLearningRateModifier {learning_rate: 1.5, start_epoch: 0}\n"
    with pytest.warns(TrainwrightWarning, match="recipe sets the learning rate"):
        trainer = train(make_args(max_steps=1), Plain(), recipe)
    assert trainer.optimizer.param_groups[0]["lr"] == 1.5


def test_nothing_is_sent_or_left_behind(make_args: MakeArgs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original reports to a server, and makes ./sparse_logs."""
    import socket

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(make_args(num_train_epochs=1), Plain(), PRUNE)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.slow
def test_compiled(make_args: MakeArgs) -> None:
    """The original's hooks do not compile."""
    plain, compiled = Plain(), Plain()
    train(make_args(), plain, PRUNE + DISTIL, teacher=Plain(seed=9))
    args = make_args(torch_compile=True, torch_compile_backend="eager")
    train(args, compiled, PRUNE + DISTIL, teacher=Plain(seed=9))
    assert equal(weights(plain), weights(compiled))


def test_log_of_the_sparsity(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    trainer = train(make_args(), Plain(), PRUNE)
    with caplog.at_level(logging.INFO, logger="trainwright"):
        trainer.log_model_sparsification()
        trainer.save_optimizer_and_scheduler()
    assert "50.00 % of 72 prunable ones are zero" in caplog.text
    assert "are in the checkpoints" in caplog.text
