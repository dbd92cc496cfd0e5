"""The pruning modifiers in a Trainer: stopped, resumed, and the same in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.recipes.digits import MLP, trainer_for
from trainwright import Trainer, TrainerCallback
from trainwright.core.modifier import Modifier
from trainwright.recipes.pruning.acdc import ACDCPruningModifier
from trainwright.recipes.pruning.layers import LayerPruningModifier
from trainwright.recipes.pruning.mfac import MFACPruningModifier
from trainwright.recipes.pruning.obs import OBSPruningModifier
from trainwright.recipes.pruning.powerpropagation import PowerpropagationModifier
from trainwright.recipes.pruning.rigl import RigLPruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.pruning.thinning import LayerThinningModifier
from trainwright.recipes.pruning.topkast import TopKASTPruningModifier

GRADUAL: dict[str, Any] = {
    "init_sparsity": 0.2,
    "final_sparsity": 0.5,
    "start_epoch": 0.2,
    "end_epoch": 1.6,
    "update_frequency": 0.35,
}
WHEN: dict[str, Any] = {"start_epoch": 0, "end_epoch": 2, "update_frequency": 0.3}
HIDDEN = ["layers.1.weight", "layers.3.weight"]

CASES: dict[str, Callable[[], list[Modifier]]] = {
    "obs": lambda: [OBSPruningModifier(**GRADUAL, num_grads=4, fisher_block_size=16)],
    "mfac": lambda: [MFACPruningModifier(**GRADUAL, num_grads=4)],
    "acdc": lambda: [ACDCPruningModifier(compression_sparsity=0.8, start_epoch=0, end_epoch=2, update_frequency=1)],
    "rigl": lambda: [RigLPruningModifier(final_sparsity=0.7, **WHEN)],
    "topkast": lambda: [TopKASTPruningModifier(forward_sparsity=0.8, backward_sparsity=0.5, **WHEN)],
    "powerpropagation": lambda: [PowerpropagationModifier(alpha=2.0, end_epoch=1.5)],
    "thinning": lambda: [
        StructuredPruningModifier(**GRADUAL, params=HIDDEN),
        LayerThinningModifier(start_epoch=0.5, update_epochs=[1.6]),
    ],
    "thinning at the end": lambda: [StructuredPruningModifier(**GRADUAL, params=HIDDEN), LayerThinningModifier()],
    "layer": lambda: [LayerPruningModifier(layers=["layers.3"], start_epoch=1.1)],
    "layer for a while": lambda: [LayerPruningModifier(layers=["layers.3"], start_epoch=0.7, end_epoch=1.4)],
    "layer from the start": lambda: [LayerPruningModifier(layers=["layers.3"])],
}


class Stop(TrainerCallback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at:
            control.should_save = control.should_training_stop = True


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_stop_changes_nothing(case: str, tmp_path: Path) -> None:
    def run(folder: str, callbacks: list[Any], **options: Any) -> tuple[Trainer, nn.Module]:
        torch.manual_seed(0)
        model = MLP(16)
        trainer = trainer_for(model, tmp_path / folder, 0, 2, recipe=CASES[case](), callbacks=callbacks)
        trainer.train(**options)
        return trainer, model

    whole, straight = run("whole", [])
    run("parts", [Stop(50)])
    resumed, parted = run("parts", [], resume_from_checkpoint=True)
    assert whole.state.global_step == resumed.state.global_step
    states = straight.state_dict(), parted.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    if "thinning" in case:
        assert straight.get_submodule("layers.1").out_features == 8
    if case in ("obs", "mfac"):
        total = sum(p.numel() for p in straight.parameters() if p.dim() > 1)
        zeros = sum(int((p == 0).sum()) for p in straight.parameters() if p.dim() > 1)
        assert abs(zeros - 0.5 * total) <= 2
