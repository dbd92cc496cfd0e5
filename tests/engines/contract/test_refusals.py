"""What an engine cannot do is said before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engines.contract.engines import OTHERS, Dense, arguments, rows, train
from tests.engines.graph.torch_framework import TorchFramework
from trainwright import Module, Trainer, TrainerCallback
from trainwright.training import engine_choice
from trainwright.training.engine_choice import FEATURES


class OwnStep(Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return super().training_step(model, inputs)


class ClipsByItself(Trainer):
    def _clip_grad_norm(self, model: Any) -> Any:
        return super()._clip_grad_norm(model)


class ScalesItsLoss(Trainer):
    loss_is_scaled_for_ga = True


class LooksAtGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert kwargs["model"].second.weight.grad is not None


class Wrapped(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dense()

    def training_step(self, batch: Any) -> Any:
        return self.model(**batch)


def hooked() -> nn.Module:
    model = Dense()
    model.first.register_forward_hook(lambda *args: None)
    return model


Make = Callable[[Any], Any]
_RECIPE = "modifiers:\n- !EpochRangeModifier\n  start_epoch: 0.0\n  end_epoch: 1.0\n"

#: For each feature a script that asks for it.
ASKS: dict[str, Make] = {
    "processes": lambda args: Trainer(Dense(), args(backend="fsdp"), train_dataset=rows()),
    "recipes": lambda args: Trainer(Dense(), args(), train_dataset=rows(), recipe=_RECIPE),
    "modules": lambda args: Trainer(Wrapped(), args(), train_dataset=rows()),
    "training_step": lambda args: OwnStep(Dense(), args(), train_dataset=rows()),
    "clipping": lambda args: ClipsByItself(Dense(), args(), train_dataset=rows()),
    "scaled losses": lambda args: ScalesItsLoss(Dense(), args(), train_dataset=rows()),
    "half evaluation": lambda args: Trainer(Dense(), args(bf16_full_eval=True), train_dataset=rows()),
    "torch_compile": lambda args: Trainer(Dense(), args(torch_compile=True), train_dataset=rows()),
    "checkpointing options": lambda args: Trainer(
        Dense(),
        args(gradient_checkpointing=True, gradient_checkpointing_kwargs={"every_n_layers": 2}),
        train_dataset=rows(),
    ),
    "neftune": lambda args: Trainer(Dense(), args(neftune_noise_alpha=5.0), train_dataset=rows()),
    "tf32": lambda args: Trainer(Dense(), args(tf32=True), train_dataset=rows()),
    "zeroed gradients": lambda args: Trainer(Dense(), args(set_grads_to_none=False), train_dataset=rows()),
    "liger": lambda args: Trainer(Dense(), args(use_liger_kernel=True), train_dataset=rows()),
    "overflow debugging": lambda args: Trainer(Dense(), args(debug="underflow_overflow"), train_dataset=rows()),
    "automatic micro-batches": lambda args: Trainer(Dense(), args(micro_batch="auto"), train_dataset=rows()),
    "gradients": lambda args: Trainer(Dense(), args(), train_dataset=rows(), callbacks=[LooksAtGradients()]),
    "hooks": lambda args: Trainer(hooked(), args(), train_dataset=rows()),
}


def test_every_feature_is_asked_for() -> None:
    assert ASKS.keys() == FEATURES.keys()


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
@pytest.mark.parametrize("name", list(FEATURES))
def test_what_is_not_supported_is_refused(name: str, engine: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the words are looked at below
        ASKS[name](lambda **options: arguments(tmp_path, engine, **options)).train()
    words = str(refused.value)
    assert FEATURES[name].reason in words


@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_optimizers_without_a_rule_are_refused(engine: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"engine='{engine}' has no Adafactor: choose optim='adamw_torch'"):
        train(tmp_path, engine, Dense(), optim="adafactor_torch")
    model = Dense()
    amsgrad = torch.optim.AdamW(model.parameters(), amsgrad=True)
    trainer = Trainer(model, arguments(tmp_path, engine), train_dataset=rows(), optimizers=(amsgrad, None))
    with pytest.raises(ValueError, match="has no AdamW with amsgrad=True: leave it out"):
        trainer.train()


@pytest.mark.slow
def test_an_operation_that_is_missing_is_named_with_its_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {torch.ops.aten.tanh.default}
    from trainwright.config import probe

    monkeypatch.setattr(engine_choice, "framework_for", lambda args: TorchFramework(lacking=lacking))
    monkeypatch.setitem(probe._PROBES, "mindspore", probe._PROBES["torch"])
    probe._load.cache_clear()

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 3), nn.Tanh())

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": nn.functional.cross_entropy(self.inner(x), labels)}

    with pytest.raises(ValueError, match=r"aten\.tanh\.default in inner\.1 \(Tanh\).*OPERATIONS.*engine='torch'"):
        train(tmp_path, "mindspore", Deep())
    probe._load.cache_clear()


class Reversed(torch.autograd.Function):
    """Forwards the values, and the gradient with the other sign."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return -gradients[0]


class Beside(Dense):
    """Does something that leaves no trace in a graph of operations."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.table = nn.Embedding(4, 8, max_norm=0.1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.first(x))
        if self.what == "backward":
            hidden: Any = Reversed.apply(hidden)
        elif self.what == "hook" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.1)
        elif self.what == "rescaled weight":
            hidden = hidden + self.table(torch.zeros(len(x), dtype=torch.int64))
        logits = self.second(hidden)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


LOST = {
    "backward": "gradient of first.weight differs by 1",
    "hook": "gradient of first.weight differs by ",
    "rescaled weight": "writes to the weight table.weight",
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
@pytest.mark.parametrize("what", list(LOST))
def test_what_a_graph_loses_is_refused(what: str, engine: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=LOST[what]) as refused:
        train(tmp_path, engine, Beside(what))
    assert "engine_check=False" in str(refused.value)


class NotByTorch(Dense):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if not torch.compiler.is_exporting():
            raise RuntimeError("not implemented for 'Half'")
        return super().forward(x, labels)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["seam"], indirect=True)
def test_an_error_of_torchs_own_run_says_how_to_leave_it_out(engine: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not implemented") as failed:
        train(tmp_path / "a", engine, NotByTorch())
    assert any("engine_check=False" in note for note in failed.value.__notes__)
    assert train(tmp_path / "b", engine, NotByTorch(), engine_check=False).trainer.state.global_step == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", OTHERS, indirect=True)
def test_unless_it_is_wanted(engine: str, tmp_path: Path) -> None:
    assert train(tmp_path, engine, Beside("backward"), engine_check=False).trainer.state.global_step == 4
    assert train(tmp_path, engine, Beside("nothing")).trainer.state.global_step == 4
