"""A resumed run with other settings trains on by them, as if they had always been set; and its record says so."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from tests.faults.runner import rows
from tests.faults.scenarios import Scenario
from tests.faults.test_changes import BY_EPOCHS, Numbered, Stable, cut
from tests.faults.test_exactness import build
from trainwright import EarlyStoppingCallback, Trainer, TrainingArguments
from trainwright.config.effects import Effect, arguments_by_effect, effect_of
from trainwright.config.fields import TOPICS
from trainwright.core.config_history import Change

SETTINGS = {**BY_EPOCHS, "logging_steps": 1}


def whole(folder: Path, **settings: Any) -> Trainer:
    trainer = build(Scenario({**SETTINGS, **settings}, model=Stable, data=Numbered), folder)
    trainer.train()
    return trainer


def resumed(folder: Path, **settings: Any) -> Trainer:
    trainer = build(Scenario({**SETTINGS, **settings}, model=Stable, data=Numbered), folder)
    trainer.train(resume_from_checkpoint=True)
    return trainer


def rates(trainer: Trainer) -> dict[int, float]:
    return {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry}


CURVES: dict[str, dict[str, Any]] = {
    "another rate": {"learning_rate": 1e-3},
    "another curve": {"lr_scheduler_type": "linear"},
    "a warm-up": {"warmup_steps": 6},
    "other options": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.5}},
    "more epochs": {"num_train_epochs": 5},
    "fewer epochs": {"num_train_epochs": 2},
    "all of it": {"learning_rate": 0.5, "lr_scheduler_type": "polynomial", "warmup_steps": 2, "num_train_epochs": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CURVES)
def test_rates_are_those_of_a_run_that_was_always_set_so(change: str, tmp_path: Path) -> None:
    cut(tmp_path / "cut", 4)
    other = resumed(tmp_path / "cut", **CURVES[change])
    always = whole(tmp_path / "whole", **CURVES[change])
    later = {step: rate for step, rate in rates(always).items() if step > 4}
    assert later
    assert {step: rate for step, rate in rates(other).items() if step > 4} == later


def test_a_finished_run_that_is_extended_has_no_step_at_rate_zero(tmp_path: Path) -> None:
    whole(tmp_path)
    longer = resumed(tmp_path, num_train_epochs=4)
    assert longer.state.global_step == 12
    assert all(rate > 0 for step, rate in rates(longer).items() if step > 9)


def _loop(model: nn.Module, batches: list[list[dict[str, Tensor]]], optimizer: torch.optim.Optimizer) -> None:
    for group in batches:
        optimizer.zero_grad()
        inputs = torch.stack([row["x"] for row in group])
        labels = torch.stack([row["labels"] for row in group])
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layer(x)
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}


def test_the_weights_are_those_of_a_loop_that_changes_rate_and_decay(tmp_path: Path) -> None:
    """One parameter group decays in the second half, which did not in the first: as a loop in plain PyTorch does."""
    samples = [{"x": torch.randn(4), "labels": torch.tensor(number % 3)} for number in range(24)]

    def run(steps: int, **settings: Any) -> Trainer:
        arguments = TrainingArguments(
            str(tmp_path / "run"),
            per_device_train_batch_size=4,
            max_steps=steps,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            train_sampling_strategy="sequential",
            optim="adamw_torch",
            report_to="none",
            resume="auto",
            **settings,
        )
        trainer = Trainer(Linear(), arguments, train_dataset=samples)
        trainer.train()
        return trainer

    run(3, learning_rate=0.1)
    ours = run(6, learning_rate=0.02, weight_decay=0.3, adam_beta1=0.5)
    model = Linear()
    groups = [{"params": [model.layer.weight]}, {"params": [model.layer.bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.0)

    class Logits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model.layer(x)

    batches = [samples[start : start + 4] for start in range(0, 24, 4)]
    _loop(Logits(), batches[:3], optimizer)
    for group, decay in zip(optimizer.param_groups, (0.3, 0.0), strict=True):
        group["lr"], group["weight_decay"], group["betas"] = 0.02, decay, (0.5, 0.999)
    _loop(Logits(), batches[3:], optimizer)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dict(ours.model.named_parameters())[name]), name


def test_schedules_that_follow_a_metric_scale_with_the_rate(tmp_path: Path) -> None:
    metric = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    # Every evaluation looks worse than the first.
    options = {"patience": 0, "threshold": 100.0, "threshold_mode": "abs", "factor": 0.5}
    settings = {**metric, "lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": options}
    cut(tmp_path, 4, **settings)
    then = json.loads((tmp_path / "checkpoint-4" / "training_state.json").read_text())
    trainer = resumed(tmp_path, learning_rate=0.2, **settings)
    before = then["optimizer"]["param_groups"][0]["lr"]
    assert before < 2e-2
    # The evaluation of step 4 was still to come.
    assert rates(trainer)[5] == pytest.approx(before * 10 * 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
def test_from_a_curve_to_a_metric_and_back(kind: str, tmp_path: Path) -> None:
    metric = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "loss"}
    cut(tmp_path, 4, **metric)
    trainer = resumed(tmp_path, lr_scheduler_type=kind, save_steps=1, max_steps=7, **metric)
    assert rates(trainer)[5] == 2e-2
    back = resumed(tmp_path, lr_scheduler_type="linear", **metric)
    assert rates(back)[8] == pytest.approx(2e-2 * 2 / 9)


class Given:
    """A script that makes its optimizer and schedule itself."""

    def __init__(self, folder: Path, steps: int, **made: Any) -> None:
        torch.manual_seed(0)
        model = Stable()
        optimizer = torch.optim.SGD(model.parameters(), lr=made.pop("lr", 0.1), momentum=made.pop("momentum", 0.9))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=made.pop("gamma", 0.5))
        arguments = TrainingArguments(
            str(folder), max_steps=steps, logging_steps=1, resume="auto", report_to="none", save_steps=1, **made
        )
        self.trainer = Trainer(model, arguments, train_dataset=rows(24), optimizers=(optimizer, schedule))
        self.trainer.train()


def test_an_optimizer_that_the_script_makes_goes_on_as_it_makes_it_now(tmp_path: Path) -> None:
    Given(tmp_path, 4)
    trainer = Given(tmp_path, 8, lr=0.01, momentum=0.5, gamma=0.1).trainer
    assert trainer.optimizer.param_groups[0]["momentum"] == 0.5
    assert rates(trainer)[5] == pytest.approx(0.01 * 0.1**2)
    assert rates(trainer)[7] == pytest.approx(0.01 * 0.1**3)
    changed = {entry["what"]: (entry["from"], entry["to"]) for entry in history(tmp_path)}
    assert changed["optimizer.lr"] == (0.1, 0.01)
    assert changed["optimizer.momentum"] == (0.9, 0.5)
    assert changed["schedule.gamma"] == (0.5, 0.1)


def test_arguments_that_such_an_optimizer_does_not_follow_are_said_not_to_act(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Given(tmp_path, 4)
    caplog.set_level(logging.WARNING, logger="trainwright")
    trainer = Given(tmp_path, 6, learning_rate=7.0).trainer
    assert rates(trainer)[5] == pytest.approx(0.1 * 0.5**2)
    assert "learning_rate changed without effect: optimizer or schedule are the script's own" in caplog.text
    assert [(one["what"], one["effect"]) for one in history(tmp_path) if one["what"] == "learning_rate"] == [
        ("learning_rate", "no effect")
    ]


@pytest.mark.slow
def test_an_early_stop_takes_the_new_patience(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "learning_rate": 0.0}

    def run(patience: int, **how: Any) -> Trainer:
        trainer = build(Scenario({**SETTINGS, **settings, "save_steps": 1, "resume": "auto"}, model=Stable), tmp_path)
        trainer.add_callback(EarlyStoppingCallback(patience))
        trainer.train(**how)
        return trainer

    assert run(2).state.global_step == 3
    # The same again: it had come to its end.
    assert run(2).state.global_step == 3
    assert run(4).state.global_step == 5
    assert {"EarlyStoppingCallback.early_stopping_patience"} == {entry["what"] for entry in history(tmp_path)}
    # As a script says it that is always started in the same way.
    assert run(4, resume_from_checkpoint=True).state.global_step == 5
    # Asked to go on from there, it does, up to the next evaluation.
    assert run(4, resume_from_checkpoint=str(tmp_path / "checkpoint-5")).state.global_step == 6


@pytest.mark.slow
def test_another_metric_begins_with_no_best_value(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "save_steps": 1}
    cut(tmp_path, 4, **settings)
    trainer = resumed(tmp_path, **{**settings, "greater_is_better": True})
    evaluations = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert trainer.state.best_metric == max(loss for step, loss in evaluations.items() if step > 4)


# ---- the record


def history(folder: Path) -> list[dict[str, Any]]:
    path = folder / "config.history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_what_was_changed_is_kept_once_and_checkpoints_keep_what_was_true(tmp_path: Path) -> None:
    cut(tmp_path, 4)
    # Twice, as after a kill before the next checkpoint.
    for _ in range(2):
        trainer = build(
            Scenario({**SETTINGS, "learning_rate": 0.1, "save_steps": 100}, model=Stable, data=Numbered), tmp_path
        )
        trainer.add_callback(_Breaks(6))
        with pytest.raises(RuntimeError, match="enough"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    entries = history(tmp_path)
    assert [(e["step"], e["what"], e["from"], e["to"]) for e in entries if e["effect"] == "course"] == [
        (4, "learning_rate", 2e-2, 0.1)
    ]
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["learning_rate"] == 0.1
    assert yaml.safe_load((tmp_path / "checkpoint-4" / "config.yaml").read_text())["learning_rate"] == 2e-2
    assert not (tmp_path / "checkpoint-4" / "config.history.jsonl").exists()
    # Gone on from the same place without it: that course was given up, and the history does not claim it.
    resumed_from_four = build(Scenario({**SETTINGS, "save_steps": 100}, model=Stable, data=Numbered), tmp_path)
    resumed_from_four.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "learning_rate" not in {entry["what"] for entry in history(tmp_path)}


class _Breaks:
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._step:
            raise RuntimeError("enough")


def test_another_seed_is_refused_with_both_values_and_nothing_is_written(tmp_path: Path) -> None:
    whole(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"belongs to another experiment: seed was \d+ and is 99 now"):
        resumed(tmp_path, seed=99)
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Everything but the lock, which each training writes its own word into."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = whole(tmp_path)
    caplog.set_level(logging.WARNING, logger="trainwright")
    left = ("config.yaml", "env.json", "metrics.jsonl", "trainer_state.json", "finished.json", "experiment.yaml")
    before = {name: (tmp_path / name).read_bytes() for name in left if (tmp_path / name).exists()}
    again = resumed(tmp_path, learning_rate=0.5)
    assert {name: (tmp_path / name).read_bytes() for name in left if (tmp_path / name).exists()} == before
    assert not (tmp_path / "config.history.jsonl").exists()
    assert "finished at step 9 of 9; nothing was trained, so learning_rate did not act" in caplog.text
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


def test_a_changed_cut_of_the_same_batch_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cut(tmp_path, 4)
    caplog.set_level(logging.WARNING, logger="trainwright")
    resumed(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert "From step" not in caplog.text
    effects = {entry["what"]: entry["effect"] for entry in history(tmp_path)}
    assert effects["per_device_train_batch_size"] == effects["gradient_accumulation_steps"] == "free"


def test_every_argument_has_an_effect() -> None:
    known = arguments_by_effect()
    assert {name for names in known.values() for name in names} <= {n for t in TOPICS for n in t.__dataclass_fields__}
    assert all(known[effect] for effect in Effect)
    assert effect_of("max_grad_norm") is effect_of("callbacks.early_stopping.patience") is Effect.COURSE


@pytest.mark.parametrize(
    "hostile",
    [b"\x00\xff", b"- 1", b"!!python/object/apply:os.system ['true']", b"a: " + b"[" * 5000, b"learning_rate: {a: 1}"],
)
def test_a_config_that_somebody_wrote_over_does_no_harm(hostile: bytes, tmp_path: Path) -> None:
    from trainwright.config.stored_arguments import stored_arguments

    (tmp_path / "config.yaml").write_bytes(hostile)
    found = stored_arguments(tmp_path)
    assert found is None or found == {"learning_rate": {"a": 1}}


# ---- what an adversary found


def test_a_rewind_puts_the_schedule_back_too(tmp_path: Path) -> None:
    class Breaks(Stable):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Breaks.calls += self.training
            return super().forward(x) * (torch.nan if Breaks.calls in (13, 14, 15, 16) else 1.0)

    settings = {"rewind_on_nonfinite": True, "max_nonfinite_steps": 2, "save_steps": 5, "lr_scheduler_type": "linear"}
    trainer = build(Scenario({**SETTINGS, **settings}, model=Breaks, data=Numbered), tmp_path)
    trainer.train()
    assert Breaks.calls > 18
    # The batches that failed are left out, so it ends before step 9.
    assert rates(trainer)[6] == pytest.approx(2e-2 * 4 / 9)


@pytest.mark.parametrize("was", ["linear", "cosine", "constant_with_warmup"])
@pytest.mark.parametrize("kind", ["constant", "reduce_lr_on_plateau", "linear"])
def test_another_curve_and_another_rate_at_once(was: str, kind: str, tmp_path: Path) -> None:
    metric = {"eval_strategy": "steps", "eval_steps": 100, "metric_for_best_model": "loss"}
    cut(tmp_path, 4, lr_scheduler_type=was, warmup_steps=6, learning_rate=1e-4, **metric)
    trainer = resumed(tmp_path, lr_scheduler_type=kind, learning_rate=0.02, warmup_steps=0, **metric)
    assert rates(trainer)[5] == pytest.approx(0.02 * (5 / 9 if kind == "linear" else 1))


def test_a_finished_run_goes_on_at_a_constant_rate(tmp_path: Path) -> None:
    whole(tmp_path, lr_scheduler_type="linear")
    trainer = resumed(tmp_path, lr_scheduler_type="constant", learning_rate=0.03, num_train_epochs=4)
    assert [rate for step, rate in rates(trainer).items() if step > 9] == [0.03, 0.03, 0.03]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "now"),
    [
        (
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 8]),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6]),
        ),
        (
            lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 6),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
        ),
        (
            lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 4, cycle_momentum=False),
            lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.02, 0.2, 5, cycle_momentum=False),
        ),
        (
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 12, cycle_momentum=False),
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, 10, cycle_momentum=False),
        ),
    ],
    ids=["MultiStepLR", "CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"],
)
def test_schedules_of_torch_that_are_made_otherwise(then: Any, now: Any, tmp_path: Path) -> None:
    def run(folder: Path, make: Any, steps: int) -> Trainer:
        model = Stable()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        arguments = TrainingArguments(
            str(folder), max_steps=steps, logging_steps=1, resume="auto", report_to="none", save_steps=1
        )
        trainer = Trainer(model, arguments, train_dataset=rows(24), optimizers=(optimizer, make(optimizer)))
        trainer.train()
        return trainer

    run(tmp_path / "parts", then, 4)
    parts, always = run(tmp_path / "parts", now, 9), run(tmp_path / "always", now, 9)
    expected = {step: rate for step, rate in rates(always).items() if step > 4}
    assert {step: rate for step, rate in rates(parts).items() if step > 4} == pytest.approx(expected)


@pytest.mark.slow
def test_steps_of_another_size_are_not_forgotten_at_the_next_resume(tmp_path: Path) -> None:
    seen = cut(tmp_path, 4)
    seen += cut(tmp_path, 8, per_device_train_batch_size=2, resume="auto")
    trainer = resumed(tmp_path, per_device_train_batch_size=2)
    assert trainer.state.global_step == trainer.state.max_steps == 4 + 4 + 6
    assert trainer.state.epoch == pytest.approx(3)
    assert rates(trainer)[14] < rates(trainer)[11] < rates(trainer)[9]
    longer = resumed(tmp_path, per_device_train_batch_size=2, num_train_epochs=4)
    assert longer.state.global_step == 14 + 6


def test_a_history_that_no_manifest_knows_is_not_read(tmp_path: Path) -> None:
    cut(tmp_path, 4)
    line = Change("learning_rate", 9, 8, "course").at(3, 1.0, ["never"])
    (tmp_path / "checkpoint-4" / "config.history.jsonl").write_text(json.dumps(line) + "\n")
    resumed(tmp_path, learning_rate=0.1)
    assert [entry["step"] for entry in history(tmp_path) if entry["what"] == "learning_rate"] == [4]


@pytest.mark.parametrize("name", ["config.yaml", "config.history.jsonl", "finished.json", "preempted.json"])
def test_folders_in_the_place_of_files_are_no_files(name: str, tmp_path: Path) -> None:
    from trainwright.report.showing import facts_of_run, lines_of_run

    whole(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    assert any("checkpoint" in line for line in lines_of_run(facts_of_run(tmp_path)))


#: Eight times what is before, and so on.
DOUBLED = [(", ".join([f"*{before}"] * 8), name) for before, name in zip("abcdefgh", "bcdefghi", strict=True)]


@pytest.mark.parametrize(
    "hostile",
    [
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(f"b{i}: &{c} [{s}]\n" for i, (s, c) in enumerate(DOUBLED)),
        "null: 1",
        "x: 0x" + "1" * 100_000,
        "? 2020-01-01\n: 1",
    ],
    ids=["bomb", "null", "number", "date"],
)
def test_a_hostile_config_is_shown_as_nothing(hostile: str, tmp_path: Path) -> None:
    from trainwright.report.showing import facts_of_run, lines_of_run

    whole(tmp_path)
    (tmp_path / "config.yaml").write_text(hostile)
    entry = Change("EVIL\x1b]0;title\x07", 1, 2, "course").at(1, 1.0, ["\x1b[2J"])
    (tmp_path / "config.history.jsonl").write_text(json.dumps(entry) + "\n")
    facts = facts_of_run(tmp_path)
    assert all(line.isprintable() for line in lines_of_run(facts))
    json.dumps(facts)
