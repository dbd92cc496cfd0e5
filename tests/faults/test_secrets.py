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
    "wandb": "0123456789abcdef0123456789abcdef01235556",
    "database": "canary-pass-5557",
    "kaggle": "abcdef0123456789abcdef0123455558",
    "webhook": "T00005559/B00005559/canaryWebhook5559XyZ",
    "signature": "canarySignature5560%2Bxyz%3D",
    "random": "qX7vT2mZ9pLw4KnB8sRy1DfG6hJc5561",
}

#: As people type them; each option takes a value of its own.
COMMAND = [
    "--api_key", "{argument}", "--password={argument}", "--wandb_key", "{wandb}", "--db_pass", "{database}",
    "--mysql-pwd={database}", "--kaggle_key", "{kaggle}", "notify=https://hooks.slack.com/services/{webhook}",
    "--data", "https://a.blob.core.windows.net/c/x.csv?sv=2022-11-02&sig={signature}", "{random}",
]  # fmt: skip

SCRIPT = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments
class Chatty(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        logs["note"] = "connected with " + os.environ["SERVICE_TOKEN"] + " wandb_key={wandb}"
class Broken(Plain):
    calls = 0
    def forward(self, x, labels=None):
        Broken.calls += 1
        if Broken.calls == 7:
            raise RuntimeError(
                "could not reach https://user:{nested}@example.org with {message}, db_pass={database} or {random}, "
                "then https://hooks.slack.com/services/{webhook} and https://x.example/y?sig={signature}&z=1"
            )
        return super().forward(x, labels)
args = TrainingArguments(
    {folder!r}, max_steps=9, save_steps=2, logging_steps=1, use_cpu=True, disable_tqdm=True, report_to="tensorboard",
    hub_token="{hub}", checkpoint_format="hf", run_name="{message}",
    lr_scheduler_kwargs={{"api_key": "{nested}", "wandb_key": "{wandb}", "deep": [{{"db_pass": "{database}"}}]}},
    tags=["{random}", "a=b&sig={signature}"],
    lr_scheduler_type="constant", watchdog_seconds=0.2,
)
args.lr_scheduler_kwargs = None
trainer = Trainer(Broken().float(), args, train_dataset=classification_rows(16), callbacks=[Chatty()])
trainer.create_model_card(finetuned_from="https://user:{nested}@example.org/base", tags=["{message}"])
trainer.train()
"""


def test_no_canary_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = textwrap.dedent(SCRIPT.format(root=str(Path(__file__).parents[2]), folder=str(folder), **CANARIES))
    done = subprocess.run(
        [sys.executable, "-c", script, *(word.format(**CANARIES) for word in COMMAND)],
        env={**__import__("os").environ, "SERVICE_TOKEN": CANARIES["environment"]},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "could not reach" in done.stderr, done.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    expected = {"config.yaml", "env.json", "events.jsonl", "metrics.jsonl", "trainer_state.json", "training_args.bin"}
    assert {*expected, "README.md"} <= names
    assert any(name.startswith("events.out") for name in names)
    found = [
        (path.relative_to(folder).as_posix(), kind)
        for path in files
        for kind, canary in CANARIES.items()
        if canary.encode() in path.read_bytes() or canary in path.as_posix()
    ]
    assert found == []
