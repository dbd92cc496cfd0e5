"""A run that is stopped and continued in new objects ends as if it had not been stopped, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.recipes.pruning.runs import Chain, Mixed, Training, merged, pictures_batch, tokens_batch
from trainwright.core.modifier import Modifier
from trainwright.recipes.pruning.acdc import ACDCPruningModifier
from trainwright.recipes.pruning.constant import ConstantPruningModifier
from trainwright.recipes.pruning.layers import LayerPruningModifier
from trainwright.recipes.pruning.magnitude import (
    GlobalMagnitudePruningModifier,
    GMPruningModifier,
    MagnitudePruningModifier,
)
from trainwright.recipes.pruning.mfac import MFACPruningModifier
from trainwright.recipes.pruning.movement import MovementPruningModifier
from trainwright.recipes.pruning.obs import OBSPruningModifier
from trainwright.recipes.pruning.powerpropagation import PowerpropagationModifier
from trainwright.recipes.pruning.rigl import RigLPruningModifier
from trainwright.recipes.pruning.structured import StructuredPruningModifier
from trainwright.recipes.pruning.thinning import LayerThinningModifier
from trainwright.recipes.pruning.topkast import TopKASTPruningModifier

GRADUAL: dict[str, Any] = {
    "init_sparsity": 0.1,
    "final_sparsity": 0.7,
    "start_epoch": 0.5,
    "end_epoch": 3.5,
    "update_frequency": 0.5,
}
FIRST = ["first.weight", "second.weight", "hidden.weight"]

CASES: dict[str, Callable[[], list[Modifier]]] = {
    "gm": lambda: [GMPruningModifier(**GRADUAL)],
    "magnitude": lambda: [MagnitudePruningModifier(**merged(GRADUAL, {"init_sparsity": "__FROM_PARAM__"}))],
    "block4": lambda: [MagnitudePruningModifier(**GRADUAL, mask_type="block4")],
    "2:4": lambda: [MagnitudePruningModifier(**merged(GRADUAL, {"final_sparsity": 0.5}), mask_type="2:4")],
    "released": lambda: [MagnitudePruningModifier(**GRADUAL, leave_enabled=False)],
    "global": lambda: [GlobalMagnitudePruningModifier(**GRADUAL)],
    "constant": lambda: [ConstantPruningModifier(start_epoch=1)],
    "movement": lambda: [MovementPruningModifier(**GRADUAL)],
    "obs": lambda: [OBSPruningModifier(**GRADUAL, num_grads=4, fisher_block_size=8)],
    "obs block4": lambda: [
        OBSPruningModifier(**GRADUAL, num_grads=4, fisher_block_size=8, mask_type="block4", num_recomputations=2)
    ],
    "mfac": lambda: [MFACPruningModifier(**GRADUAL, num_grads={0.0: 3, 0.5: 5}, fisher_block_size=100)],
    "acdc": lambda: [ACDCPruningModifier(compression_sparsity=0.8, start_epoch=0, end_epoch=4, update_frequency=1)],
    "rigl": lambda: [RigLPruningModifier(final_sparsity=0.7, start_epoch=0.5, end_epoch=4, update_frequency=0.5)],
    "rigl sampled": lambda: [
        RigLPruningModifier(final_sparsity=0.7, start_epoch=0, end_epoch=4, update_frequency=1, num_grads=2)
    ],
    "topkast": lambda: [
        TopKASTPruningModifier(
            forward_sparsity=0.8, backward_sparsity=0.5, start_epoch=0.5, end_epoch=3.5, update_frequency=-1
        )
    ],
    "topkast seldom": lambda: [
        TopKASTPruningModifier(
            forward_sparsity=0.8, backward_sparsity=0.5, start_epoch=0, end_epoch=9, update_frequency=1
        )
    ],
    "powerpropagation": lambda: [PowerpropagationModifier(start_epoch=0.5, end_epoch=3.5, alpha=3.0)],
    "power and magnitude": lambda: [
        PowerpropagationModifier(alpha=2.0, end_epoch=4),
        MagnitudePruningModifier(**GRADUAL),
    ],
    "structured": lambda: [StructuredPruningModifier(**GRADUAL, params=FIRST)],
    "layer for a while": lambda: [LayerPruningModifier(layers=["second"], start_epoch=1, end_epoch=3)],
    "layer for good": lambda: [LayerPruningModifier(layers=["second"], start_epoch=1.5)],
    "layer from the start": lambda: [LayerPruningModifier(layers=["re:second"])],
}
STEPS = 18


def compare(one: Training, other: Training) -> None:
    first, second = one.saved(), other.saved()
    assert first["model"].keys() == second["model"].keys()
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name
    for mine, yours in zip(first["modifiers"], second["modifiers"], strict=True):
        assert mine["values"] == yours["values"]
        assert mine["tensors"].keys() == yours["tensors"].keys()
        for name, tensor in mine["tensors"].items():
            assert torch.equal(tensor, yours["tensors"][name]), name
    for number, entries in first["optimizer"]["state"].items():
        for key, value in entries.items():
            other_value = second["optimizer"]["state"][number][key]
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other_value)), (number, key)


@pytest.mark.parametrize("stop", [1, 7, 14])
@pytest.mark.parametrize("case", CASES)
def test_a_stop_changes_nothing(case: str, stop: int) -> None:
    straight = Training(CASES[case]()).run(STEPS)
    saved = Training(CASES[case]()).run(stop).saved()
    resumed = Training(CASES[case](), saved=saved, epoch=stop / 4).run(STEPS)
    compare(straight, resumed)
    for training in (straight, resumed):
        training.drive.finish()
    compare(straight, resumed)


@pytest.mark.parametrize("case", ["magnitude", "movement", "obs", "rigl", "topkast", "powerpropagation"])
def test_a_stop_changes_nothing_in_half_precision(case: str) -> None:
    straight = Training(CASES[case](), dtype=torch.bfloat16).run(STEPS)
    saved = Training(CASES[case](), dtype=torch.bfloat16).run(7).saved()
    compare(straight, Training(CASES[case](), dtype=torch.bfloat16, saved=saved, epoch=7 / 4).run(STEPS))


def thinning() -> list[Modifier]:
    convolutions = ["conv1.weight", "conv2.weight", "hidden.weight"]
    return [
        StructuredPruningModifier(**GRADUAL, params=convolutions),
        LayerThinningModifier(start_epoch=2, update_epochs=[3.5]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [5, 8, 15])
def test_a_stop_changes_nothing_around_thinning(stop: int) -> None:
    straight = Training(thinning(), build=Chain, batches=pictures_batch).run(STEPS)
    saved = Training(thinning(), build=Chain, batches=pictures_batch).run(stop).saved()
    resumed = Training(thinning(), build=Chain, batches=pictures_batch, saved=saved, epoch=stop / 4).run(STEPS)
    compare(straight, resumed)
    assert straight.model.get_submodule("conv1").out_channels == 2


def test_other_batches_give_another_run() -> None:
    """The comparison can fail."""
    one = Training(CASES["magnitude"]()).run(5)
    other = Training(CASES["magnitude"](), batches=lambda step: tokens_batch(step + 1)).run(5)
    with pytest.raises(AssertionError):
        compare(one, other)
    assert isinstance(one.model, Mixed)
