"""A model's folder that is replaced: whole at any moment, whoever is killed when."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainwright.checkpoint import durable
from trainwright.checkpoint.models import ModelFolder


class Killed(BaseException):
    """What a kill is to the code that it hits: nothing after it happens."""


def dies_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = os.rename, [0]

    def rename(source: Any, target: Any) -> None:
        done[0] += 1
        if done[0] == number:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)


def step_of(folder: Path) -> int:
    torch.nn.Linear(1, 1).load_state_dict(torch.load(folder / "pytorch_model.bin", weights_only=True))
    return json.loads((folder / "status.json").read_text())["step"]


def saved_and_killed(folder: Path, number: int) -> bool:
    """Save a second model over a first, and die at a rename; False where there are not so many."""
    target = ModelFolder(folder, safe_serialization=False)
    target.save(torch.nn.Linear(1, 1), {"step": 1})
    (folder / "notes.txt").write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        dies_at(number, patch)
        try:
            target.save(torch.nn.Linear(1, 1), {"step": 2})
        except Killed:
            return True
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux exchanges names")
def test_it_is_whole_at_any_moment(tmp_path: Path) -> None:
    number = 1
    while saved_and_killed(tmp_path / str(number), number):
        # Before anybody cleans up.
        assert step_of(tmp_path / str(number)) in (1, 2)
        number += 1
    assert number > 2


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_next_start_finds_a_whole_one_and_what_others_put_there(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(durable, "exchange", lambda one, other: False)
    number = 1
    while saved_and_killed(folder := tmp_path / str(number), number):
        ModelFolder(folder).clean_up()
        assert step_of(folder) in (1, 2)
        assert (folder / "notes.txt").read_text() == "mine"
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(f".{number}.")] == []
        number += 1
    assert number > 2
