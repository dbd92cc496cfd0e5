"""Whole models: the loss, every gradient and every changed buffer are torch's, with dropout too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

pytest.importorskip("mindspore")
pytestmark = [pytest.mark.mindspore, pytest.mark.filterwarnings("ignore")]  # torch.export's own

from tests.engines.mindspore.models import MODELS  # noqa: E402
from trainwright.engines.graph.capture import Captured, capture  # noqa: E402
from trainwright.engines.mindspore.framework import MindSporeFramework  # noqa: E402


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch)["loss"]


def arguments(captured: Captured, model: nn.Module, batch: Any) -> list[Tensor]:
    known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    leaves = pytree.tree_leaves(batch)
    return [
        *(known[name] for name in captured.trained + captured.fixed),
        *captured.constants,
        *(leaves[place] for place in captured.inputs),
        *(draw() for draw in captured.random),
    ]


@pytest.mark.parametrize(
    ("name", "training"),
    # Evaluation differs by BatchNorm and by what dropout is not there.
    [*((name, True) for name in MODELS), ("bert", False), ("cnn", False)],
)
def test_a_model_has_torchs_loss_and_gradients(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model.train(training)
    framework = MindSporeFramework()
    captured = capture(model, loss_of, batch)
    assert captured.missing(framework.operations) == {}
    torch.manual_seed(1)
    given = [framework.array(tensor) for tensor in arguments(captured, model, batch)]

    def run(*arrays: Any) -> tuple[Any, ...]:
        outputs, changed = captured.run(framework.operations, arrays)
        return (*outputs, *changed)

    results = framework.compile(framework.with_gradients(run, len(captured.trained)))(*given)
    loss, *rest = (framework.tensor(result) for result in results)
    changed, gradients = rest[: len(captured.changed)], rest[len(captured.changed) :]

    torch.manual_seed(1)
    expected = loss_of(model, batch)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    known = dict(model.named_parameters())
    largest = max(float(known[trained].grad.abs().max()) for trained in captured.trained)  # pyrefly: ignore
    for trained, gradient in zip(captured.trained, gradients, strict=True):
        theirs = known[trained].grad
        assert theirs is not None
        # A bias before a BatchNorm has the gradient zero, and what is left of it is rounding.
        scale = max(float(theirs.abs().max()), 1e-2 * largest)
        assert float((gradient - theirs).abs().max()) <= 1e-4 * scale, trained
    for buffer, value in zip(captured.changed, changed, strict=True):
        torch.testing.assert_close(value, model.get_buffer(buffer), rtol=1e-5, atol=1e-6)
