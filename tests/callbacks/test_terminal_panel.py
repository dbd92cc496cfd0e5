"""What a training shows in a real terminal: a child process behind a pty, read by a terminal emulator."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.terminal import Seen, watch, without_size
from trainwright.callbacks.run_facts import RunFacts
from trainwright.core.events import RunEvents
from trainwright.core.speed import Speed

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("seen_training.py")
SAID = (
    "printed at step 10",
    "to stderr at step 10",
    "somebody says logged at step 12",
)


def assert_never_torn(seen: Seen) -> None:
    for screen in seen.screens:
        bars = [line for line in screen if line.startswith("train ") and "━" in line]
        assert len(bars) <= 1, "\n".join(screen)


def assert_shows_everything(seen: Seen) -> None:
    whole = [screen for screen in seen.screens if any(line.startswith("saved checkpoint-8, 0:0") for line in screen)]
    panel = "\n".join(whole[-1])
    for part in ("train ━", "24  0:0", "epoch ━", " of 3", "loss  ", "▁", " grad ", " samples/s", "waits for data "):
        assert part in panel, panel
    for part in ("memory ", "eval  loss ", "accuracy 0.", "best  accuracy 0."):
        assert part in panel, panel


def test_a_narrow_terminal_shows_everything_and_the_panel_is_gone_at_the_end(tmp_path: Path) -> None:
    seen = watch(SCRIPT, str(tmp_path / "run"), columns=40, lines=30)
    assert seen.code == 0, "\n".join(seen.last)
    assert_never_torn(seen)
    assert_shows_everything(seen)
    everything = seen.all_lines
    assert not any("━" in line or line.startswith(("loss  ", "saved ")) for line in everything)
    assert all(line in everything for line in SAID), "\n".join(everything)
    text = " ".join(everything)
    assert "trained 24 steps in " in text
    assert "checkpoint-" not in text, "housekeeping is for events.jsonl"
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert "Deleted checkpoint-8: 1 checkpoints are kept." in [event["message"] for event in events]


def test_the_last_line_says_why_a_run_ended_early(tmp_path: Path) -> None:
    seen = watch(SCRIPT, str(tmp_path / "run"), "stop", columns=150, lines=30)
    assert_never_torn(seen)
    assert_shows_everything(seen)
    assert seen.last[-1].startswith("ended at step 16 of 24 after ")
    assert ": eval_accuracy has not improved since step 8  " in seen.last[-1]


def test_in_a_low_terminal_only_the_bar_is_shown_and_an_error_stands_below_it(tmp_path: Path) -> None:
    seen = watch(SCRIPT, str(tmp_path / "run"), "fail", columns=80, lines=7)
    assert seen.code == 1
    assert_never_torn(seen)
    assert not any(line.startswith("speed ") for screen in seen.screens for line in screen)
    lines = seen.all_lines
    assert all(line in lines for line in SAID)
    bar = next(number for number, line in enumerate(lines) if line.startswith("train ━"))
    end = next(number for number, line in enumerate(lines) if line.startswith("ended at step 16 of 24 after "))
    assert lines[end].endswith(": RuntimeError: the user's own mistake")
    assert bar < end < lines.index("Traceback (most recent call last):")
    assert lines[-1] == "RuntimeError: the user's own mistake"


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_in_tmux_the_panel_is_whole_also_after_the_pane_has_changed_its_size(tmp_path: Path) -> None:
    def tmux(*words: str) -> str:
        place = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "socket")]
        return subprocess.run([*place, *words], env=without_size(), capture_output=True, text=True, check=True).stdout

    command = shlex.join([sys.executable, str(SCRIPT), str(tmp_path / "run"), "slow"])
    tmux("new-session", "-d", "-x", "100", "-y", "30", f"PYTHONPATH={ROOT} {command}; sleep 60")
    try:
        seen = []
        for columns in (100, 60, 120):
            tmux("resize-window", "-x", str(columns), "-y", "30")
            until = time.monotonic() + 30
            # Lines that stood there when the pane became narrower were broken by tmux itself: the next drawing counts.
            time.sleep(1.0)
            while "saved checkpoint-" not in (screen := tmux("capture-pane", "-p")) and time.monotonic() < until:
                time.sleep(0.1)
            seen.append(screen)
        for screen in seen:
            panel = screen[screen.rindex("train ━") :]
            assert [line[:6] for line in panel.splitlines() if line.strip()][:3] == ["train ", "epoch ", "loss  "], (
                screen
            )
            assert "saved checkpoint-" in panel
    finally:
        tmux("kill-server")


def test_facts_take_a_second_line_in_narrow_terminals_and_stay_within_them() -> None:
    events = RunEvents()
    facts = RunFacts(events, None)
    measured = Speed(
        4, steps_per_second=2.0, samples_per_second=1e5, tokens_per_second=2e6, mfu=0.4, data_wait=0.1, memory=2**34
    )
    facts.note_log({"loss": float("nan"), "learning_rate": 1e-4, "grad_norm": 0.5}, step=4, speed=measured)
    events.record("saved", "checkpoint-4 is saved.", step=4)
    for width in (30, 40, 80, 200):
        lines = facts.lines(width)
        assert all(len(line) <= width for line in lines)
        text = " ".join(" ".join(line.split()) for line in lines)
        for part in ("loss x nan", "lr 0.0001", "grad 0.5", "2.0M tokens/s", "MFU 40 %", "checkpoint-4, 0:00 ago"):
            assert part in text
