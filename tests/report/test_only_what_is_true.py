"""What a report must not say: numbers of another run, samples of other data, what fails to be drawn."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.models import tiny_gpt2
from tests.report.runs import stored_run, write_lines
from trainwright import SamplePredictions, Trainer, TrainingArguments
from trainwright.checkpoint.identity import Owner, RunIdentity, write_owner
from trainwright.cli.app import app
from trainwright.engines.torch.loss_groups import LossGroups
from trainwright.report.lines import read_lines
from trainwright.report.listing import listed
from trainwright.report.page import sections_for_card, write_report
from trainwright.report.tables import add_table
from trainwright.report.time_spent import kept_and_redone, laps_of
from trainwright.training import reporting


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def rows(first: int, count: int = 24) -> list[dict[str, Tensor]]:
    return [{"x": torch.tensor([float(first + i)]), "labels": torch.tensor(i % 3)} for i in range(count)]


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def trainer_of(folder: Path, *, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    data, metrics = options.pop("eval_dataset", None), options.pop("compute_metrics", accuracy)
    usual: dict[str, Any] = {"max_steps": 4, "logging_steps": 2, "use_cpu": True, "disable_tqdm": True}
    if data is not None:
        usual |= {"eval_strategy": "steps", "eval_steps": 2}
    args = TrainingArguments(str(folder), report_to="none", write_report=True, **{**usual, **options})
    return kind(Net(), args, train_dataset=rows(100), eval_dataset=data, compute_metrics=metrics)


def details(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def test_a_run_that_begins_anew_in_a_folder_says_nothing_of_the_one_before(tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=30, log_histograms=1, eval_dataset=rows(0)).train()
    assert "predictions are right" in (tmp_path / "report.md").read_text()
    trainer_of(tmp_path, max_steps=6, compute_metrics=None).train()
    text = (tmp_path / "report.md").read_text()
    assert "| steps | 6 |" in text
    assert "predictions are right" not in text
    assert "Weights and gradients" not in (tmp_path / "report.html").read_text()
    performance = (tmp_path / "performance.jsonl").read_text().splitlines()
    assert all(json.loads(line)["step"] <= 6 for line in performance)
    # What was noted before is kept apart, as checkpoints are.
    (before,) = tmp_path.glob("previous-*/evaluation.json")
    assert json.loads(before.read_text())["eval"]["step"] == 30


def test_notes_are_kept_also_where_a_start_was_killed_while_it_put_them_away(tmp_path: Path) -> None:
    trainer_of(tmp_path, eval_dataset=rows(0)).train()
    # It has said whose the folder is, and no more.
    write_owner(tmp_path, Owner(RunIdentity.new()))
    trainer_of(tmp_path, compute_metrics=None).train()
    assert len(list(tmp_path.glob("previous-*/evaluation.json"))) == 1
    assert len(list(tmp_path.glob("previous-*/performance.jsonl"))) == 1


def test_files_that_no_run_wrote_stay_and_so_does_a_table_made_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("my data\n")
    add_table(tmp_path, "Before", ("a",), [("1",)])
    trainer_of(tmp_path, compute_metrics=None).train()
    assert (tmp_path / "samples.jsonl").read_text() == "my data\n"
    assert "Before" in (tmp_path / "report.md").read_text()


def test_a_rewind_counts_steps_once_everywhere(tmp_path: Path) -> None:
    data = rows(100, count=120)
    data[77] = {"x": torch.tensor([torch.nan]), "labels": torch.tensor(0)}
    args = TrainingArguments(
        str(tmp_path), max_steps=50, per_device_train_batch_size=2, train_sampling_strategy="sequential",
        logging_steps=10, eval_strategy="steps", eval_steps=5, save_steps=5, rewind_on_nonfinite=True,
        max_nonfinite_steps=1, log_loss_per="class", report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    seen: list[float] = []

    class Counts(LossGroups):
        def read(self, gather: Any) -> dict[str, float]:
            sums = self._sums()
            seen.append(sum(count for _, count in sums.values()))
            return super().read(gather)

    trainer = Trainer(Net(), args, train_dataset=data, eval_dataset=rows(0), callbacks=[SamplePredictions(2)])
    for callback in trainer.callback_handler.everyone:
        if isinstance(callback, LossGroups):
            callback.__class__ = Counts
    trainer.train()
    assert [event for event in events(tmp_path) if event["kind"] == "rewound"]
    # Ten steps of two samples, none of them twice; those of the last log are the summary's.
    assert max(seen) == 20
    steps = [json.loads(line)["step"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert len(steps) == len(set(steps)) * 2
    parts = kept_and_redone(laps_of(read_lines(tmp_path / "performance.jsonl")))
    assert sum(lap.steps for lap in parts[0]) == 50
    assert 0 < sum(lap.steps for lap in parts[1]) < 10


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_model_card_keeps_names_that_look_like_paths(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    names = ["<pos>", "[neg]", "C#/C++", "</s>", r"\d+\w", "1/2/3"]
    counts = np.diag(range(1, 7)).tolist()
    found = {"kind": "classification", "names": names, "confusion": counts, "worst": []}
    (folder / "evaluation.json").write_text(json.dumps({"eval": found}))
    card = sections_for_card(folder)
    for name in (r"\<pos\>", r"\[neg\]", r"C\#/C\+\+", r"\</s\>", r"\\d\+\\w", "1/2/3"):
        assert f"| {name} |" in card


def test_going_back_forgets_a_later_evaluation(tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=8, save_strategy="steps", save_steps=4, eval_dataset=rows(0)).train()
    assert details(tmp_path)["eval"]["step"] == 8
    again = trainer_of(tmp_path, max_steps=5, compute_metrics=None)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "predictions are right at step 8" not in (tmp_path / "report.md").read_text()


def test_inputs_are_those_of_the_set_that_was_evaluated(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, eval_dataset=rows(0))

    class AlsoOnTraining(Trainer):
        def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
            if metric_key_prefix == "eval":
                super().evaluate(self.train_dataset[:12], ignore_keys, "train")
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    trainer = trainer_of(tmp_path, kind=AlsoOnTraining, eval_dataset=rows(0))
    trainer.train()
    found = details(tmp_path)
    for prefix, first in (("train", 100), ("eval", 0)):
        for sample in found[prefix]["worst"]:
            assert sample["input"] == f"x {first + sample['index']}"


def test_of_a_loader_in_an_order_of_its_own_no_inputs_are_shown(tmp_path: Path) -> None:
    class Shuffled(Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return torch.utils.data.DataLoader(self.eval_dataset, batch_size=8, shuffle=True)

    trainer_of(tmp_path, kind=Shuffled, eval_dataset=rows(0)).train()
    assert all("input" not in sample for sample in details(tmp_path)["eval"]["worst"])


def test_predictions_of_the_next_token_are_compared_with_the_next_token(tmp_path: Path) -> None:
    model = tiny_gpt2()
    ids = torch.arange(8).remainder(4) + 3
    data = [{"input_ids": ids, "labels": ids} for _ in range(16)]

    def next_tokens(found: Any) -> dict[str, float]:
        right = found.predictions[:, :-1].argmax(-1) == found.label_ids[:, 1:]
        return {"accuracy": float(right.mean())}

    args = TrainingArguments(
        str(tmp_path), max_steps=60, learning_rate=0.01, eval_strategy="steps", eval_steps=60, report_to="none",
        write_report=True, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=data, compute_metrics=next_tokens)
    trainer.train()
    accuracy = next(line["eval_accuracy"] for line in trainer.state.log_history if "eval_accuracy" in line)
    counts = np.array(details(tmp_path)["eval"]["confusion"])
    assert counts.trace() / counts.sum() == pytest.approx(accuracy)
    assert counts.sum() == 16 * 7


def test_reading_samples_for_the_report_draws_no_numbers(tmp_path: Path) -> None:
    class Draws(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return {"x": torch.rand(1) + random.random() + float(np.random.rand()), "labels": torch.tensor(index % 3)}

    def then(report: bool) -> tuple[float, ...]:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        trainer = trainer_of(tmp_path / str(report), eval_dataset=Draws())
        trainer.args.write_report = report
        trainer.train()
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert then(report=True) == then(report=False)


def test_ctrl_c_while_the_report_is_written_leaves_the_training_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    left: list[Path] = []
    monkeypatch.setattr(reporting, "write_report", interrupted)
    monkeypatch.setattr(reporting, "leave_to_another_process", left.append)
    assert trainer_of(tmp_path, compute_metrics=None).train().global_step == 4
    assert left == [tmp_path]
    assert "left to a process in the background" in caplog.text


def test_a_failure_with_a_long_message_is_a_failure(tmp_path: Path) -> None:
    class Fails(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 2:
                raise ValueError("shape " + "1, " * 5000)
            return super().training_step(*args, **kwargs)

    with pytest.raises(ValueError, match="shape"):
        trainer_of(tmp_path, kind=Fails, compute_metrics=None).train()
    assert listed(tmp_path, tmp_path)["state"] == "failed"
    assert "ValueError at step 2: shape 1, 1, " in (tmp_path / "report.md").read_text()


def test_of_a_run_that_went_on_after_its_end_the_newest_best_is_listed(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run", state="killed")
    (folder / "trainer_state.json").write_text('{"best_metric": 0.5}')
    newest = folder / "checkpoint-20"
    newest.mkdir()
    (newest / "manifest.json").write_text('{"files": {}}')
    (newest / "trainer_state.json").write_text('{"best_metric": 0.9}')
    assert listed(folder, tmp_path)["best"] == 0.9


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "performance.jsonl", "samples.jsonl"])
def test_a_folder_in_the_place_of_a_file_stops_no_command(name: str, tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    for words in (["runs", str(tmp_path)], ["show", str(folder)], ["tail", str(folder)], ["report", str(folder)]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output


def test_numbers_at_the_edge_of_their_range_cost_no_report(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    same = {"kind": "regression", "targets": [0.1, 0.0, 0.3], "predictions": [0.3, 0.2, 0.5], "worst": []}
    far = {"kind": "regression", "targets": [1e308, -1e308, 0.0], "predictions": [-1e308, 1e308, 1.0], "worst": []}
    (folder / "evaluation.json").write_text(json.dumps({"same": same, "far": far}))
    costs = [{"seconds": 1.0, "bytes": text} for text in ("nan", "-inf", 1e308)]
    write_lines(
        folder / "events.jsonl",
        [{"kind": "acceleration", "message": "", "gain": {"plain": cost, "accelerated": cost}} for cost in costs],
    )
    page = write_report(folder).html.read_text()
    assert "could not be made" not in page
    assert page.count('alt="How often which residuals occur"') == 1


def test_lines_that_were_cut_off_are_not_joined(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "grad": 1\n"loss": 99.0}\n')
    found = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    assert found["metrics"] == {"loss": 2.0}


def test_a_comparison_goes_where_it_was_asked_to(tmp_path: Path) -> None:
    one, other = stored_run(tmp_path / "one"), stored_run(tmp_path / "other")
    (tmp_path / "kept").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "kept/page.html")
    (tmp_path / "kept/page.html").write_text("old")

    def compare(target: Path) -> Any:
        return CliRunner().invoke(app, ["compare", str(one), str(other), "--html", str(target)])

    assert compare(tmp_path / "link.html").exit_code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert "Comparison of runs" in (tmp_path / "kept/page.html").read_text()
    for target in (tmp_path / "kept", tmp_path / "missing/page.html"):
        done = compare(target)
        assert done.exit_code == 2
        assert "give the name of a file" in done.output
    (tmp_path / "kept/page.html").chmod(0o600)
    assert compare(tmp_path / "kept/page.html").exit_code == 0
    assert (tmp_path / "kept/page.html").stat().st_mode & 0o777 == 0o600
    assert compare(Path("/dev/null")).exit_code == 0
    assert not Path("/dev/null").is_file()


def test_fast_dev_run_writes_no_model_where_a_finished_one_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished = trainer_of(tmp_path, compute_metrics=None)
    finished.train()
    finished.save_model(str(tmp_path))
    before = (tmp_path / "model.safetensors").read_bytes()
    args = TrainingArguments(str(tmp_path), fast_dev_run=True, report_to="none", use_cpu=True, disable_tqdm=True)
    trying = Trainer(Net(), args, train_dataset=rows(0))
    trying.train()
    trying.save_model(args.output_dir)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert "nothing is written to" in caplog.text
    assert trying.push_to_hub() is None
