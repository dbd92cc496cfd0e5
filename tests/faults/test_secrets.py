"""Planted secrets appear nowhere under the run directory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CANARIES = {
    "environment": "canary-in-environment-5551",
    "argument": "canary-on-the-command-line-5552",
    "hub": "hf_canaryHubToken55530000",
    "nested": "canary-nested-5554",
    "message": "sk-canary5555000000000",
}

SCRIPT = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
class Chatty(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        logs["note"] = "connected with " + os.environ["SERVICE_TOKEN"]
class Broken(Plain):
    calls = 0
    def forward(self, x, labels=None):
        Broken.calls += 1
        if Broken.calls == 7:
            raise RuntimeError("could not reach https://user:{nested}@example.org with {message}")
        return super().forward(x, labels)
args = TrainingArguments(
    {folder!r}, max_steps=9, save_steps=2, logging_steps=1, use_cpu=True, disable_tqdm=True, report_to="tensorboard",
    hub_token="{hub}", checkpoint_format="hf", lr_scheduler_kwargs={{"api_key": "{nested}"}}, run_name="{message}",
    lr_scheduler_type="constant", watchdog_seconds=0.2,
)
args.lr_scheduler_kwargs = None
Trainer(Broken().float(), args, train_dataset=classification_rows(16), callbacks=[Chatty()]).train()
"""


def test_no_canary_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = textwrap.dedent(SCRIPT.format(root=str(Path(__file__).parents[2]), folder=str(folder), **CANARIES))
    done = subprocess.run(
        [sys.executable, "-c", script, "--api_key", CANARIES["argument"], f"--password={CANARIES['argument']}"],
        env={**__import__("os").environ, "SERVICE_TOKEN": CANARIES["environment"]},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "could not reach" in done.stderr, done.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    expected = {"config.yaml", "env.json", "events.jsonl", "metrics.jsonl", "trainer_state.json", "training_args.bin"}
    assert expected <= names
    assert any(name.startswith("events.out") for name in names)
    found = [
        (path.relative_to(folder).as_posix(), kind)
        for path in files
        for kind, canary in CANARIES.items()
        if canary.encode() in path.read_bytes() or canary in path.as_posix()
    ]
    assert found == []
