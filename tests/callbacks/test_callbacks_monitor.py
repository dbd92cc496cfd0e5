"""What is switched off is seen nowhere, what is switched on is seen where it belongs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.models import Plain, classification_rows
from trainwright import Monitor, Trainer, TrainerState, TrainingArguments

MakeArgs = Callable[..., TrainingArguments]

MACHINE = {"cpu_memory_gb", "cpu_utilization", "data_wait", "checkpoints", "learning_rate"}


def run(make_args: MakeArgs, monitor: Monitor, **given: Any) -> tuple[Trainer, list[dict[str, Any]]]:
    """Train with an evaluation, and what a tracker was told."""
    settings: dict[str, Any] = {
        "max_steps": 4,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "report_to": ["jsonl"],
    }
    rows = classification_rows(16)
    args = make_args(**{**settings, **given})
    trainer = Trainer(
        Plain(),
        args,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[monitor],
        compute_metrics=lambda prediction: {"accuracy": 0.5},
    )
    trainer.train()
    lines = (Path(str(args.output_dir)) / "tracker.jsonl").read_text().splitlines()
    return trainer, [line["values"] for line in map(json.loads, lines) if line["event"] == "log"]


def names(values: list[dict[str, Any]]) -> set[str]:
    return {name for each in values for name in each}


def test_by_default_nothing_changes(make_args: MakeArgs) -> None:
    _, values = run(make_args, Monitor())
    expected = {"train/loss", "train/learning_rate", "train/grad_norm", "train/epoch", "eval/loss", "eval/accuracy"}
    assert expected <= names(values)
    assert not names(values) & {f"train/{name}" for name in MACHINE - {"learning_rate"}}


@pytest.mark.parametrize(
    ("switch", "name"),
    [
        ("train_loss", "train/loss"),
        ("validation_loss", "eval/loss"),
        ("additional_metrics", "eval/accuracy"),
        ("learning_rate", "train/learning_rate"),
        ("grad_norm", "train/grad_norm"),
        ("epoch", "train/epoch"),
    ],
)
def test_what_is_off_is_seen_nowhere(
    switch: str, name: str, make_args: MakeArgs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trainer, values = run(make_args, Monitor.from_config({switch: False}), metric_for_best_model="loss")
    assert name not in names(values)
    assert len(names(values)) > 5
    plain = name.removeprefix("train/").replace("/", "_")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert all(plain not in line for line in lines)
    assert f"'{plain}'" not in capsys.readouterr().out
    # Only what is shown: the best model is still found, and the history is whole.
    assert trainer.state.best_metric is not None
    assert any(plain in entry for entry in trainer.state.log_history)
    assert "eval_loss" in trainer.evaluate()


def test_what_is_on_is_seen_in_training_logs_only(make_args: MakeArgs) -> None:
    monitor = Monitor(cpu_memory=True, cpu_utilization=True, data_wait=True, checkpoints=True)
    _, values = run(make_args, monitor, save_strategy="steps", save_steps=1)
    training = [each for each in values if "train/loss" in each]
    evaluations = [each for each in values if "eval/loss" in each]
    assert len(training) == len(evaluations) == 2
    for each in training:
        assert {f"train/{name}" for name in MACHINE} <= each.keys()
        assert 0.01 < each["train/cpu_memory_gb"] < 1000
        assert each["train/cpu_utilization"] >= 0
        assert 0 <= each["train/data_wait"] <= 1
    for each in evaluations:
        assert not each.keys() & {f"train/{name}" for name in MACHINE}
    assert [each["train/checkpoints"] for each in training] == [1, 3]
    assert values[-1]["train/checkpoints"] == 4


@pytest.mark.slow
def test_waiting_for_data_is_measured(make_args: MakeArgs) -> None:
    class Slow(torch.utils.data.Dataset[Any]):
        rows = classification_rows(16)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.02)
            return self.rows[index]

    args = make_args(max_steps=2, logging_steps=1, report_to=["jsonl"])
    Trainer(Plain(), args, train_dataset=Slow(), callbacks=[Monitor(data_wait=True)]).train()
    lines = map(json.loads, (Path(str(args.output_dir)) / "tracker.jsonl").read_text().splitlines())
    shares = [line["values"]["train/data_wait"] for line in lines if "train/data_wait" in line.get("values", {})]
    # Each step takes 8 rows: at least 0.16 s of waiting, in a run that does next to nothing else.
    assert len(shares) == 2
    assert max(shares) > 0.1


def test_tokens_are_counted_or_the_argument_is_named(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    class Tokens(Plain):
        main_input_name = "x"

    rows = classification_rows(16)
    monitor = Monitor(tokens_per_second=True)
    args = make_args(max_steps=2, logging_steps=1, report_to=["jsonl"], include_num_input_tokens_seen="all")
    Trainer(Tokens(), args, train_dataset=rows, callbacks=[monitor]).train()
    lines = map(json.loads, (Path(str(args.output_dir)) / "tracker.jsonl").read_text().splitlines())
    shown = [line["values"] for line in lines if line["event"] == "log"]
    assert [values["train/tokens_per_second"] > 0 for values in shown[:2]] == [True, True]
    run(make_args, Monitor(tokens_per_second=True))
    (message,) = [record.getMessage() for record in caplog.records if "Monitor" in record.getMessage()]
    assert 'set include_num_input_tokens_seen="all"' in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_its_switches_say_so_once(make_args: MakeArgs, caplog: pytest.LogCaptureFixture) -> None:
    _, values = run(make_args, Monitor(gpu_memory=True, gpu_utilization=True))
    assert not any("gpu" in name for name in names(values))
    messages = [record.getMessage() for record in caplog.records if "Monitor" in record.getMessage()]
    assert messages == [
        "Monitor(gpu_memory=True) is switched off: there is no GPU.",
        "Monitor(gpu_utilization=True) is switched off: there is no GPU.",
    ]


@pytest.mark.gpu
def test_memory_and_load_of_a_gpu(make_args: MakeArgs) -> None:
    _, values = run(make_args, Monitor(gpu_memory=True), use_cpu=False)
    training = [each for each in values if "train/loss" in each]
    assert all(each["train/gpu_0_reserved_gb"] >= each["train/gpu_0_memory_gb"] > 0 for each in training)
    assert not any("gpu" in name for each in values if "eval/loss" in each for name in each)


def test_only_the_first_process_looks_at_the_machine(make_args: MakeArgs) -> None:
    monitor = Monitor(cpu_memory=True, grad_norm=False)
    logs = {"loss": 1.0, "grad_norm": 2.0}
    state = TrainerState(is_world_process_zero=False)
    monitor.on_log(make_args(), state, SimpleNamespace(), logs=logs)  # type: ignore[arg-type]
    assert logs == {"loss": 1.0}


def test_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "monitor.yaml"
    file.write_text("cpu_memory: true\nepoch: false\n")
    switches = Monitor.from_config(file).switches
    assert (switches["cpu_memory"], switches["epoch"], switches["train_loss"]) == (True, False, True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"gpu_memry": True}, "there is no 'gpu_memry' to monitor .did you mean 'gpu_memory'"),
        ({"gpu_memory": "yes"}, "gpu_memory is 'yes' and must be true or false"),
        ([1], "must hold names of switches"),
    ],
)
def test_wrong_switches(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Monitor.from_config(config)
