"""Attributes and methods of transformers' Trainer that subclasses set, read, call and copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from torch import Tensor, nn

import trainwright
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.checkpoint.manifest import verify
from trainwright.config import TrainwrightWarning

Make = Callable[..., TrainingArguments]
ROWS: Any = classification_rows(16)


# ---- loss_is_scaled_for_ga


def mean_loss(model: Any, inputs: Any) -> Tensor:
    return nn.functional.cross_entropy(model.logits(inputs["x"]), inputs["labels"])


def first_gradient_norm(library: Any, folder: Path, scaled: bool | None, divides: str | None, late: bool) -> float:
    """The gradient norm of a step of two batches, with a loss that the subclass has scaled, or not, by itself."""

    class Own(library.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None):
            loss = mean_loss(model, inputs)
            if divides == "by steps":
                return loss / self.current_gradient_accumulation_steps
            return loss * len(inputs["x"]) / num_items_in_batch if divides == "by items" else loss

    if not late:
        Own.loss_is_scaled_for_ga = scaled
    args = library.TrainingArguments(
        str(folder), max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
        use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", max_grad_norm=1e9,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer: Any = Own(Plain().float(), args, train_dataset=ROWS)
    if late:
        trainer.loss_is_scaled_for_ga = scaled
    trainer.train()
    return float(trainer.state.log_history[0]["grad_norm"])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("scaled", "divides"), [(True, "by steps"), (True, "by items"), (True, None), (False, None), (False, "by steps")]
)
def test_a_loss_that_says_how_it_is_scaled_gives_transformers_gradient(
    tmp_path: Path, scaled: bool, divides: str | None, late: bool
) -> None:
    ours, theirs = (
        first_gradient_norm(library, tmp_path / library.__name__, scaled, divides, late)
        for library in (trainwright, transformers)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)


class UnevenWords(nn.Module):
    """Counts targets by labels that are not -100, of which batches have more or fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, labels: Any = None, **kwargs: Any) -> dict[str, Tensor]:
        return {"logits": self.layer(x)}


def uneven_numbers(library: Any, folder: Path, says: bool | None) -> list[float]:
    """Gradient norm and evaluation of two batches with one target and four; the loss is a mean over something else."""

    class PerPair(library.Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if says is not None:
                self.model_accepts_loss_kwargs = says

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None):
            assert says is None or num_items_in_batch is None
            outputs = model(inputs["x"])
            loss = outputs["logits"].square().mean()
            return (loss, {"loss": loss, **outputs}) if return_outputs else loss

    numbers = torch.Generator().manual_seed(0)
    labels = [1, -100, -100, -100, 1, 1, 1, 1]
    rows = [{"x": torch.randn(4, generator=numbers), "labels": torch.tensor(label)} for label in labels]
    args = library.TrainingArguments(
        str(folder), max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
        use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", max_grad_norm=1e9,
        train_sampling_strategy="sequential", per_device_eval_batch_size=4,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer: Any = PerPair(UnevenWords(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    return [float(trainer.state.log_history[0]["grad_norm"]), float(trainer.evaluate()["eval_loss"])]


def test_a_loss_that_says_it_counts_no_items_weighs_each_batch_the_same(tmp_path: Path) -> None:
    """As DPO and reward trainers did before ``loss_is_scaled_for_ga``: their loss is a mean over pairs, not words."""
    ours, theirs = (
        uneven_numbers(library, tmp_path / library.__name__, says=False) for library in (trainwright, transformers)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert uneven_numbers(trainwright, tmp_path / "unsaid", says=None) != pytest.approx(theirs, rel=1e-2)


# ---- loaders that subclasses copy or change


class Version4(Trainer):
    """``get_train_dataloader`` as transformers 4 had it, which many repositories carry a changed copy of."""

    def get_train_dataloader(self) -> Any:
        dataset, collator = self.train_dataset, self.data_collator
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        options = {"batch_size": self._train_batch_size, "collate_fn": collator, "sampler": self._get_train_sampler()}
        return self.accelerator.prepare(torch.utils.data.DataLoader(dataset, **options))


class Version5(Trainer):
    """The same of transformers 5."""

    def get_train_dataloader(self) -> Any:
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self._get_dataloader(
            dataset=self.eval_dataset if eval_dataset is None else eval_dataset,
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key="eval",
        )


def rows_with_a_note(kind: str) -> Any:
    """Rows with a column that no collator can stack."""
    rows = [{**row, "note": f"row {number}"} for number, row in enumerate(ROWS)]
    if kind == "list":
        return rows
    plain = [{name: getattr(value, "tolist", lambda v=value: v)() for name, value in row.items()} for row in rows]
    return datasets.Dataset.from_list(plain)


@pytest.mark.parametrize("kind", ["list", "datasets"])
@pytest.mark.parametrize("copied", [Version4, Version5])
def test_a_copied_loader_trains_as_our_own(make_args: Make, kind: str, copied: type[Trainer]) -> None:
    def trained(chosen: type[Trainer]) -> Trainer:
        args = make_args(max_steps=5, per_device_train_batch_size=4, learning_rate=1e-2, per_device_eval_batch_size=3)
        rows = rows_with_a_note(kind)
        trainer = chosen(Plain().float(), args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        return trainer

    ours, theirs = trained(Trainer), trained(copied)
    for name, value in ours.model.state_dict().items():
        assert torch.equal(theirs.model.state_dict()[name], value), name
    assert theirs.evaluate()["eval_loss"] == ours.evaluate()["eval_loss"]


class CollatesNotes:
    """Takes what is left of the notes out of the samples and counts them."""

    def __init__(self) -> None:
        self.notes = 0

    def __call__(self, samples: list[Any]) -> Any:
        self.notes += sum("note" in sample for sample in samples)
        kept = [{name: value for name, value in sample.items() if name != "note"} for sample in samples]
        return trainwright.default_data_collator(kept)


class NamesItsColumns(Trainer):
    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            self._signature_columns = ["x", "labels", "note"]


class SetsItsColumns(Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_signature_columns_if_needed()
        assert self._signature_columns is not None
        self._signature_columns += ["note"]


class KeepsEveryColumn(Trainer):
    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        return dataset

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        return data_collator


class MakesItsLoader(Trainer):
    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        assert description in ("Training", "Evaluation", "test")
        self._signature_columns = ["x", "labels", "note"]
        return super()._get_dataloader(dataset, description, *args, **kwargs)


@pytest.mark.parametrize("kind", ["list", "datasets"])
@pytest.mark.parametrize("chosen", [NamesItsColumns, SetsItsColumns, KeepsEveryColumn, MakesItsLoader])
def test_a_subclass_decides_which_columns_reach_its_collator(make_args: Make, kind: str, chosen: type[Trainer]) -> None:
    collator, rows = CollatesNotes(), rows_with_a_note(kind)
    args = make_args(max_steps=2, per_device_train_batch_size=4)
    trainer = chosen(Plain().float(), args, collator, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert collator.notes == 8
    trainer.evaluate()
    assert collator.notes == 24
    trainer.predict(rows)
    assert collator.notes == 40


def test_signature_columns_are_those_of_transformers(make_args: Make, tmp_path: Path) -> None:
    ours: Any = Trainer(Plain().float(), make_args())
    theirs: Any = transformers.Trainer(Plain().float(), transformers.TrainingArguments(str(tmp_path), report_to="none"))
    found: list[Any] = []
    for trainer in (ours, theirs):
        found.append(trainer._signature_columns)
        trainer._set_signature_columns_if_needed()
        found.append({*trainer._signature_columns} - {"kwargs"})
    assert found == [None, found[1], None, found[1]]
    assert ours._train_batch_size == theirs._train_batch_size == 8


def test_columns_follow_a_model_that_fit_is_given(make_args: Make) -> None:
    class TakesNotes(Plain):
        def forward(self, x: Tensor, labels: Tensor | None = None, note: Any = None) -> Any:  # type: ignore[override]
            return super().forward(x, labels)

    collator = CollatesNotes()
    trainer = Trainer(Plain().float(), make_args(max_steps=1), collator)
    trainer._set_signature_columns_if_needed()
    trainer.fit(TakesNotes().float(), rows_with_a_note("list"))
    assert collator.notes == 8


def test_another_training_batch_size_than_the_arguments_say_is_refused(make_args: Make) -> None:
    trainer = Trainer(Plain().float(), make_args(per_device_train_batch_size=4))
    trainer._train_batch_size = 4
    with pytest.raises(ValueError, match="per_device_train_batch_size=2"):
        trainer._train_batch_size = 2


def test_a_schedule_has_the_functions_that_scripts_plot(make_args: Make, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr_scheduler_type": "cosine", "warmup_steps": 3}
    ours: Any = Trainer(Plain().float(), make_args(**settings), train_dataset=ROWS)
    their_args = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, **settings)
    theirs: Any = transformers.Trainer(Plain().float(), their_args, train_dataset=ROWS)
    curves = []
    for trainer in (ours, theirs):
        trainer.create_optimizer_and_scheduler(20)
        assert len(trainer.lr_scheduler.lr_lambdas) == len(trainer.optimizer.param_groups)
        curves.append([trainer.lr_scheduler.lr_lambdas[0](step) for step in range(20)])
    assert curves[0] == pytest.approx(curves[1])


# ---- saving and resuming


def test_a_subclass_that_loads_weights_gets_the_folder_as_a_string(make_args: Make) -> None:
    """Subclasses ask ``resume_from_checkpoint.endswith(...)``, or add to it."""
    seen: list[str] = []

    class Own(Trainer):
        def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
            seen.append(resume_from_checkpoint + "/model.safetensors")
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    settings: dict[str, Any] = {
        "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True,
        "lr_scheduler_type": "constant",
    }  # fmt: skip
    args = make_args(**{**settings, "max_steps": 2})
    Own(Plain().float(), args, train_dataset=ROWS, eval_dataset=ROWS).train()
    assert len(seen) == 1
    Own(Plain().float(), make_args(**settings), train_dataset=ROWS, eval_dataset=ROWS).train(True)
    assert len(seen) == 3
    assert all(Path(path).is_file() for path in seen)


def test_saving_as_older_versions_of_transformers_did(make_args: Make, tmp_path: Path) -> None:
    """Until 4.46 ``_save_checkpoint`` took the metrics too; the folder it writes is asked for by name."""
    folders: list[Path] = []

    class Own(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
            super()._save_checkpoint(model, trial, metrics=metrics)
            folders.append(Path(self._get_output_dir(trial=trial) + f"/checkpoint-{self.state.global_step}"))

    Own(Plain().float(), make_args(max_steps=2, save_strategy="steps", save_steps=1), train_dataset=ROWS).train()
    assert folders == [tmp_path / "run" / "checkpoint-1", tmp_path / "run" / "checkpoint-2"]
    assert all((folder / "model.safetensors").is_file() for folder in folders)


def test_another_place_for_checkpoints_than_output_dir_is_not_silently_ignored(make_args: Make) -> None:
    class Elsewhere(Trainer):
        def _get_output_dir(self, trial: Any = None) -> str:
            return "elsewhere"

    with pytest.warns(TrainwrightWarning, match="Elsewhere defines _get_output_dir, which"):
        Elsewhere(Plain().float(), make_args())


def test_what_a_subclass_writes_into_a_checkpoint_first_is_part_of_it(make_args: Make, tmp_path: Path) -> None:
    class Own(Trainer):
        def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            (folder / "extra").mkdir(parents=True, exist_ok=True)
            (folder / "extra" / "projector.txt").write_text(f"step {self.state.global_step}")
            (folder / "model.safetensors").write_text("not the weights")
            super()._save_checkpoint(model, trial)

    args = make_args(max_steps=4, save_strategy="steps", save_steps=2)
    # What somebody else left under the name is still not ours to change.
    (tmp_path / "run" / "checkpoint-4").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-4" / "found.txt").write_text("from before")
    trainer = Own(Plain().float(), args, train_dataset=ROWS)
    trainer.train()
    folder = tmp_path / "run" / "checkpoint-2"
    assert (folder / "extra" / "projector.txt").read_text() == "step 2"
    names = sorted(path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("checkpoint-"))
    assert names == ["checkpoint-2", "checkpoint-4", "checkpoint-4.other-1"]
    assert (tmp_path / "run" / "checkpoint-4.other-1" / "found.txt").read_text() == "from before"
    verify(folder)
    Own(Plain().float(), make_args(max_steps=4), train_dataset=ROWS).train(str(folder))


# ---- compute_loss_func


@pytest.mark.parametrize("counts", [True, False])
def test_a_loss_function_that_a_subclass_sets_after_our_constructor_is_as_one_passed_to_it(
    make_args: Make, counts: bool
) -> None:
    seen: list[Any] = []

    def counted(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        seen.append(int(num_items_in_batch))
        return 3 * nn.functional.cross_entropy(outputs["logits"], labels)

    def plain(outputs: Any, labels: Tensor) -> Tensor:
        return 3 * nn.functional.cross_entropy(outputs["logits"], labels)

    function = counted if counts else plain

    class Late(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            assert self.compute_loss_func is None
            self.compute_loss_func = function

    losses = []
    for build in (Late, lambda *a, **k: Trainer(*a, compute_loss_func=function, **k)):
        torch.manual_seed(0)
        trainer: Any = build(Plain().float(), make_args(max_steps=2, logging_steps=1), train_dataset=ROWS)
        trainer.train()
        trainer.evaluate(ROWS)
        losses.append([row[key] for row in trainer.state.log_history for key in ("loss", "eval_loss") if key in row])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert bool(seen) == counts
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


# ---- attributes that are declared in the class


def test_attributes_that_a_subclass_declares_are_those_that_the_constructor_sets(make_args: Make) -> None:
    class Declares:
        model = None
        args = None

    class Own(Declares, Trainer):
        optimizer = None
        compute_loss_func = None
        beta = None

    model = Plain().float()
    trainer: Any = Own(model, make_args(max_steps=2), train_dataset=ROWS)
    assert trainer.model is model
    assert trainer.args.max_steps == 2
    trainer.train()
    assert trainer.optimizer is not None
    assert trainer.beta is None
    assert Declares.args is None
