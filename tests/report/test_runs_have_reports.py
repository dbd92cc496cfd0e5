"""Real trainings: every one ends with a report, whatever ended it, and none is changed or endangered by it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.faults import runner
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.report.stored_run import StoredRun
from trainwright.report.time_spent import goodput

FINISHED, FAILED, STOPPED = 'class="state finished"', 'class="state failed"', 'class="state stopped"'


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def test_a_training_ends_with_a_report_and_says_where(tmp_path: Path) -> None:
    measured = {"eval_dataset": runner.rows(), "compute_metrics": accuracy, "eval_strategy": "steps", "eval_steps": 4}
    trainer = runner.build(tmp_path / "run", write_report=True, **measured)
    output = trainer.train()
    assert output.report == str(tmp_path / "run/report.html")
    page = Path(output.report or "").read_text()
    assert FINISHED in page
    assert "Predictions" in page
    assert (tmp_path / "run/report.md").is_file()
    found = json.loads((tmp_path / "run/evaluation.json").read_text())["eval"]
    assert found["step"] == runner.STEPS
    # What it counts is what the metric counts.
    counts = np.array(found["confusion"])
    assert counts.sum() == len(runner.rows())
    assert np.trace(counts) / counts.sum() == trainer.state.log_history[-2]["eval_accuracy"]
    # Its inputs are those of the data, by the place of a sample in it.
    worst = found["worst"][0]
    assert worst["input"].startswith(f"x {runner.rows()[worst['index']]['x'][0]:.4g}")
    assert worst["loss"] == max(one["loss"] for one in found["worst"])


def test_without_reports_nothing_of_them_is_written(tmp_path: Path) -> None:
    trainer = runner.build(tmp_path / "run", write_report=False)
    assert trainer.train().report is None
    assert not list((tmp_path / "run").glob("report.*"))


def test_a_report_changes_no_bit_of_a_training(tmp_path: Path) -> None:
    class Draws(torch.utils.data.Dataset[Any]):
        """Evaluation data that draws random numbers, as augmentation does."""

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": torch.randn(6), "labels": torch.tensor(index % 3)}

    marks = []
    for wants in (True, False):
        measured = {"eval_dataset": Draws(), "compute_metrics": accuracy, "eval_strategy": "steps", "eval_steps": 3}
        trainer = runner.build(tmp_path / str(wants), write_report=wants, **measured)
        trainer.train()
        marks.append((runner.fingerprint(trainer), torch.random.get_rng_state().tolist()))
    assert marks[0] == marks[1]


def test_a_failed_training_has_a_report_that_says_why(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no more\nof this")

    with pytest.raises(ValueError, match="no more"):
        runner.build(tmp_path, [runner.At(fail)], write_report=True).train()
    page = (tmp_path / "report.html").read_text()
    assert FAILED in page
    assert "ValueError at step 5: no more" in page
    # It goes on, and then the word is another.
    output = runner.build(tmp_path, write_report=True).train()
    assert output.global_step == runner.STEPS
    assert FINISHED in (tmp_path / "report.html").read_text()


def test_a_training_that_diverges_has_a_report_that_says_so(tmp_path: Path) -> None:
    class Breaks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == 5:
                torch.nn.init.constant_(model.layers[0].weight, float("nan"))

    trainer = runner.build(tmp_path, [Breaks()], write_report=True, logging_nan_inf_filter=False)
    trainer.train()
    assert "The loss is not a number from step 6 on" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_stopped_training_ends_at_once_and_another_process_writes_its_report(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.faults import runner\n"
        "stop = runner.At(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "runner.build(Path(sys.argv[1]), [stop], write_report=True).train()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, timeout=120)
    assert done.returncode == 75
    assert (tmp_path / "preempted.json").is_file()
    until = time.monotonic() + 60
    while not (tmp_path / "report.md").is_file() and time.monotonic() < until:
        time.sleep(0.1)
    page = (tmp_path / "report.html").read_text()
    assert STOPPED in page
    assert "stopped by SIGTERM at step 5" in page


def test_a_report_that_cannot_be_written_changes_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "report.html").mkdir()
    (tmp_path / "report.html" / "mine").write_text("keep")
    output = runner.build(tmp_path, write_report=True).train()
    assert output.global_step == runner.STEPS
    assert output.report is None
    assert "The report could not be written" in caplog.text
    assert (tmp_path / "report.html" / "mine").read_text() == "keep"


def test_what_was_done_twice_counts_as_done_again(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests.faults import runner\n"
        "dies = runner.At(lambda: os._exit(9))\n"
        "runner.build(Path(sys.argv[1]), [dies], logging_steps=1, save_in_background=False).train()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, timeout=120)
    assert done.returncode == 9
    # What was logged less than a second before a kill is lost; these lines were written before it.
    lines = [
        {"step": step, "steps": 1, "time": 1.0 + step, "start": 1.0, "seconds": {"train": 10.0}}
        for step in (1, 2, 3, 4, 5)
    ]
    (tmp_path / "performance.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runner.build(tmp_path, logging_steps=1, write_report=True).train()
    parts = goodput(StoredRun(tmp_path).laps)
    assert parts["done again"] == pytest.approx(20.0)
    assert parts["computing"] > 30
    page = (tmp_path / "report.html").read_text()
    assert "done again" in page
    assert "started again once" in page


def test_seconds_add_up_to_the_time_that_passed(tmp_path: Path) -> None:
    class Slow(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.sleep(0.01)

    began = time.perf_counter()
    evaluated = {"eval_dataset": runner.rows(), "eval_strategy": "steps", "eval_steps": 5}
    trainer = runner.build(tmp_path, [Slow()], logging_steps=1, **evaluated)
    trainer.train()
    passed = time.perf_counter() - began
    laps = StoredRun(tmp_path).laps
    assert sum(lap.steps for lap in laps) == runner.STEPS
    total = sum(value for lap in laps for name, value in lap.seconds.items() if name != "data")
    assert 0.01 * runner.STEPS <= sum(lap.train for lap in laps) <= total <= passed
    assert {name for lap in laps for name in lap.seconds} == {"begin", "train", "data", "evaluate", "save"}


def test_state_speed_is_there_when_a_log_is(tmp_path: Path) -> None:
    seen = []

    class Looks(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(state.speed)

    runner.build(tmp_path, [Looks()], logging_steps=4).train()
    assert [speed.steps for speed in seen] == [4, 4, 4, 0]
    assert all(speed.samples_per_second > 0 and speed.memory > 0 for speed in seen[:3])
    # No clock in what a resume compares.
    assert "speed" not in (tmp_path / "trainer_state.json").read_text()


@pytest.mark.slow
def test_of_two_processes_the_first_writes_the_report(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.faults import runner\n"
        "runner.build(Path(sys.argv[1]), write_report=True, ddp_backend='gloo').train()\n"
    )
    script = tmp_path / "two.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), str(tmp_path / "run")],
        check=True,
        capture_output=True,
        timeout=170,
        env=environment,
    )
    assert FINISHED in (tmp_path / "run/report.html").read_text()


def test_residuals_of_a_regression(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [{"x": (x := torch.randn(3, generator=generator)), "labels": x.sum()} for _ in range(32)]

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            guess = self.layer(x)[:, 0]
            return {"loss": (guess - labels).square().mean(), "logits": guess}

    args = TrainingArguments(
        str(tmp_path),
        max_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        write_report=True,
    )
    trainer = Trainer(
        Line(),
        args,
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda found: {"mae": float(np.abs(found.predictions - found.label_ids).mean())},
    )
    trainer.train()
    found = json.loads((tmp_path / "evaluation.json").read_text())["eval"]
    assert found["kind"] == "regression"
    assert len(found["targets"]) == 32
    distances = [abs(one["label"] - one["prediction"]) for one in found["worst"]]
    assert distances == sorted(distances, reverse=True)
    assert "leave over" in (tmp_path / "report.html").read_text()


def test_ctrl_c_leaves_the_report_to_another_process(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        runner.build(tmp_path, [runner.At(lambda: os.kill(os.getpid(), signal.SIGINT))], write_report=True).train()
    until = time.monotonic() + 60
    while not (tmp_path / "report.md").is_file() and time.monotonic() < until:
        time.sleep(0.1)
    assert STOPPED in (tmp_path / "report.html").read_text()
