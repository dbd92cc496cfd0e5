"""Where tensors lie in memory decides last bits on some processors: a resume puts them back where they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.faults import runner
from trainwright import EMACallback, Trainer, TrainerCallback, TrainingArguments
from trainwright.checkpoint.layout import laid_out, stored_strides, strides_as_metadata, unusual_strides
from trainwright.checkpoint.states import pack_state, unpack_state

ALIGNMENT = 64


class Convolving(nn.Module):
    """Lies in memory with its channels last, and so does what optimizer and averages keep of it."""

    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = nn.Conv2d(3, 5, 2), nn.Linear(5, 3)
        self.to(memory_format=memory_format)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        picture = x.view(-1, 3, 2, 1).expand(-1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        return self.out(self.conv(picture).amax((2, 3)))


class Looks(TrainerCallback):
    """Notes, before a step, how everything lies that a resume restores."""

    def __init__(self, step: int) -> None:
        self.step, self.seen = step, {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.seen = {name: (tuple(t.shape), t.stride()) for name, t in kept_by(kwargs).items()}
            for name, tensor in kept_by(kwargs).items():
                assert tensor.data_ptr() % ALIGNMENT == 0, name
                assert tensor.untyped_storage().nbytes() == tensor.nbytes, f"{name} is a part of something larger"


def kept_by(kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    found = {f"weight.{name}": parameter.detach() for name, parameter in kwargs["model"].named_parameters()}
    for number, entries in kwargs["optimizer"].state_dict()["state"].items():
        for key, value in entries.items():
            items = value if isinstance(value, list) else [value]
            found |= {f"state.{number}.{key}.{n}": t for n, t in enumerate(items) if isinstance(t, Tensor)}
    return found


class PatientLBFGS(torch.optim.LBFGS):
    """Keeps lists of tensors; here it does with the gradients that are there."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure or (lambda: torch.zeros(())))


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "lbfgs": lambda parameters: PatientLBFGS(parameters, lr=1e-1, history_size=3, max_iter=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_restored_lies_as_it_did(tmp_path: Path, name: str) -> None:
    def run(folder: str, looks: Looks, steps: int = 6) -> tuple[Trainer, EMACallback]:
        average = EMACallback(0.9)
        # LBFGS takes nothing but rows.
        model = Convolving(torch.contiguous_format if name == "lbfgs" else torch.channels_last)
        settings = {
            "lr_scheduler_type": "constant",
            "save_steps": 3,
            "disable_tqdm": True,
            "use_cpu": True,
            "resume": "auto",
        }
        args = TrainingArguments(str(tmp_path / folder), max_steps=steps, **settings)
        tools = (OPTIMIZERS[name](list(model.parameters())), None)
        callbacks = [average, looks]
        trainer = Trainer(model, args, train_dataset=runner.rows(), optimizers=tools, callbacks=callbacks)
        trainer.train()
        return trainer, average

    in_training, restored = Looks(3), Looks(3)
    whole, averages = run("whole", in_training)
    run("cut", Looks(0), steps=3)
    resumed, again = run("cut", restored)
    assert resumed._present_run().first_step == 3
    assert in_training.seen
    assert restored.seen == in_training.seen
    for (key, one), other in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), key
    for (key, one), other in zip(
        averages.state_dict()["tensors"].items(), again.state_dict()["tensors"].values(), strict=True
    ):
        assert one.stride() == other.stride(), key
        assert torch.equal(one, other), key


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    kind=st.sampled_from([torch.float32, torch.bool, torch.bfloat16, torch.int64]),
)
def test_any_dense_layout_comes_back(shape: list[int], seed: int, kind: torch.dtype) -> None:
    order = torch.randperm(len(shape), generator=torch.Generator().manual_seed(seed)).tolist()
    tensor = torch.empty_permuted(shape, order, dtype=kind)
    tensor.copy_((torch.rand(shape) * 9).to(kind))
    strides = stored_strides(strides_as_metadata(unusual_strides({"t": tensor}))).get("t")
    again = laid_out(tensor.contiguous(), strides)
    assert again.stride() == tensor.stride()
    assert torch.equal(again, tensor)
    state = unpack_state(pack_state({"t": tensor}))
    assert state["t"].stride() == tensor.stride()
    assert state["t"].data_ptr() % ALIGNMENT == 0


@pytest.mark.parametrize("text", ["[", "[]", '{"t": 7}', '{"t": ["x"]}', '{"t": [0, 0]}', '{"t": [9, 9, 9]}'])
def test_layouts_that_make_no_sense_are_ignored(text: str) -> None:
    tensor = torch.arange(6.0).view(2, 3)
    again = laid_out(tensor, stored_strides({"strides": text}).get("t"))
    assert torch.equal(again, tensor)
    assert again.stride() == tensor.stride()
