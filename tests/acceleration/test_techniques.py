"""Every acceleration gives a network's own loss and gradients, in every kind of network."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.acceleration.networks import EVERY, LANGUAGE, made
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks, repeated_blocks
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.head import NoLogits
from trainwright.engines.torch.acceleration.logits import output_layer
from trainwright.engines.torch.acceleration.proof import Passes, nothing_dropped
from trainwright.engines.torch.acceleration.technique import Situation, Technique

#: Torch traces what it will not call: not ours to fail on.
pytestmark = pytest.mark.filterwarnings("default")


def situation(network: nn.Module, **options: Any) -> Situation:
    usual: dict[str, Any] = {
        "engine": None,
        "device": torch.device("cpu"),
        "steps": 10_000,
        "loss_is_the_networks": True,
        "lengths_vary": False,
        "layout": "sp",
        "is_asked_for": True,
    }
    return Situation(network=network, **{**usual, **options})


def check_equal(network: Any, batch: dict[str, Any], technique: Technique, **options: Any) -> None:
    """In double precision, where rounding does not hide a mistake; transformers takes losses in single precision."""
    if not any("Experts" in type(module).__name__ for module in network.modules()):
        # torch multiplies experts in single precision at most.
        network.double()
        batch = {name: one.double() if one.is_floating_point() else one for name, one in batch.items()}
    passes = Passes(network, Call((), batch), contextlib.nullcontext)
    with nothing_dropped(network):
        plain = passes.gradients()
        undo = technique.install(situation(network, **options))
        try:
            fast = passes.gradients()
        finally:
            undo()
        again = passes.gradients()
    assert plain.keys() == fast.keys()
    for name, one in plain.items():
        torch.testing.assert_close(fast[name], one, rtol=1e-4, atol=1e-6, msg=lambda text, at=name: f"{at}: {text}")
        assert torch.equal(again[name], one), f"{name} is not what it was after undoing"


@pytest.mark.parametrize("name", LANGUAGE)
def test_no_logits(name: str) -> None:
    network, batch = made(name)
    assert NoLogits().why_not(situation(network)) is None
    check_equal(network, batch, NoLogits())


#: The others take minutes together.
SOON = ("llama", "convolutional", "vit")
LATER = [pytest.param(name, marks=pytest.mark.full) for name in EVERY if name not in SOON]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOON, *LATER])
def test_blocks_as_they_are_traced(name: str) -> None:
    network, batch = made(name)
    assert CompiledBlocks().why_not(situation(network)) is None
    torch.compiler.reset()
    check_equal(network, batch, CompiledBlocks(backend="aot_eager"), lengths_vary=name != "convolutional")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EVERY)
def test_blocks_as_they_are_compiled(name: str) -> None:
    network, batch = made(name)
    torch.compiler.reset()
    check_equal(network, batch, CompiledBlocks())


@pytest.mark.parametrize(
    ("name", "count"),
    [("llama", 3), ("bert", 3), ("t5", 4), ("bart", 4), ("convolutional", 4), ("vit", 3), ("mixtral", 3)],
)
def test_blocks_are_found_by_their_structure(name: str, count: int) -> None:
    network, _ = made(name)
    # The first layers of T5's encoder and decoder are made otherwise than the rest.
    assert len(repeated_blocks(network)) == count


def test_a_copy_of_an_accelerated_network_is_a_plain_one() -> None:
    """An average of weights is copied from the network in the middle of a training: it must not call the original."""
    network, batch = made("llama")
    undo = [technique.install(situation(network)) for technique in (NoLogits(), CompiledBlocks(backend="aot_eager"))]
    try:
        other = copy.deepcopy(network)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert torch.equal(other(**batch).logits, torch.zeros(4, 12, 96))
        assert type(other(**batch).logits) is torch.Tensor
    finally:
        for one in undo:
            one()


def test_evaluation_and_generation_see_plain_logits() -> None:
    network, batch = made("llama")
    undo = NoLogits().install(situation(network))
    try:
        with torch.no_grad():
            assert type(network(**batch).logits) is torch.Tensor
        network.eval()
        assert type(network(**batch).logits) is torch.Tensor
    finally:
        undo()


@pytest.mark.slow
def test_a_hook_that_comes_later_is_heard() -> None:
    network, batch = made("llama")
    torch.compiler.reset()
    undo = [technique.install(situation(network)) for technique in (NoLogits(), CompiledBlocks(backend="aot_eager"))]
    heard: list[str] = []
    try:
        network(**batch)
        network.model.layers[1].mlp.register_forward_hook(lambda *_: heard.append("inside a block"))
        network.model.layers[1].register_forward_hook(lambda *_: heard.append("a block"))
        network.lm_head.register_forward_hook(lambda *_: heard.append("the head"))
        network(**batch)
    finally:
        for one in undo:
            one()
    assert heard == ["inside a block", "a block", "the head"]


def test_what_does_not_go_together_is_named() -> None:
    network, _ = made("llama")

    def why(technique: Technique, **options: Any) -> str:
        found = technique.why_not(situation(network, **options))
        assert found is not None
        return found

    assert "fsdp" in why(CompiledBlocks(), layout="fsdp")
    assert "torch_compile" in why(CompiledBlocks(), settings=frozenset({"torch_compile"}))
    assert "too short" in why(CompiledBlocks(), is_asked_for=False, device=torch.device("cuda"), steps=100)
    assert "little memory" in why(NoLogits(), is_asked_for=False, device=torch.device("cuda"))
    assert "use_liger_kernel" in why(NoLogits(), settings=frozenset({"use_liger_kernel"}))
    assert "deepspeed" in why(NoLogits(), layout="deepspeed")
    assert "not computed by the network" in why(NoLogits(), loss_is_the_networks=False)
    head = output_layer(network)
    assert head is not None
    handle = head.register_forward_hook(lambda *_: None)
    assert "hook" in why(NoLogits())
    handle.remove()
    network.lm_head = nn.utils.parametrizations.weight_norm(network.lm_head)
    assert "no plain linear" in why(NoLogits())
    single, _ = made("llama")
    single.model.layers = single.model.layers[:1]
    assert "no repeated blocks" in (CompiledBlocks().why_not(situation(single)) or "")
