"""Trackers that transformers' callbacks serve."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.models import Plain, classification_rows
from trainwright import Trainer, TrainingArguments
from trainwright.callbacks.tracking import TrackerCallback
from trainwright.config.derive import FOREIGN_TRACKERS

MakeArgs = Callable[..., TrainingArguments]


def test_transformers_knows_those_that_are_left_to_it() -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(FOREIGN_TRACKERS) <= set(INTEGRATION_TO_CALLBACK)


def test_a_foreign_callback_stands_beside_our_own(make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import integration_utils

    class Heard:
        """Has the shape of transformers' callbacks."""

        logs: list[dict[str, Any]] = []  # noqa: RUF012

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            self.logs.append(dict(logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "swanlab", Heard)
    args = make_args(max_steps=2, logging_steps=1, report_to=["swanlab", "jsonl"])
    trainer = Trainer(Plain(), args, train_dataset=classification_rows(8))
    kinds = {type(callback) for callback in trainer.callback_handler.callbacks}
    assert {Heard, TrackerCallback} <= kinds
    trainer.train()
    assert [logs["loss"] for logs in Heard.logs[:2]] == [entry["loss"] for entry in trainer.state.log_history[:2]]


def test_without_transformers_the_fix_is_named(make_args: MakeArgs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.integrations.integration_utils", None)
    with pytest.raises(ValueError, match="pip install transformers"):
        Trainer(Plain(), make_args(report_to="swanlab"), train_dataset=classification_rows(4))
