"""``trainwright tail``: what a run says, read while it is written, whoever has written it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from trainwright.checkpoint.run_lock import holding
from trainwright.cli import main as _registers_commands  # noqa: F401
from trainwright.cli.app import app
from trainwright.report import tailing
from trainwright.report.tailing import GrowingFile, Line, Tail, for_people, for_programs


def run_with(folder: Path, metrics: list[Any], events: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, lines in (("metrics.jsonl", metrics), ("events.jsonl", events)):
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (folder / name).write_text("".join(text + "\n" for text in texts))
    return folder


def tail(*words: str) -> list[str]:
    done = CliRunner().invoke(app, ["tail", *words])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_log_and_events_are_merged_in_the_order_of_time_and_nothing_moves_the_cursor(tmp_path: Path) -> None:
    folder = run_with(
        tmp_path / "run",
        [
            {"step": 1, "time": 100.0, "loss": 2.0, "epoch": 0.5, "learning_rate": 0.01},
            "{truncated",
            {"step": 2, "time": 300.0, "loss": "nan", "note\x1b": 3.0},
        ],
        [{"time": 200.0, "kind": "saved", "step": 1, "message": "\x1b[2Jgone\r\n"}, "[1, 2]", {"kind": 7}],
    )
    lines = tail(str(folder))
    assert [line.split("  ", 1)[1] for line in lines] == [
        "step 1  epoch 0.5  loss 2  lr 0.01",
        "saved: \\x1b[2Jgone\\r\\n",
        "7: ",
        "step 2  loss nan  note\\x1b 3",
    ]
    assert tail(str(folder), "--lines", "1") == lines[-1:]
    assert tail(str(folder), "--lines", "0") == []


def test_json_has_one_object_a_line_of_the_documented_shape(tmp_path: Path) -> None:
    folder = run_with(
        tmp_path / "run",
        ['{"step": 2, "time": 100.0, "loss": NaN}'],
        [{"time": 200.0, "kind": "saved", "step": 1, "message": "done", "seconds": 0.5}],
    )
    assert [json.loads(line) for line in tail(str(folder), "--json", "--follow")] == [
        {"kind": "log", "time": 100.0, "step": 2, "values": {"loss": "nan"}},
        {"kind": "event", "time": 200.0, "step": 1, "event": "saved", "message": "done", "values": {"seconds": 0.5}},
        {"kind": "state", "state": "interrupted", "message": "not finished"},
    ]


def test_it_follows_a_run_that_is_cut_back_and_goes_on_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "_SECONDS_BETWEEN_LOOKS", 0.02)
    folder = run_with(tmp_path / "run", [{"step": 1, "time": 1.0, "loss": 1.0}], [])
    metrics, is_held = folder / "metrics.jsonl", threading.Event()

    def train() -> None:
        with holding(folder):
            is_held.set()
            with metrics.open("a") as file:
                file.write('{"step": 2, "time": 2.0, "lo')
                file.flush()
                time.sleep(0.1)
                file.write('ss": 2.0}\n')
            time.sleep(0.1)
            # It goes back to step 1, as a run does that is resumed there.
            (folder / "new").write_text(
                '{"step": 1, "time": 1.0, "loss": 1.0}\n{"step": 2, "time": 3.0, "loss": 4.0}\n'
            )
            os.replace(folder / "new", metrics)
            time.sleep(0.1)

    thread = threading.Thread(target=train)
    seen = Tail(folder, 10)
    steps = [line.entry["step"] for line in seen.newest()]
    thread.start()
    is_held.wait()
    *lines, state = seen.follow()
    thread.join()
    assert steps == [1]
    assert [(line.entry["step"], line.entry["loss"]) for line in lines if isinstance(line, Line)] == [
        (2, 2.0),
        (2, 4.0),
    ]
    assert for_people(state) == "interrupted: not finished"


@given(st.lists(st.binary(max_size=60), max_size=4), st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_is_survived(tmp_path: Path, lines: list[bytes], rest: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join(lines))
    file = GrowingFile(path, "log")
    found = file.new()
    path.write_bytes(b'{"time": 1, "step": "x", "a": [1], "b": {"c": "\\u001b"}, "d_runtime": "inf"}\n' + rest)
    for line in (*found, *file.new()):
        assert for_people(line).isprintable()
        assert json.loads(for_programs(line))["kind"] == "log"


def test_another_folder_is_refused_and_torch_is_not_imported(tmp_path: Path) -> None:
    run_with(tmp_path / "run", [{"step": 1, "time": 1.0, "loss": 1.0}], [])
    code = (
        "import sys; from trainwright.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    for folder, expected in ((tmp_path / "run", "0 False"), (tmp_path, "2 False")):
        done = subprocess.run(
            [sys.executable, "-c", code, "tail", str(folder)], check=False, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == expected, done.stderr
    assert "is not the folder of a run" in done.stderr
