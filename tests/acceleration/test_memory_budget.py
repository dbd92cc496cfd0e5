"""``memory_budget``: compiled blocks keep less for the backward pass, and gradients stay what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.acceleration.networks import llama, made
from tests.acceleration.test_runs import told, trainer
from tests.acceleration.test_techniques import check_equal, situation
from trainwright import TrainingArguments
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"memory_budget": 1.5}, "must be from 0"),
        ({"memory_budget": True}, "must be a number"),
        ({"memory_budget": 0.5, "gradient_checkpointing": True}, "leave one of them out"),
        ({"memory_budget": 0.5, "torch_compile": True}, "leave torch_compile=True out"),
        ({"memory_budget": 0.5, "acceleration": "off"}, "needs compiled blocks"),
        ({"memory_budget": 0.5, "acceleration": ["logits"]}, "needs compiled blocks"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem):
        TrainingArguments(str(tmp_path), use_cpu=True, **options)


def test_a_network_without_blocks_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Plain(nn.Linear):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"loss": (super().forward(x).squeeze(-1) - labels).pow(2).mean()}

    rows = [{"x": torch.ones(3), "labels": torch.tensor(1.0)}] * 8
    run = trainer(tmp_path, Plain(3, 1), rows, memory_budget=0.5)
    with pytest.raises(ValueError, match=r"the network has no repeated blocks. Leave it out; gradient_checkpointing"):
        run.train()
    assert run.state.global_step == 0


def kept(budget: float | None) -> int:
    """Bytes that a forward of compiled blocks keeps for backward."""
    torch.compiler.reset()
    network, batch = made("llama")
    undo = CompiledBlocks().install(situation(network, memory_budget=budget))
    sizes: dict[int, int] = {}
    known = {one.data_ptr() for one in network.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in known:
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    try:
        network(**batch).loss.backward()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found = network(**batch)
            del found
    finally:
        undo()
    return sum(sizes.values())


@pytest.mark.full
@pytest.mark.timeout(600)
def test_less_is_kept() -> None:
    everything, half, nothing = kept(None), kept(0.5), kept(0.0)
    assert nothing < half < everything


@pytest.mark.full
@pytest.mark.timeout(600)
def test_gradients_are_the_same() -> None:
    network, batch = made("llama")
    torch.compiler.reset()
    check_equal(network, batch, CompiledBlocks(), memory_budget=0.0)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_training_uses_it_without_being_asked_for_compiled_blocks(tmp_path: Path) -> None:
    torch.compiler.reset()
    run = trainer(tmp_path, llama(), memory_budget=0.5)
    run.train()
    assert told(tmp_path)["used"] == ["blocks"]
