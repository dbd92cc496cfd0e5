"""Trackers that transformers' callbacks serve: a real W&B run, offline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainerCallback, TrainingArguments


class AddsAValue(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["logs"]["added"] = 7.0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_weights_and_biases_offline(
    make_args: Callable[..., TrainingArguments], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    args = make_args(max_steps=3, logging_steps=1, report_to="wandb", run_name="mine", hub_token="hf_canary_secret")
    Trainer(Plain().float(), args, train_dataset=classification_rows(16), callbacks=[AddsAValue()]).train()
    import wandb

    wandb.finish()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # The SDK has no reader for its own file; the records in it are plain protocol buffers.
    stored = file.read_bytes()
    assert stored.count(b"train/loss") >= 3
    assert stored.count(b"train/added") >= 3
    assert b"mine" in stored
    assert b"hf_canary_secret" not in stored


def test_without_transformers_the_fix_is_named(
    make_args: Callable[..., TrainingArguments], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.integrations.integration_utils", None)
    with pytest.raises(ValueError, match="pip install transformers"):
        Trainer(Plain().float(), make_args(report_to="mlflow"), train_dataset=classification_rows(4))
