"""Accelerations beside what else a training may use: the same weights as without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceleration.networks import gpt2, llama
from tests.acceleration.test_runs import rows, told, trainer, weights
from trainwright import EMACallback
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks
from trainwright.engines.torch.acceleration.head import NoLogits
from trainwright.training import acceleration

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def with_lora() -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))


def partly_frozen() -> Any:
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    return model


#: What builds the network, and the arguments beside ``acceleration``.
TOGETHER: dict[str, tuple[Any, dict[str, Any]]] = {
    "gradient checkpointing": (llama, {"gradient_checkpointing": True}),
    "LoRA": (with_lora, {}),
    "LoRA and checkpointing": (with_lora, {"gradient_checkpointing": True}),
    "frozen parameters": (partly_frozen, {}),
    "accumulation": (llama, {"gradient_accumulation_steps": 2}),
    "micro_batch": (llama, {"micro_batch": 2}),
    "micro_batch='auto'": (llama, {"micro_batch": "auto"}),
    "neftune": (llama, {"neftune_noise_alpha": 5.0}),
    "evaluation": (llama, {"eval_strategy": "steps", "eval_steps": 1}),
    "a moving average of the weights": (llama, {}),
    "tied weights and dropout off": (lambda: without_dropout(gpt2()), {}),
}


def without_dropout(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


SOON = ("gradient checkpointing", "LoRA and checkpointing", "micro_batch='auto'")


@pytest.mark.parametrize("name", [*SOON, *(pytest.param(n, marks=pytest.mark.full) for n in TOGETHER if n not in SOON)])
def test_they_go_together(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, options = TOGETHER[name]
    monkeypatch.setattr(acceleration, "TECHNIQUES", (CompiledBlocks(backend="aot_eager"), NoLogits()))
    torch.compiler.reset()
    found = []
    for wanted in ("off", ["blocks", "logits"]):
        torch.manual_seed(0)
        settings: dict[str, Any] = {"acceleration": wanted, "learning_rate": 1e-3, "eval_dataset": rows(6), **options}
        run = trainer(tmp_path / str(wanted), build(), **settings)
        if "average" in name:
            run.add_callback(EMACallback(decay=0.5))
        run.train()
        found.append((weights(run.model), [entry.get("eval_loss") for entry in run.state.log_history]))
    assert told(tmp_path / "['blocks', 'logits']")["used"] == ["blocks", "logits"]
    (plain, losses), (fast, other_losses) = found
    assert plain.keys() == fast.keys()
    for key, one in plain.items():
        # Adam makes a whole step of a gradient that is only rounding.
        torch.testing.assert_close(fast[key], one, rtol=1e-3, atol=2e-4, msg=lambda text, at=key: f"{at}: {text}")
    assert [one for one in losses if one] == pytest.approx([one for one in other_losses if one], rel=1e-4)


def test_what_recomputes_in_its_own_backward_pass_is_left_plain_and_said_why(tmp_path: Path) -> None:
    """The old kind of checkpointing gives gradients to ``backward()`` only."""
    options: dict[str, Any] = {"gradient_checkpointing_kwargs": {"use_reentrant": True}, "acceleration": ["logits"]}
    trainer(tmp_path, gradient_checkpointing=True, **options).train()
    assert "use_reentrant=False" in told(tmp_path)["left_out"]["logits"]
