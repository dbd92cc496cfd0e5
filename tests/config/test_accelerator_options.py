"""``accelerator_config`` as scripts for transformers read it: an object, whatever it was given as."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers

from trainwright import TrainingArguments


@pytest.mark.parametrize("given", [None, {"split_batches": True}, {"gradient_accumulation_kwargs": {"num_steps": 4}}])
def test_it_has_the_attributes_of_transformers(given: Any) -> None:
    ours: Any = TrainingArguments("x", accelerator_config=given).accelerator_config
    theirs: Any = transformers.TrainingArguments("x", accelerator_config=given).accelerator_config
    assert ours.to_dict() == {"use_configured_state": False, **theirs.to_dict()}
    assert {name: getattr(ours, name) for name in theirs.to_dict()} == theirs.to_dict()


def test_a_json_file_and_another_objects_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"even_batches": False}))
    first: Any = TrainingArguments("x", accelerator_config=str(tmp_path / "a.json"))
    again: Any = TrainingArguments("x", accelerator_config=first.accelerator_config)
    assert first.accelerator_config.even_batches is again.accelerator_config.even_batches is False
    first.accelerator_config.non_blocking = True
    assert first.accelerator_config.to_dict()["non_blocking"] is True


def test_what_is_stored_is_what_was_given() -> None:
    """Checkpoints and config.yaml of earlier releases hold it so, and must not look changed."""
    assert TrainingArguments("x").to_dict()["accelerator_config"] is None
    args: Any = TrainingArguments("x", accelerator_config={"split_batches": True})
    assert args.to_dict()["accelerator_config"] == {"split_batches": True}
    for same in (copy.deepcopy(args), pickle.loads(pickle.dumps(args)), dataclasses.replace(args, seed=1)):  # noqa: S301
        assert same.accelerator_config.split_batches is True


def test_a_name_that_it_does_not_have_is_refused() -> None:
    config: Any = TrainingArguments("x").accelerator_config
    with pytest.raises(AttributeError, match="split"):
        config.split  # noqa: B018
