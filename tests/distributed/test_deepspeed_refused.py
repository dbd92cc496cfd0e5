"""What cannot go with DeepSpeed and is known when a Trainer is made; needs no DeepSpeed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from trainwright import Module, Trainer, TrainingArguments
from trainwright.config.refused_versions import refuse_wrong_gradients


class ByHand(Module):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(2, 2)

    def training_step(self, batch: Any) -> Any:
        return self.model(batch).sum()


PRUNING = """
pruning_modifiers:
  - !MagnitudePruningModifier
      {params: ["re:.*weight"], init_sparsity: 0.1, final_sparsity: 0.7, start_epoch: 0.0, end_epoch: 1.0,
       update_frequency: 0.5}
"""


def test_refused_with_the_way_out(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), backend="deepspeed", use_cpu=True, disable_tqdm=True)
    with pytest.raises(ValueError, match="automatic_optimization=False"):
        Trainer(ByHand(), args)
    with pytest.raises(ValueError, match=r"MagnitudePruningModifier .* backend='fsdp'"):
        Trainer(torch.nn.Linear(2, 2), args, recipe=PRUNING)
    assert Trainer(torch.nn.Linear(2, 2), args).is_deepspeed_enabled


@pytest.mark.parametrize(
    ("version", "stage", "bf16", "processes", "more", "refusal"),
    [
        ("0.19.3", 2, True, 2, {}, "DeepSpeed 0.19.3 computes wrong gradients with stage 2 and bf16"),
        ("0.19.5", 2, True, 4, {}, "pip install 'deepspeed>=0.19.6', or use stage 1 or 3, or bf16=False"),
        ("0.19.3", 2, False, 2, {}, None),
        ("0.19.3", 1, True, 2, {}, None),
        ("0.19.3", 2, True, 1, {}, None),
        ("0.19.6", 2, True, 2, {}, None),
        ("0.19.8+cu130", 2, True, 2, {"contiguous_gradients": False}, None),
        ("0.19.7", 1, False, 2, {"contiguous_gradients": False}, "contiguous_gradients=false: leave it out"),
        ("0.18.2", 2, False, 1, {}, "DeepSpeed 0.18.2 is too old: pip install 'deepspeed>=0.19.6'"),
    ],
)
def test_versions_with_wrong_gradients_are_refused_by_name(
    version: str, stage: int, bf16: bool, processes: int, more: dict[str, Any], refusal: str | None
) -> None:
    config = {"zero_optimization": {"stage": stage, **more}, "bf16": {"enabled": bf16}}
    if refusal is None:
        refuse_wrong_gradients(version, config, processes=processes)
    else:
        with pytest.raises(ValueError, match=re.escape(refusal)):
            refuse_wrong_gradients(version, config, processes=processes)


def test_a_trainer_is_refused_where_such_a_version_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded; the version is read from what is installed."""
    about = tmp_path / "site" / "deepspeed-0.19.3.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.3\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    args = TrainingArguments(str(tmp_path), backend="deepspeed", bf16=True, use_cpu=True, disable_tqdm=True)
    with pytest.raises(ValueError, match=r"DeepSpeed 0\.19\.3 computes wrong gradients"):
        Trainer(torch.nn.Linear(2, 2), args)
