"""Compare accelerations with the plain way when the network is first called, with what it is called with.

Whoever calls it: the Trainer, an override of ``compute_loss``, a Module's ``training_step``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.engines.torch.acceleration.blocks import breaks, compilations
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.gain import Gain, cost_of, plain_cost_of
from trainwright.engines.torch.acceleration.proof import (
    Comparison,
    Passes,
    drops,
    errors,
    nothing_dropped,
    wider_than,
    worst,
)
from trainwright.engines.torch.acceleration.technique import Situation, Technique
from trainwright.engines.torch.acceleration.undisturbed import WritesWeights
from trainwright.engines.torch.memory import is_out_of_memory, release_memory
from trainwright.training.random_state import random_now, restore_random_state
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: Seconds after which no other comparison is begun, and nothing is measured.
BUDGET = 60.0


@dataclass(frozen=True)
class Verdict:
    """Which techniques passed; why the others did not; how far those that passed are from the plain way."""

    passed: list[Technique]
    reasons: dict[str, str]
    shown: Comparison | None = None
    seconds: float = 0.0
    #: Bytes that tensors took on the GPU at most, weights included; 0 elsewhere, and where there were more before.
    peak: int = 0
    #: What everything was compiled for.
    shapes: Any = None
    #: None where nothing passed, or the comparison has taken its time already.
    gain: Gain | None = None
    #: Whether the same pass gives the same bits twice; None where ``gain`` is.
    repeats: bool | None = None


@contextmanager
def at_first_call(network: nn.Module, act: Callable[[Call], None]) -> Iterator[None]:
    """Within it the network's first call in training begins with ``act``."""

    def first(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            handle.remove()
            act(Call(args, kwargs))
            _let_it_begin(module, kwargs)

    # After hooks of others: what is repeated is what comes of them, and they do not hear of it.
    handle = network.register_forward_pre_hook(first, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _let_it_begin(network: nn.Module, kwargs: dict[str, Any]) -> None:
    """What was put around the network's call finds this one begun already; it is for it, too."""
    begin = getattr(network._compiled_call_impl, "begin", None)
    if begin is None:
        return
    within = begin(kwargs)

    def end(*_: Any) -> None:
        handle.remove()
        within.close()

    handle = network.register_forward_hook(end, always_call=True)


def judge(setup: Setup, situation: Situation, candidates: list[Technique], call: Call, then: Any) -> Verdict:
    """Compute what ``call`` gives in the plain way and with ``candidates``; nothing of it stays but what was compiled.

    A run that goes on has been through this: everything is only compiled, for the shapes of ``then``.
    """
    if not candidates:
        return Verdict([], {})
    start, most_before = time.perf_counter(), _most_bytes(situation.device)
    random = random_now(setup)
    everything = Passes(situation.network, call, setup.engine.precision.autocast)
    # What autocast has cast is kept until it ends, and this may be within it.
    torch.clear_autocast_cache()
    try:
        if then is not None:
            _compile_as_then(situation, candidates, everything, then)
            return Verdict(candidates, {}, shapes=then)
        verdict = _passing(situation, candidates, everything, _Plain.of(everything, setup), start + BUDGET)
        most = _most_bytes(situation.device)
        seconds = time.perf_counter() - start
        gain, repeats = None, None
        if verdict.passed and seconds < BUDGET:
            gain = _gain(situation, verdict.passed, everything)
            repeats = _repeats(situation, verdict.passed, everything, lambda: restore_random_state(setup, random))
    finally:
        torch.clear_autocast_cache()
        restore_random_state(setup, random)
        release_memory(setup.engine.device)
    peak = most if most > most_before else 0
    return replace(verdict, seconds=seconds, peak=peak, shapes=call.shapes(), gain=gain, repeats=repeats)


def _compile_as_then(situation: Situation, candidates: list[Technique], everything: Passes, then: Any) -> None:
    """Kernels may depend on the shapes that they were compiled for first."""
    if not any(technique.is_compiled for technique in candidates):
        return
    with _installed(candidates, situation):
        try:
            replace(everything, call=everything.call.in_shapes(then)).gradients()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # What is in a batch may point into its own shape: positions of a shorter text, edges of another graph.
            logger.warning(
                "The run goes on with kernels compiled for other shapes than at its beginning, because no batch of "
                "those shapes can be made of this one (%s): results may differ in their last bits.",
                _first_line(error),
            )
            everything.gradients()


def _most_bytes(device: torch.device) -> int:
    """On a GPU, since the process began or somebody counted anew."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def forget_compiled(situation: Situation, before: int) -> None:
    """Drop what was compiled since there were ``before`` graphs, where that decides how other lengths are computed."""
    if situation.lengths_vary and compilations() > before:
        torch.compiler.reset()


@contextmanager
def _installed(techniques: list[Technique], situation: Situation) -> Iterator[None]:
    undo = [technique.install(situation) for technique in techniques]
    try:
        yield
    finally:
        for one in reversed(undo):
            one()


@dataclass(frozen=True)
class _Plain:
    """What the plain way gives for some of the samples, and how far that is from exact."""

    passes: Passes
    exact: dict[str, Tensor]
    errors: dict[str, Tensor]
    why_not: str | None = None

    @classmethod
    def of(cls, everything: Passes, setup: Setup) -> _Plain:
        # Two samples, where there are as many: what is compiled for one serves only one.
        for samples in (2, 1):
            piece = replace(everything, call=everything.call.shortest_and_longest_first().piece(samples))
            try:
                with nothing_dropped(everything.network):
                    exact = piece.wide_gradients(wider_than(_format(setup, everything.network)))
                    return cls(piece, exact, errors(piece.gradients(is_watched=True), exact))
            except WritesWeights as error:
                return cls(everything, {}, {}, str(error))
            except Exception as error:
                if not is_out_of_memory(error):
                    return cls(everything, {}, {}, f"the plain way cannot be computed again: {_first_line(error)}")
            release_memory(setup.engine.device)
        return cls(everything, {}, {}, "comparing it with the plain way does not fit into memory")

    def compared(self, passes: Passes) -> Comparison:
        """With what ``passes`` gives for the same samples."""
        with nothing_dropped(passes.network):
            return worst(errors(passes.gradients(), self.exact), self.errors)


def _format(setup: Setup, network: nn.Module) -> torch.dtype:
    floats = (parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())
    return setup.engine.precision.dtype or next(floats, torch.float32)


def _gain(situation: Situation, techniques: list[Technique], everything: Passes) -> Gain | None:
    try:
        with _installed(techniques, situation):
            accelerated = cost_of(everything)
        return Gain(accelerated, plain_cost_of(everything))
    except Exception as error:
        # A batch larger than what was compared: training will say what is wrong with it, or cut it.
        logger.debug("What accelerations bring was not measured: %s", _first_line(error))
        return None


def _repeats(
    situation: Situation, techniques: list[Technique], everything: Passes, rewind: Callable[[], None]
) -> bool | None:
    """Whether kernels give the same bits for the same numbers: some add up in whatever order their parts are ready."""
    try:
        with _installed(techniques, situation):
            rewind()
            first = everything.gradients()
            rewind()
            second = everything.gradients()
    except Exception as error:
        logger.debug("Whether a pass gives the same bits twice was not tried: %s", _first_line(error))
        return None
    # Bytes, since what is not a number equals nothing. One wait for all of them.
    return bool(torch.stack([_same_bytes(first[name], second[name]) for name in first]).all())


def _same_bytes(one: Tensor, other: Tensor) -> Tensor:
    return (one.reshape(-1).view(torch.uint8) == other.reshape(-1).view(torch.uint8)).all()


def _passing(
    situation: Situation, candidates: list[Technique], everything: Passes, plain: _Plain, until: float
) -> Verdict:
    """All of them, if they pass together; else each that passes alone, as long as they do together.

    None is begun after ``until``: what was not compared by then is left out.
    """
    if plain.why_not is not None:
        return Verdict([], {technique.name: plain.why_not for technique in candidates})
    reason, comparison = _try(situation, candidates, everything, plain)
    if reason is None:
        return Verdict(candidates, {}, comparison)
    shown: Comparison | None = None
    chosen: list[Technique] = []
    reasons: dict[str, str] = {}
    for technique in candidates:
        if time.perf_counter() > until:
            reasons[technique.name] = f"comparing took more than {BUDGET:.0f} s before its turn came"
            continue
        if len(candidates) > 1:
            reason, comparison = _try(situation, [*chosen, technique], everything, plain)
        if reason is None:
            chosen, shown = [*chosen, technique], comparison
        else:
            reasons[technique.name] = reason
    return Verdict(chosen, reasons, shown)


def _try(
    situation: Situation, techniques: list[Technique], everything: Passes, plain: _Plain
) -> tuple[str | None, Comparison | None]:
    breaks_before = breaks()
    try:
        with _installed(techniques, situation):
            comparison = _compared(everything, plain)
    except Exception as error:
        return f"it failed on the first batch: {_first_line(error)}", None
    if breaks() > breaks_before:
        return (
            "it cannot be compiled in one piece: its forward looks at its own numbers, say (TORCH_LOGS=graph_breaks)",
            None,
        )
    if comparison.passed:
        return None, comparison
    return (
        f"its gradient of {comparison.parameter} is off by {comparison.fast:.2g}, the plain one's by "
        f"{comparison.plain:.2g}"
    ), comparison


def _compared(everything: Passes, plain: _Plain) -> Comparison:
    """The fast way for the plain way's samples, compiled for the batch as it is."""
    rows, samples = everything.call.rows, plain.passes.call.rows
    repeated = plain.passes.call.repeated(rows // samples)
    if not drops(everything.network) and repeated.shapes() == everything.call.shapes():
        # In the batch's shapes nothing has to be compiled for the comparison alone.
        comparison = plain.compared(replace(everything, call=repeated))
        # Samples that look at each other give something else when they stand there twice.
        if comparison.passed or rows == samples:
            return comparison
    else:
        everything.gradients()
    return plain.compared(plain.passes)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
