"""Rounding: what lands where, and where gradients go."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.recipes.quantization.quantizers import ActivationQuantizer, WeightQuantizer
from trainwright.recipes.quantization.rounding import blocks_of_weight, codes_of, rounded
from trainwright.recipes.quantization.schemes import Rule

RULES = [
    Rule(num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=4 if strategy == "group" else None)
    for bits in (2, 4, 8)
    for symmetric in (True, False)
    for strategy in ("tensor", "channel", "group")
] + [Rule(type="float", symmetric=True, strategy=strategy) for strategy in ("tensor", "channel")]


def name(rule: Rule) -> str:
    return f"{rule.type}{rule.num_bits}-{rule.strategy}-{'symmetric' if rule.symmetric else 'asymmetric'}"


@pytest.mark.parametrize("rule", RULES, ids=name)
@given(seed=st.integers(0, 1000), zeros=st.floats(0, 0.99))
def test_zeros_stay_zeros_and_codes_say_the_same(rule: Rule, seed: int, zeros: float) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 8, generator=random)
    weight *= torch.rand(6, 8, generator=random) >= zeros
    quantizer = WeightQuantizer(rule)
    done = quantizer(weight)
    assert torch.equal(done[weight == 0], torch.zeros_like(done[weight == 0]))
    blocks = blocks_of_weight(rule, weight)
    scale, zero = quantizer.grid(weight)
    codes = codes_of(weight, rule, (scale, zero), blocks)
    across = weight.reshape(scale.numel(), -1)
    again = (codes.float().reshape(across.shape) - zero.reshape(-1, 1)) * scale.reshape(-1, 1)
    torch.testing.assert_close(again.reshape(weight.shape), done, rtol=0, atol=1e-6)
    if rule.type == "int":
        assert int(codes.min()) >= rule.lowest
        assert int(codes.max()) <= rule.highest
        # Nearest: no further than half a step, or a step at the end where symmetric grids are one short.
        assert bool(((done - weight).abs().reshape(across.shape) <= scale.reshape(-1, 1) * 0.5001 + 1e-7).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [RULES[0], RULES[-1]], ids=name)
def test_every_number_format_keeps_its_own(rule: Rule, dtype: torch.dtype) -> None:
    weight = torch.randn(4, 8, dtype=dtype, requires_grad=True)
    done = WeightQuantizer(rule)(weight)
    assert done.dtype == dtype
    done.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == dtype
    assert float(weight.grad.float().abs().max()) == 1.0


@pytest.mark.parametrize("kind", ["int", "float"])
def test_gradients_go_through_where_nothing_was_cut_off(kind: str) -> None:
    rule = Rule(symmetric=True, type=kind)
    values = torch.tensor([0.3, 1.0, 200.0, -200.0, 60000.0], requires_grad=True)
    rounded(values, rule, (torch.tensor(1.0), torch.tensor(0)), (5,)).backward(torch.full((5,), 1e4))
    inside = [1e4, 1e4, 0.0, 0.0, 0.0] if kind == "int" else [1e4, 1e4, 1e4, 1e4, 0.0]
    assert values.grad is not None
    # 8-bit gradients would have become infinite.
    assert values.grad.tolist() == inside


def test_ranges_are_moving_averages_as_torchs_observers_take_them() -> None:
    from torch.ao.quantization import MovingAverageMinMaxObserver

    theirs = MovingAverageMinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_affine)
    ours = ActivationQuantizer(Rule())
    ours.is_observing = True
    for step in range(6):
        values = torch.randn(5, 7, generator=torch.Generator().manual_seed(step)) * (1 + step)
        theirs(values)
        ours(values)
    torch.testing.assert_close(ours.low, theirs.min_val)
    torch.testing.assert_close(ours.high, theirs.max_val)
    scale, zero = ours.grid()
    wanted = theirs.calculate_qparams()
    torch.testing.assert_close(scale.reshape(1), wanted[0])
    assert int(zero) == int(wanted[1])


def test_observers_look_only_while_training_and_before_them_nothing_is_rounded() -> None:
    quantizer = ActivationQuantizer(Rule())
    quantizer.is_observing = True
    values = torch.randn(3, 4)
    assert torch.equal(quantizer.eval()(values), values)
    done = quantizer.train()(values)
    assert not torch.equal(done, values)
    high = quantizer.high.clone()
    quantizer.eval()(values * 10)
    assert torch.equal(quantizer.high, high)
    assert float(quantizer.eval()(values * 10).max()) <= float(high) * 1.01
    assert quantizer.train()(torch.zeros(0, 4)).shape == (0, 4)
    assert list(quantizer.state_dict()) == []


def test_tokens_have_grids_of_their_own() -> None:
    quantizer = ActivationQuantizer(Rule(symmetric=True, strategy="token", dynamic=True))
    values = torch.tensor([[[1.0, 0.5], [1000.0, 500.0]]])
    done = quantizer(values)
    torch.testing.assert_close(done[0, 0] * 1000, done[0, 1])
    pictures = ActivationQuantizer(Rule(symmetric=True, strategy="token", dynamic=True), by_sample=True)
    both = torch.stack([torch.ones(1, 2, 2), 1000 * torch.ones(1, 2, 2)])
    assert float((pictures(both) - both).abs().max()) < 10
