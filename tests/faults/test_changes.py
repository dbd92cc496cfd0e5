"""A run that is resumed with other settings: what goes on, what it says, and what is refused."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.faults.runner import Net, rows
from tests.faults.scenarios import Scenario
from tests.faults.test_exactness import build, interrupted
from tests.models import Plain
from trainwright import Trainer

#: 24 rows in batches of 4, two batches a step: three steps an epoch, three epochs.
BY_EPOCHS: dict[str, Any] = {
    "max_steps": -1,
    "num_train_epochs": 3,
    "gradient_accumulation_steps": 2,
    "eval_strategy": "no",
    "metric_for_best_model": None,
    "log_level": "warning",
}


class Stable(Net):
    """Takes batches of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = nn.LayerNorm(8)


class Numbered:
    """Writes down which samples were asked for."""

    def __init__(self, length: int = 24) -> None:
        self.rows, self.asked = rows(length), list[int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.asked.append(index)
        return self.rows[index]


def cut(folder: Path, step: int, length: int = 24, **settings: Any) -> list[int]:
    """A run interrupted after ``step`` steps; returns the samples it has used."""
    made: list[Numbered] = []

    def data() -> Numbered:
        made.append(Numbered(length))
        return made[-1]

    interrupted(Scenario({**BY_EPOCHS, **settings}, model=Stable, data=data), folder, step)
    return made[0].asked


def resumed(folder: Path, length: int = 24, model: Callable[[], nn.Module] | None = None, **settings: Any) -> Trainer:
    scenario = Scenario({**BY_EPOCHS, **settings}, model=model or Stable, data=lambda: Numbered(length))
    trainer = build(scenario, folder)
    trainer.train(resume_from_checkpoint=True)
    return trainer


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.WARNING, logger="trainwright")
    return lambda: "\n".join(
        text for record in caplog.records if not (text := record.getMessage()).startswith("Stopped by SIGTERM")
    )


AMOUNTS: dict[str, tuple[dict[str, Any], int, str]] = {
    # what changes; steps in all three epochs, cut after four of the old ones; what is said
    "smaller batches": ({"per_device_train_batch_size": 2}, 4 + 4 + 6, "batch size was 4 and is 2 now"),
    "larger batches": ({"per_device_train_batch_size": 8}, 4 + 1 + 2, "batch size was 4 and is 8 now"),
    "batches of 3": ({"per_device_train_batch_size": 3}, 4 + 3 + 4, "batch size was 4 and is 3 now"),
    "batches of 5": ({"per_device_train_batch_size": 5}, 4 + 2 + 3, "batch size was 4 and is 5 now"),
    "no accumulation": ({"gradient_accumulation_steps": 1}, 4 + 4 + 6, "gradient accumulation was 2 and is 1 now"),
    "more accumulation": ({"gradient_accumulation_steps": 3}, 4 + 2 + 2, "gradient accumulation was 2 and is 3 now"),
    "both": (
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        4 + 2 + 3,
        "batch size was 4 and is 2 now; gradient accumulation was 2 and is 4 now",
    ),
}


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=() if name == "batches of 5" else pytest.mark.slow) for name in AMOUNTS]
)
def test_other_amounts_in_the_middle_of_an_epoch(change: str, tmp_path: Path, said: Callable[[], str]) -> None:
    settings, steps, words = AMOUNTS[change]
    before = cut(tmp_path, 4)
    trainer = resumed(tmp_path, **settings)
    assert words in said()
    assert "continuing after the same number of samples" in said()
    assert trainer.state.global_step == trainer.state.max_steps == steps
    assert trainer.state.epoch == pytest.approx(3)
    # Every sample once in each of the three epochs.
    everything = before + trainer.train_dataset.asked
    assert Counter(everything) == dict.fromkeys(range(24), 3)
    assert Counter(everything[24:48]) == dict.fromkeys(range(24), 1)
    logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == list(range(3, steps + 1, 3))
    # The schedule ends where the run does.
    assert trainer.lr_scheduler.get_last_lr() == pytest.approx([0.0, 0.0])


@pytest.mark.slow
def test_other_amounts_may_change_twice(tmp_path: Path) -> None:
    seen = cut(tmp_path, 4)
    seen += cut(tmp_path, 5, per_device_train_batch_size=3, resume="auto")
    trainer = resumed(tmp_path, per_device_train_batch_size=5, gradient_accumulation_steps=1)
    assert Counter(seen + trainer.train_dataset.asked) == dict.fromkeys(range(24), 3)
    assert trainer.state.epoch == pytest.approx(3)


def test_other_amounts_at_the_start_of_an_epoch(tmp_path: Path, said: Callable[[], str]) -> None:
    before = cut(tmp_path, 3)
    trainer = resumed(tmp_path, per_device_train_batch_size=6)
    assert "batch size was 4 and is 6 now" in said()
    assert trainer.state.global_step == 3 + 2 * 2
    assert Counter(before + trainer.train_dataset.asked) == dict.fromkeys(range(24), 3)


def test_max_steps_still_counts_steps(tmp_path: Path) -> None:
    cut(tmp_path, 4, max_steps=9)
    trainer = resumed(tmp_path, per_device_train_batch_size=2, max_steps=9)
    assert trainer.state.global_step == 9


@pytest.mark.slow
@pytest.mark.parametrize("length", [8, 12, 40])
@pytest.mark.parametrize("by", ["epochs", "steps"])
def test_a_run_has_its_length_whatever_the_data(by: str, length: int, tmp_path: Path) -> None:
    limit: dict[str, Any] = {"max_steps": 20} if by == "steps" else {}
    cut(tmp_path, 3, **limit)
    _announce(tmp_path / "checkpoint-3")
    trainer = resumed(tmp_path, length=length, **limit)
    expected = 20 if by == "steps" else 3 + 2 * -(-length // 8)
    assert trainer.state.global_step == trainer.state.max_steps == expected


def test_a_dataset_of_another_length(tmp_path: Path, said: Callable[[], str]) -> None:
    cut(tmp_path, 4)
    with pytest.raises(
        ValueError, match=r"stands in epoch 1.*the dataset's length was 24 and is 32 now.*ignore_data_sk"
    ):
        resumed(tmp_path, length=32)
    assert resumed(tmp_path, length=32, ignore_data_skip=True).state.epoch == pytest.approx(3)


def test_a_dataset_of_another_length_at_the_start_of_an_epoch(tmp_path: Path, said: Callable[[], str]) -> None:
    cut(tmp_path, 3)
    # The end of the epoch has not been announced after its last step, but its samples are used up.
    _announce(tmp_path / "checkpoint-3")
    trainer = resumed(tmp_path, length=32)
    assert "Resuming at the start of an epoch, with changes: the dataset's length was 24 and is 32 now" in said()
    assert Counter(trainer.train_dataset.asked) == dict.fromkeys(range(32), 2)


def test_another_data_seed(tmp_path: Path) -> None:
    cut(tmp_path, 4, data_seed=1)
    with pytest.raises(ValueError, match="another experiment: data_seed was 1 and is 2 now"):
        resumed(tmp_path, data_seed=2)


def test_another_way_of_sampling(tmp_path: Path) -> None:
    cut(tmp_path, 4)
    with pytest.raises(ValueError, match="the way of sampling was RandomOrder and is SequentialOrder now"):
        resumed(tmp_path, train_sampling_strategy="sequential")


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "steps"), [(5, 15), (3.5, 11), (2, 6), (1, 4)])
def test_more_and_fewer_epochs(tmp_path: Path, epochs: float, steps: int, said: Callable[[], str]) -> None:
    cut(tmp_path, 4)
    trainer = resumed(tmp_path, num_train_epochs=epochs)
    assert trainer.state.global_step == steps
    assert ("The run is at step 4, and 3 are asked for now" in said()) == (epochs == 1)
    # What was done already stays done.
    assert trainer.state.epoch == pytest.approx(max(epochs, 4 / 3), abs=0.2)


@pytest.mark.slow
def test_a_finished_run_may_be_extended(tmp_path: Path) -> None:
    cut(tmp_path, 9)
    assert resumed(tmp_path).state.global_step == 9
    trainer = resumed(tmp_path, num_train_epochs=4)
    assert trainer.state.global_step == 12
    assert Counter(trainer.train_dataset.asked) == dict.fromkeys(range(24), 1)


class Wider(Stable):
    def __init__(self) -> None:
        super().__init__()
        self.layers[4] = nn.Linear(8, 5)


class Frozen(Stable):
    def __init__(self) -> None:
        super().__init__()
        self.layers[0].requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Plain().float(), r"do not fit the model: missing \['first.bias'.*unexpected \['layers.0.bias'"),
        (Wider, r"layers\.4\.\w+ is \(3.*\) there and \(5.*\) here, and 1 more"),
        (Frozen, "state for 'layers.0.bias', which this model does not train"),
    ],
    ids=["another", "wider", "partly frozen"],
)
def test_another_model(model: Callable[[], nn.Module], message: str, tmp_path: Path) -> None:
    cut(tmp_path, 4)
    with pytest.raises(ValueError, match=message):
        resumed(tmp_path, model=model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optim": "sgd"}, "The optimizer was AdamW when the checkpoint was saved and is SGD now"),
        ({"optim": "adafactor"}, "The optimizer was AdamW .* is Adafactor now"),
        ({"optim": "muon"}, "The optimizer was AdamW .* is MuonWithAdamW now"),
    ],
)
def test_another_optimizer_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    cut(tmp_path, 4)
    with pytest.raises(ValueError, match=f"{message}.*start a new run from the checkpoint's weights"):
        resumed(tmp_path, **settings)


def test_the_same_optimizer_in_another_form_goes_on(tmp_path: Path, said: Callable[[], str]) -> None:
    cut(tmp_path, 4, optim="adamw_torch_fused")
    assert resumed(tmp_path, optim="adamw_torch").state.global_step == 9
    assert said() == ""


def test_another_curve_of_the_learning_rate_goes_on_and_is_said(tmp_path: Path, said: Callable[[], str]) -> None:
    cut(tmp_path, 4)
    trainer = resumed(tmp_path, lr_scheduler_type="linear", logging_steps=1)
    assert "From step 4 on with lr_scheduler_type 'linear' (was 'cosine')" in said()
    rates = {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry}
    assert rates[7] == pytest.approx(2e-2 * 3 / 9)


def test_another_learning_rate_acts_and_is_said(tmp_path: Path, said: Callable[[], str]) -> None:
    cut(tmp_path, 4)
    trainer = resumed(tmp_path, learning_rate=1e-3)
    assert "learning_rate 0.001 (was 0.02) (transformers would keep the old learning_rate)" in said()
    assert trainer.optimizer.param_groups[0]["initial_lr"] == 1e-3


def test_nothing_is_said_where_nothing_changed(tmp_path: Path, said: Callable[[], str]) -> None:
    cut(tmp_path, 4)
    trainer = resumed(tmp_path)
    assert said() == ""
    assert all(torch.isfinite(tensor).all() for tensor in trainer.model.state_dict().values())


def _announce(checkpoint: Path) -> None:
    """Turn the place after an epoch's last batch into the start of the next epoch."""
    from trainwright.checkpoint.durable import facts_of
    from trainwright.checkpoint.manifest import read_manifest, run_of, write_manifest

    path = checkpoint / "training_state.json"
    contents = json.loads(path.read_text())
    contents["data"] |= {"epoch": contents["data"]["epoch"] + 1, "batches": 0, "samples": 0}
    path.write_text(json.dumps(contents))
    manifest = read_manifest(checkpoint)
    facts = {name: facts_of(checkpoint / name) for name in manifest["files"]}
    write_manifest(checkpoint, facts, manifest["step"], run_of(checkpoint))
