"""What cannot go with DeepSpeed and is known when a Trainer is made; needs no DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trainwright import Module, Trainer, TrainingArguments


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
