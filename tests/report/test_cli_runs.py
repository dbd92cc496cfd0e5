"""``trainwright runs``, ``show``, ``compare`` and ``report``: what they print, as text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.report.forms import checked
from tests.report.runs import HOSTILE, hostile_run, stored_run, write_lines
from trainwright.checkpoint.run_lock import holding
from trainwright.cli.app import app
from trainwright.report.json_forms import page

DOCS = Path(__file__).parents[2] / "docs"


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), terminal_width=200)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    stored_run(tmp_path / "runs/done")
    stored_run(tmp_path / "runs/done/inner", steps=10)
    stored_run(tmp_path / "runs/group/broken", state="failed")
    stored_run(tmp_path / "runs/group/waits", state="stopped")
    stored_run(tmp_path / "runs/killed", state="killed")
    (tmp_path / "runs/notes").mkdir()
    return tmp_path / "runs"


def test_runs_are_listed_with_state_and_numbers(runs: Path) -> None:
    done = call("runs", str(runs))
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["run", "state", "step", "last", "best", "active", "size"]
    states = {line.split()[0]: line.split()[1] for line in lines[1:]}
    assert states == {
        "done": "finished",
        "done/inner": "finished",
        "group/broken": "failed",
        "group/waits": "stopped",
        "killed": "interrupted",
    }
    assert "eval_accuracy 0.95" in done.output
    with holding(runs / "killed"):
        assert "training" in call("runs", str(runs), "--state", "training").output
    # The newest first, and no more than asked for.
    write_lines(runs / "group/waits/metrics.jsonl", [{"step": 21, "loss": 0.5, "time": time.time() + 9}])
    few = call("runs", str(runs), "--most", "1").output.splitlines()
    assert few[1].startswith("group/waits")
    assert few[2] == "... and 4 more: --most 5 lists all."


def test_what_is_printed_as_json_is_what_the_page_says(runs: Path, tmp_path: Path) -> None:
    listed = json.loads(call("runs", str(runs), "--json").stdout)
    for one in listed:
        checked("trainwright runs --json", one)
    assert {one["step"] for one in listed} == {20, 10}
    shown = json.loads(call("show", str(runs / "done"), "--json").stdout)
    checked("trainwright show --json", shown)
    assert shown["best"] == {"metric": "accuracy", "value": 0.95, "step": 20}
    assert shown["metrics"]["eval_loss"] == 0.05
    target = tmp_path / "both.html"
    words = ["compare", str(runs / "done"), str(runs / "done/inner"), "--html", str(target), "--json"]
    compared = json.loads(call(*words).stdout)
    checked("trainwright compare --json", compared)
    for one in compared["runs"]:
        checked("a run in trainwright compare --json", one)
    assert target.read_text().count("<img") >= 4
    checked("trainwright report --json", json.loads(call("report", str(runs / "done"), "--json").stdout))
    tailed = [json.loads(line) for line in call("tail", str(runs / "done"), "--json").stdout.splitlines()]
    assert {one["kind"] for one in tailed} == {"log", "event"}
    for one in tailed:
        checked("trainwright tail --json", one)
    for one in json.loads(call("ls", "--json").stdout):
        checked("trainwright ls --json", one)
    assert (DOCS / "run-commands.md").read_text() == page()


def test_a_comparison_shows_the_settings_that_differ(tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        folder = stored_run(tmp_path / name, steps=20 if name == "a" else 10)
        config = {"output_dir": str(folder), "learning_rate": rate, "seed": 1, "metric_for_best_model": "accuracy"}
        (folder / "config.yaml").write_text(json.dumps(config | ({"optim": "sgd"} if name == "b" else {})))
    done = call("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split()[1:] for line in done.output.splitlines() if line.strip()}
    assert rows["learning_rate"] == ["0.1", "0.2"]
    assert rows["optim"] == ["-", "sgd"]
    assert "seed" not in rows
    assert "output_dir" not in rows
    assert rows["step"] == ["20", "10"]


@pytest.mark.parametrize(
    "words", [["compare", "{run}"], ["compare", "{run}", "{empty}"], ["runs", "--state", "asleep"]]
)
def test_what_cannot_be_meant_is_refused_with_a_word(runs: Path, tmp_path: Path, words: list[str]) -> None:
    done = call(*(word.format(run=runs / "done", empty=tmp_path) for word in words))
    assert done.exit_code == 2
    assert "Error:" in done.output


def test_a_best_value_that_is_no_number_is_none(tmp_path: Path) -> None:
    for number, text in enumerate(("1-2", "-1e+", "null", "NaN", "1" * 5000)):
        folder = stored_run(tmp_path / f"runs/{number}")
        (folder / "trainer_state.json").write_text(f'{{"best_metric": {text}}}')
    done = call("runs", str(tmp_path / "runs"), "--json")
    assert done.exit_code == 0, done.output
    assert {one["best"] for one in json.loads(done.stdout)} == {None}


def test_no_name_moves_the_cursor(tmp_path: Path) -> None:
    one, two = hostile_run(tmp_path / "one"), hostile_run(tmp_path / "\x1b[2Jtwo")
    for words in (["runs", str(tmp_path)], ["show", str(one)], ["compare", str(one), str(two)]):
        done = call(*words)
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        assert all(line.isprintable() for line in done.output.splitlines())
    assert HOSTILE[0] in call("show", str(one)).output


def test_they_start_no_framework(runs: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from trainwright.cli import app\n"
        "from trainwright.cli.app import app\n"
        "for words in sys.argv[1:]:\n"
        "    done = CliRunner().invoke(app, words.split()); assert done.exit_code == 0, done.output\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'pandas') if name in sys.modules])"
    )
    words = [f"runs {runs}", f"show {runs}/done", f"compare {runs}/done {runs}/killed", f"report {runs}/done"]
    code = code.replace("from trainwright.cli import app\n", "import trainwright.cli\n")
    done = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    assert call("runs", str(tmp_path)).output == f"There are no runs in {tmp_path}.\n"
    assert json.loads(call("runs", str(tmp_path), "--json").stdout) == []
