"""What somebody configured in accelerate, and we do not read, is said."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from trainwright import TrainingArguments
from trainwright.config.warnings import TrainwrightWarning


def test_what_accelerate_is_asked_for_is_not_ignored_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.warns(TrainwrightWarning, match="accelerate launch asks for bf16.*say bf16=True"):
        TrainingArguments(str(tmp_path), use_cpu=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingArguments(str(tmp_path), use_cpu=True, bf16=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.warns(TrainwrightWarning, match="asks for FSDP.*say fsdp="):
        TrainingArguments(str(tmp_path), use_cpu=True)
