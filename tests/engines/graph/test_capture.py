"""A captured graph computes what the torch model computes, gradients and random numbers included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.engines.graph.torch_framework import AsTheyAre
from trainwright.engines.graph.buckets import bucket_length, padded
from trainwright.engines.graph.capture import capture


def gradients(model: nn.Module, batch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By the captured graph and by torch."""
    captured = capture(model, lambda module, inputs: module(*inputs), batch)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    leaves = pytree.tree_leaves(batch)
    torch.manual_seed(5)
    arguments = [tensors[name] for name in captured.trained + captured.fixed] + captured.constants
    arguments += [leaves[place] for place in captured.inputs] + [draw() for draw in captured.random]
    (loss,), _ = captured.run(AsTheyAre(), arguments)
    weights = [tensors[name] for name in captured.trained]
    found = dict(zip(captured.trained, torch.autograd.grad(loss, weights), strict=True))
    torch.manual_seed(5)
    model(*batch).backward()
    return found, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


class Stops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale, other = 2 * self.w, self.v * self.w
        return (self.w.detach() * x + self.w * scale + self.v * other + (self.w * self.v).detach() * self.v).sum()


@pytest.mark.slow
def test_no_gradient_flows_where_torch_lets_none_through() -> None:
    found, expected = gradients(Stops(), (torch.tensor([1.0]),))
    assert found == expected == {"w": torch.tensor([4.0]), "v": torch.tensor([12.0])}


class Random(nn.Module):
    """Several kinds of random numbers, in tensors of several layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.channels = nn.Linear(6, 6), nn.Dropout(0.3), nn.Dropout2d(0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.layer(x)) + torch.randn_like(x) * self.layer.bias
        pictures = self.channels(hidden.view(x.shape[0], 3, 2, 1).transpose(1, 2))
        return (self.drop(pictures.transpose(1, 2)) ** 2).sum()


@pytest.mark.slow
def test_random_numbers_are_those_torch_would_draw() -> None:
    torch.manual_seed(0)
    found, expected = gradients(Random(), (torch.randn(4, 6),))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.layers = kind(4, 5, num_layers=3, dropout=0.4, **options)

    def forward(self, x: Tensor) -> Tensor:
        values, ends = self.layers(x)
        return (values**2).sum() + sum((end**3).sum() for end in (ends if isinstance(ends, tuple) else (ends,)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}])
def test_dropout_between_recurrent_layers(kind: Callable[..., nn.Module], options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    found, expected = gradients(Recurrent(kind, **options), (torch.randn(3, 7, 4),))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5)


class Strided(nn.Module):
    """Reads by places in memory: overlapping windows, a diagonal, the memory of a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        windows = hidden.as_strided((4, 5, 2), (6, 1, 1))
        diagonal = hidden.as_strided((3,), (7,), 2)
        turned = (hidden.t() * torch.arange(24.0).view(6, 4)).as_strided((2, 12), (12, 1))
        pooled = nn.functional.adaptive_avg_pool1d(hidden[None], 1)
        return (windows.sum(1) ** 2).sum() + (diagonal**3).sum() + (turned[0] * turned[1]).sum() + (pooled**2).sum()


@pytest.mark.slow
def test_reads_by_stride() -> None:
    torch.manual_seed(0)
    found, expected = gradients(Strided(), (torch.randn(4, 6),))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.embed(tokens)), labels)


@pytest.mark.slow
def test_a_tensor_given_twice_and_a_weight_used_twice() -> None:
    torch.manual_seed(0)
    model, tokens = Pair(), torch.tensor([1, 2, 3])
    found, expected = gradients(model, (tokens, tokens))
    assert found.keys() == {"embed.weight"}
    torch.testing.assert_close(found["embed.weight"], expected["embed.weight"])
    captured = capture(model, lambda module, inputs: module(*inputs), (tokens, tokens))
    assert captured.inputs == [0, 1]


@given(length=st.integers(1, 700), most=st.one_of(st.none(), st.integers(1, 512)))
def test_buckets_are_few_and_long_enough(length: int, most: int | None) -> None:
    bucket = bucket_length(length, most)
    assert length <= bucket <= max(length + 63, length)
    assert most is None or bucket <= max(most, length)
    assert len({bucket_length(n, None) for n in range(1, 513)}) == 14


@settings(max_examples=30)
@given(rows=st.integers(1, 4), length=st.integers(1, 40), labelled=st.booleans(), strange=st.booleans())
def test_only_what_is_understood_is_padded(rows: int, length: int, labelled: bool, strange: bool) -> None:
    ids = torch.randint(1, 9, (rows, length))
    batch: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "weight": torch.ones(rows)}
    if labelled:
        batch["labels"] = ids.clone()
    if strange:
        batch["heat"] = torch.ones(rows, length)
    longer = padded(batch, None)
    if strange or length % 16 == 0:
        assert longer is batch
        return
    assert longer["input_ids"].shape == longer["attention_mask"].shape == (rows, bucket_length(length, None))
    assert torch.equal(longer["input_ids"][:, :length], ids)
    assert int(longer["attention_mask"].sum()) == rows * length
    assert longer["weight"] is batch["weight"]
    assert not labelled or bool((longer["labels"][:, length:] == -100).all())
