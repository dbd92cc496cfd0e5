"""When modifiers begin and end stands in the run's events, once, and in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.recipes.digits import MLP, trainer_for
from trainwright.core.modifier import Modifier
from trainwright.recipes.pruning.magnitude import GlobalMagnitudePruningModifier
from trainwright.recipes.scheduling.epochs import EpochRangeModifier
from trainwright.report.page import write_report


def recipe() -> list[Modifier]:
    pruning = GlobalMagnitudePruningModifier(init_sparsity=0.1, final_sparsity=0.5, start_epoch=0.5, end_epoch=1.5)
    return [EpochRangeModifier(start_epoch=0, end_epoch=2), pruning]


def stages(folder: Path) -> list[str]:
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event["message"] for event in events if event["kind"] == "recipe"]


def test_each_start_and_end_is_noted_once_also_over_a_resume(tmp_path: Path) -> None:
    # 43 steps an epoch: the first process ends in the middle of pruning.
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 30, "save_total_limit": None}
    trainer_for(MLP(16), tmp_path, 0, 2, args={**options, "max_steps": 30}, recipe=recipe()).train()
    assert stages(tmp_path) == ["EpochRange begins at epoch 0.", "GlobalMagnitudePruning begins at epoch 0.5116."]
    trainer_for(MLP(16), tmp_path, 0, 2, args={**options, "max_steps": 86}, recipe=recipe()).train(
        resume_from_checkpoint=True
    )
    assert stages(tmp_path)[2:] == ["GlobalMagnitudePruning ends at epoch 1.512.", "EpochRange ends at epoch 2."]
    text = write_report(tmp_path).markdown.read_text()
    assert "GlobalMagnitudePruning ends at epoch 1.512." in text
