"""Memory beforehand: what is counted against what can be worked out by hand, and against real tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.experiment import tiny
from trainwright import TrainingArguments
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.engines.torch.rehearsal.estimate import Estimate, estimate_memory
from trainwright.engines.torch.rehearsal.ledger import Ledger
from trainwright.experiment.estimating import estimate

WIDTH, LAYERS, ROWS = 256, 4, 64
BLOCK = WIDTH * WIDTH * 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(LAYERS)
        )

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"loss": ((x - labels) ** 2).mean()}


def arguments(**more: Any) -> TrainingArguments:
    return TrainingArguments("unused", use_cpu=True, report_to="none", **more)


def found(**more: Any) -> dict[str, Estimate]:
    gpus, rows = more.pop("gpus", 1), more.pop("rows", ROWS)
    batch = {"x": torch.zeros(rows, WIDTH), "labels": torch.zeros(rows, WIDTH)}
    every = estimate_memory(Net(), arguments(**more), batch, gpus=gpus)
    return {f"{one.strategy}{' again' if one.recompute else ''}": one for one in every}


def test_weights_gradients_and_state() -> None:
    parts = found()["sp"].parts
    assert parts["weights"] == LAYERS * BLOCK
    assert parts["optimizer"] == 2 * LAYERS * BLOCK + LAYERS * 512
    # SGD without momentum keeps nothing.
    assert "optimizer" not in found(optim="sgd")["sp"].parts


def test_activations_are_what_autograd_keeps() -> None:
    piece = ROWS * WIDTH * 4
    parts = found(optim="sgd")["sp"].parts
    # Outputs of the ReLUs, inputs of the next layer among them; the loss keeps its difference.
    assert LAYERS * piece <= parts["activations"] + parts.get("temporary", 0) <= (LAYERS + 5) * piece
    assert found(optim="sgd")["sp again"].parts["activations"] <= parts["activations"]


def test_sharding_divides_what_is_kept() -> None:
    two, eight = found(gpus=2), found(gpus=8)
    assert "sp" not in two
    assert two["ddp"].parts["weights"] == LAYERS * BLOCK
    assert eight["fsdp full_shard"].parts["weights"] == LAYERS * BLOCK // 8
    assert eight["fsdp full_shard"].total < two["fsdp full_shard"].total < two["ddp"].total
    assert eight["fsdp full_shard"].parts["gathered"] < eight["fsdp shard_grad_op"].parts["gathered"]
    offloaded = eight["fsdp full_shard offload"]
    assert offloaded.host > 0
    assert not {"weights", "optimizer", "gradients"} & set(offloaded.parts)


def test_half_precision_halves_what_layers_keep() -> None:
    # So many rows that most is held when the backward pass begins.
    whole = found(optim="sgd", rows=4096)["sp"].parts
    half = found(optim="sgd", rows=4096, bf16=True)["sp"].parts
    # The first layer needs none of its own: nothing before it learns.
    assert half["half_weights"] == (LAYERS - 1) * BLOCK // 2
    assert half["activations"] < whole["activations"]


def test_micro_batches_stand_beside_gradients() -> None:
    once, twice = found(optim="sgd")["sp"], found(optim="sgd", gradient_accumulation_steps=2)["sp"]
    assert twice.parts["gradients"] == LAYERS * BLOCK
    assert twice.allocated > once.allocated


def test_attention_keeps_no_matrix_of_scores() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(64, 64)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            heads = self.mix(x).unflatten(-1, (4, 16)).transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return {"loss": (mixed.transpose(1, 2).flatten(2).float() - labels).pow(2).mean()}

    rows = torch.zeros(1, 2048, 64)
    (one,) = estimate_memory(
        Attention(), arguments(bf16=True), {"x": rows, "labels": rows}, strategies=["sp"], recompute=[False]
    )
    assert one.parts["activations"] < 4 * 2048 * 2048 * 2


def test_a_model_that_asks_for_numbers_is_refused() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": (self.weight * int(x.sum().item())).sum()}

    batch = {"x": torch.zeros(2), "labels": torch.zeros(2)}
    with pytest.raises(ValueError, match="could not be tried without numbers"):
        estimate_memory(Asks(), arguments(), batch, recompute=[False])


def test_the_ledger_follows_lifetimes() -> None:
    with FakeTensorMode(), Ledger() as ledger:
        kept = torch.empty(1000)
        view = kept[10:]
        del kept
        assert ledger.now == 4096
        del view
        assert ledger.now == 0
        assert ledger.peak == 4096


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_experiment_with_a_model_by_name(tmp_path: Path) -> None:
    tiny.gpt(tmp_path / "model")
    (tmp_path / "t.txt").write_text("\n".join("the film is good and the plot was so bad" for _ in range(200)))
    (tmp_path / "e.yaml").write_text(
        "model: {name: ./model, task: causal-lm}\ndata: {train: t.txt, max_length: 32}\n"
        "training: {per_device_train_batch_size: 4, use_cpu: true, optim: adamw_torch}\n"
    )
    plan = estimate(load_experiment(tmp_path / "e.yaml", []), gpus=4, memory=80)
    assert plan.batch["input_ids"] == [4, 32]
    by_name = {(one.strategy, one.recompute): one for one in plan.estimates}
    assert by_name["ddp", False].parts["weights"] >= 4 * plan.parameters
    assert all(plan.fits(one) for one in plan.estimates)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="--memory"):
        estimate(load_experiment(tmp_path / "e.yaml", []), memory=0)
