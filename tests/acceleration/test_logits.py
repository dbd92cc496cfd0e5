"""Logits that are not made until somebody looks: whoever looks sees what a linear layer puts out."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright.engines.torch.acceleration import chunked_loss
from trainwright.engines.torch.acceleration.chunked_loss import linear_cross_entropy
from trainwright.engines.torch.acceleration.logits import Logits, OutputLayer

WORDS = 11
TARGETS = torch.tensor([[3, -100, 0, 10, 7], [1, 1, 2, -100, 9]])


class Squared(torch.autograd.Function):
    """Somebody's own function, which torch calls without asking the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def in_place(x: Tensor) -> Tensor:
    x += 1
    x[..., 3] = -5.0
    return F.cross_entropy(x.view(-1, WORDS), TARGETS.view(-1)) + x.sum()


#: What is done with logits, and whether they are made for it.
USES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "transformers' loss": (
        lambda x: F.cross_entropy(x.float().view(-1, x.size(-1)), TARGETS.view(-1), reduction="sum") / 7,
        False,
    ),
    "shifted": (
        lambda x: nn.CrossEntropyLoss()(x[..., :-1, :].contiguous().view(-1, WORDS), TARGETS[:, 1:].reshape(-1)),
        False,
    ),
    "last position": (lambda x: F.cross_entropy(x[:, -1], TARGETS[:, -1]), False),
    "flattened": (lambda x: F.cross_entropy(x.to(torch.float64).flatten(0, 1), TARGETS.flatten()), False),
    "soft-capped": (lambda x: F.cross_entropy((torch.tanh(x / 3) * 3).flatten(0, 1), TARGETS.flatten()), True),
    "smoothed": (lambda x: F.cross_entropy(x.view(-1, WORDS), TARGETS.view(-1), label_smoothing=0.1), True),
    "weighted": (
        lambda x: F.cross_entropy(x.view(-1, WORDS), TARGETS.view(-1), weight=torch.arange(11.0, dtype=x.dtype)),
        True,
    ),
    "per token": (lambda x: F.cross_entropy(x.view(-1, WORDS), TARGETS.view(-1), reduction="none").pow(2).sum(), True),
    "words in the middle": (lambda x: F.cross_entropy(x.transpose(1, 2), TARGETS), True),
    "own function": (Squared.apply, True),
    "loss and metric": (
        lambda x: (
            F.cross_entropy(x.view(-1, WORDS), TARGETS.view(-1)) + (x.softmax(-1) * x).mean() + x.argmax(-1).sum()
        ),
        True,
    ),
    "some words": (lambda x: x[..., 2:4].sum() + x[0, 1, 2] + x[x > 0].sum(), True),
    "in place": (in_place, True),
}


def layer_and_states() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 8), (WORDS, 8), (WORDS,))
    found = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
    return found[0], found[1], found[2]


@pytest.mark.parametrize("use", USES)
def test_whatever_is_done_with_them_value_and_gradients_are_those_of_a_linear_layer(use: str) -> None:
    act, looks = USES[use]
    inputs = states, weight, bias = layer_and_states()
    plain = act(F.linear(states, weight, bias))
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64))
    fast = act(logits)
    # transformers takes its loss in single precision.
    bounds: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6} if "transformers" in use else {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(fast, plain, **bounds)
    if not looks:
        assert not logits.is_made
    for one, other in zip(torch.autograd.grad(plain, inputs), torch.autograd.grad(fast, inputs), strict=True):
        torch.testing.assert_close(other, one, **bounds)


def saved_and_read(x: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    found: Tensor = torch.load(file, weights_only=True)
    return found


@pytest.mark.parametrize(
    "take_out",
    [
        lambda x: torch.tensor(x.numpy()),
        lambda x: torch.tensor(np.asarray(x)),
        lambda x: torch.tensor(x.tolist(), dtype=torch.float64),
        copy.deepcopy,
        lambda x: copy.deepcopy({"logits": x})["logits"],
        saved_and_read,
    ],
)
def test_whoever_logs_or_saves_them_gets_plain_numbers(take_out: Callable[[Tensor], Tensor]) -> None:
    states, weight, bias = layer_and_states()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64)).detach()
    found = take_out(logits)
    assert type(found) is Tensor
    assert torch.equal(found, F.linear(states, weight, bias).detach())


@pytest.mark.parametrize("take_out", [lambda x: x.numpy(), copy.deepcopy])
def test_what_torch_refuses_of_a_tensor_in_a_graph_is_refused_in_its_words(take_out: Callable[[Tensor], Any]) -> None:
    states, weight, bias = layer_and_states()
    said = []
    for one in (F.linear(states, weight, bias), Logits.of(states, OutputLayer(weight, bias, torch.float64))):
        with pytest.raises(RuntimeError) as error:
            take_out(one)
        said.append(str(error.value))
    assert said[0] == said[1]


def loss_of_flat(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, WORDS), TARGETS.view(-1))


def test_logits_that_are_kept_are_those_of_the_weights_of_then() -> None:
    """A hook that keeps them for the end of the epoch, say."""
    states, weight, bias = layer_and_states()
    expected = F.linear(states, weight, bias).detach()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64))
    kept = logits.detach()
    loss_of_flat(logits).backward()
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(kept + 0, expected)


def test_logits_that_cannot_be_known_any_more_are_refused() -> None:
    states, weight, bias = layer_and_states()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64))
    with torch.no_grad():
        weight.mul_(2)
    for late in (logits.sum, lambda: loss_of_flat(logits)):
        with pytest.raises(RuntimeError, match="its weights have changed since"):
            late()


@pytest.mark.parametrize("watch", [lambda x, seen: x.register_hook(seen.append), lambda x, seen: x.retain_grad()])
def test_who_wants_to_hear_of_their_gradient_hears(watch: Callable[[Tensor, list[Tensor]], object]) -> None:
    states, weight, bias = layer_and_states()
    found = []
    for logits in (F.linear(states, weight, bias), Logits.of(states, OutputLayer(weight, bias, torch.float64))):
        seen: list[Tensor] = []
        watch(logits, seen)
        loss_of_flat(logits).backward()
        found.append(seen[0] if seen else logits.grad)
    assert found[0] is not None
    torch.testing.assert_close(found[1], found[0])


def test_a_row_that_is_written_where_there_are_views_is_refused() -> None:
    states, weight, bias = layer_and_states()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64))
    first = logits[0]
    with pytest.raises(RuntimeError, match="in place of which there are views"):
        logits[:, 3] = -5.0
    assert first.shape == (5, WORDS)


def test_shape_and_format_are_known_without_looking() -> None:
    states, weight, bias = layer_and_states()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64))
    assert logits.shape == (2, 5, WORDS)
    assert logits.dtype == torch.float64
    assert logits.requires_grad
    assert len(logits) == 2
    assert logits.numel() == 110
    assert isinstance(logits, Tensor)
    assert not logits.is_made


def test_a_change_in_place_that_a_view_would_not_see_is_refused() -> None:
    states, weight, bias = layer_and_states()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64))
    flat = logits.view(-1, WORDS)
    with pytest.raises(RuntimeError, match="in place of which there are views"):
        flat.div_(2)


def test_what_is_detached_gives_no_gradient() -> None:
    states, weight, bias = layer_and_states()
    logits = Logits.of(states, OutputLayer(weight, bias, torch.float64)).detach()
    assert not logits.requires_grad
    torch.testing.assert_close(logits + 0, F.linear(states, weight, bias).detach())


@given(
    rows=st.integers(1, 40),
    words=st.integers(2, 30),
    width=st.integers(1, 6),
    ignored=st.sets(st.integers(0, 39)),
    has_bias=st.booleans(),
    trains_layer=st.booleans(),
    at_a_time=st.sampled_from([16, 64, 2**24]),
)
def test_the_loss_in_pieces_is_the_loss_of_all(
    rows: int, words: int, width: int, ignored: set[int], has_bias: bool, trains_layer: bool, at_a_time: int
) -> None:
    generator = torch.Generator().manual_seed(rows * words)
    states = torch.randn(rows, width, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(words, width, dtype=torch.float64, generator=generator).requires_grad_(trains_layer)
    bias = torch.randn(words, dtype=torch.float64, generator=generator).requires_grad_(trains_layer)
    target = torch.randint(0, words, (rows,), generator=generator)
    target[[row for row in ignored if row < rows]] = -100
    given_bias = bias if has_bias else None
    before = chunked_loss.LOGITS_ON_CPU
    chunked_loss.LOGITS_ON_CPU = at_a_time
    try:
        total, count = linear_cross_entropy(states, weight, given_bias, torch.float64, target)
    finally:
        chunked_loss.LOGITS_ON_CPU = before
    expected = F.cross_entropy(F.linear(states, weight, given_bias), target, reduction="sum")
    assert int(count) == int((target != -100).sum())
    torch.testing.assert_close(total, expected)
    asked = [states, *([weight] if trains_layer else []), *([bias] if trains_layer and has_bias else [])]
    for one, other in zip(torch.autograd.grad(expected, asked), torch.autograd.grad(total, asked), strict=True):
        torch.testing.assert_close(other, one)
