"""Which accelerations a run uses: chosen by rules, proven on its first batch, kept in its checkpoints."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.callback import listens_to
from trainwright.data.collators import only_stacks
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks, compilations
from trainwright.engines.torch.acceleration.clip import ClipInUpdate
from trainwright.engines.torch.acceleration.head import NoLogits
from trainwright.engines.torch.acceleration.proof import (
    Comparison,
    Passes,
    errors,
    nothing_dropped,
    wider_than,
    worst,
)
from trainwright.engines.torch.acceleration.shapes import resized, shapes_of
from trainwright.engines.torch.acceleration.technique import Situation, Technique, Undo
from trainwright.engines.torch.memory import is_out_of_memory, release_memory
from trainwright.engines.torch.split_batch import cut_batch
from trainwright.engines.torch.targets import unwrap
from trainwright.training.hooks import is_ours, is_overridden
from trainwright.training.random_state import random_now, restore_random_state
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup
from trainwright.training.step import prepare_inputs

logger = logging.getLogger("trainwright")

TECHNIQUES: tuple[Technique, ...] = (CompiledBlocks(), NoLogits(), ClipInUpdate())

#: Methods whose overrides may look at logits, and events at which callbacks may look at gradients.
_LOOKING_METHODS = ("compute_loss", "training_step", "_clip_grad_norm", "_get_grad_norm")
_LOOKING_EVENTS = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")

#: The batch of a Trainer with a loss of its own may be none that the network takes.
_NOT_COMPUTED = "the network could not be called with a batch as it is"


@dataclass
class Acceleration:
    """What a run uses, and why not the rest."""

    situation: Situation
    #: What the arguments say.
    asked: str | list[str] | None
    installed: dict[str, Undo] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    #: What everything was compiled for first: kernels may depend on it.
    shapes: Any = None
    #: Graphs that this process had compiled before.
    compiled_before: int = field(default_factory=compilations)

    def install(self, technique: Technique) -> None:
        self.installed[technique.name] = technique.install(self.situation)

    def take_out(self, name: str, why: str | None = None) -> None:
        self.installed.pop(name)()
        if why is not None:
            self.left_out[name] = why

    def used(self) -> list[Technique]:
        return [technique for technique in TECHNIQUES if technique.name in self.installed]

    def close(self) -> None:
        for name in list(self.installed):
            self.take_out(name)

    def as_json(self) -> dict[str, Any]:
        """For checkpoints: a resume uses the same, if it runs on the same."""
        return {
            "asked": self.asked,
            "used": [technique.name for technique in self.used()],
            "on": machine(self.situation.device),
            "shapes": self.shapes,
        }


def machine(device: torch.device) -> dict[str, str]:
    """What kernels depend on besides the network: bits are the same where this is."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "torch": torch.__version__}


def accelerate(run: TrainingRun) -> None:
    """Choose by rules, put in what was chosen, and have it proven with the first batch."""
    setup = run.setup
    situation = _situation(run)
    run.acceleration = found = Acceleration(situation, setup.args.acceleration)
    if setup.args.acceleration == "off" or setup.args.engine != "torch":
        return
    stored = run.acceleration_then
    is_same_machine = stored is None or stored["on"] == machine(situation.device)
    # A setting that was changed acts, as any other.
    then = stored if is_same_machine and stored and stored["asked"] == setup.args.acceleration else None
    for technique in TECHNIQUES:
        why = _why_not(technique, situation, setup.args.acceleration, then)
        if why is None:
            found.install(technique)
        else:
            found.left_out[technique.name] = why
    if not is_same_machine and (found.installed or (stored and stored["used"])):
        logger.warning(
            "The run goes on on another device or version of torch: with acceleration its results are not the same to "
            "the last bit."
        )
    if any(technique.is_proven for technique in found.used()):
        setup.engine.first_do(partial(_begin, run, then))
    elif found.installed or situation.is_asked_for:
        _tell(run, None, 0.0, {})


def _situation(run: TrainingRun) -> Situation:
    setup, args = run.setup, run.setup.args
    wanted = args.acceleration
    settings = frozenset(name for name in ("torch_compile", "use_liger_kernel") if getattr(args, name))
    return Situation(
        network=unwrap(setup.model),
        engine=setup.engine,
        device=args.device,
        steps=run.plan.max_steps,
        loss_is_the_networks=not setup.calling.loss_outside_model and setup.module is None,
        lengths_vary=not only_stacks(setup.data_collator) or args.max_tokens_per_batch is not None,
        layout="tensor_parallel" if args.tensor_parallel_size > 1 else setup.engine.weights.layout.name,
        settings=settings,
        onlookers=_onlookers(setup),
        changes_network=bool(setup.modifiers),
        is_called_by_a_module=setup.module is not None,
        is_asked_for=wanted == "max" or isinstance(wanted, list),
    )


def _onlookers(setup: Setup) -> tuple[str, ...]:
    hooks = setup.hooks()
    methods = [f"{type(hooks).__name__}.{name}" for name in _LOOKING_METHODS if is_overridden(hooks, name)]
    listeners = [
        f"{type(callback).__name__}.{event}"
        for callback in setup.callbacks.callbacks
        for event in _LOOKING_EVENTS
        if not is_ours(callback) and listens_to(callback, event)
    ]
    if setup.compute_loss_func is not None:
        methods.append("compute_loss_func")
    return (*methods, *listeners)


def _why_not(
    technique: Technique, situation: Situation, wanted: str | list[str] | None, then: dict[str, Any] | None
) -> str | None:
    if isinstance(wanted, list) and technique.name not in wanted:
        return "acceleration does not name it"
    if then is not None and technique.name not in then["used"]:
        return "the run has begun without it"
    if technique.changes_bits and situation.device.type == "cpu" and not situation.is_asked_for:
        return "on a CPU results would differ in their last bits"
    if technique.is_proven and situation.is_called_by_a_module:
        return "a Module's training_step decides how the network is called"
    placed: Any = getattr(situation.network, "hf_device_map", {})
    if len(set(placed.values())) > 1:
        return "device_map puts the network on several devices"
    if situation.changes_network:
        return "a recipe changes the network or its gradients while it is trained"
    if technique.is_visible and situation.onlookers and not isinstance(wanted, list):
        return f"{situation.onlookers[0]} could see it"
    return technique.why_not(situation)


def _begin(run: TrainingRun, then: dict[str, Any] | None, batch: object) -> None:
    """Before the first batch is trained on: compile, and compare the fast way with the plain one."""
    found = run.acceleration
    assert found is not None
    start = time.perf_counter()
    setup, network = run.setup, found.situation.network
    inputs = prepare_inputs(setup, batch)
    shown: Comparison | None = None
    failed: dict[str, str] = {}
    random = random_now(setup)
    if found.situation.lengths_vary and compilations() > found.compiled_before:
        # For the largest batch, when it was found out what fits: a resume does not look for that again.
        torch.compiler.reset()
    if then is not None and then["shapes"] is not None:
        # Kernels may depend on what they were compiled for: the same as at the beginning of the run.
        found.shapes = then["shapes"]
        Passes(network, resized(inputs, found.shapes), setup.engine.precision.autocast).gradients()
    else:
        found.shapes = shapes_of(inputs)
        shown, failed = _prove(run, Passes(network, inputs, setup.engine.precision.autocast))
    restore_random_state(setup, random)
    release_memory(setup.engine.device)
    _tell(run, shown, time.perf_counter() - start, failed)


def _prove(run: TrainingRun, everything: Passes) -> tuple[Comparison | None, dict[str, str]]:
    """Keep what passes, and say why the rest does not. With several processes only what passes in each."""
    found, setup = run.acceleration, run.setup
    assert found is not None
    candidates = [technique for technique in found.used() if technique.is_proven]
    for technique in candidates:
        found.take_out(technique.name)
    plain = _Plain.of(everything, setup)
    chosen, shown, reasons = _passing(found, candidates, everything, plain)
    for other in setup.backend.gather(reasons):
        reasons.update(other)
    for technique in chosen:
        if technique.name not in reasons:
            found.install(technique)
    found.left_out.update(reasons)
    return shown, reasons


@dataclass(frozen=True)
class _Plain:
    """What the plain way gives on a piece of the first batch, and how far that is from exact."""

    passes: Passes
    exact: dict[str, Tensor] | None
    errors: dict[str, float] | None
    why_not: str | None = None

    @classmethod
    def of(cls, everything: Passes, setup: Setup) -> _Plain:
        rows = setup.engine.rows(everything.inputs)
        # Two samples: what is compiled for one serves only one.
        for parts in dict.fromkeys((max(1, rows // 2), max(1, rows))):
            try:
                piece = Passes(everything.network, cut_batch(everything.inputs, parts)[0], everything.autocast)
                with nothing_dropped(everything.network):
                    exact = piece.wide_gradients(wider_than(_format(setup, everything.network)))
                    return cls(piece, exact, errors(piece.gradients(), exact))
            except Exception as error:
                if not is_out_of_memory(error):
                    return cls(everything, None, None, f"{_NOT_COMPUTED}: {_first_line(error)}")
            release_memory(setup.engine.device)
        return cls(everything, None, None, "comparing it with the plain way does not fit into memory")


def _format(setup: Setup, network: nn.Module) -> torch.dtype:
    floats = (parameter.dtype for parameter in network.parameters() if parameter.is_floating_point())
    return setup.engine.precision.dtype or next(floats, torch.float32)


def _passing(
    found: Acceleration, candidates: list[Technique], everything: Passes, plain: _Plain
) -> tuple[list[Technique], Comparison | None, dict[str, str]]:
    """All of them, if they pass together; else each that passes alone, as long as they do together."""
    reason, comparison = _try(found, candidates, everything, plain)
    if reason is None:
        return candidates, comparison, {}
    shown: Comparison | None = None
    chosen: list[Technique] = []
    reasons: dict[str, str] = {}
    for technique in candidates:
        if len(candidates) > 1:
            reason, comparison = _try(found, [*chosen, technique], everything, plain)
        if reason is None:
            chosen, shown = [*chosen, technique], comparison
        else:
            reasons[technique.name] = reason
    return chosen, shown, reasons


def _try(
    found: Acceleration, techniques: list[Technique], everything: Passes, plain: _Plain
) -> tuple[str | None, Comparison | None]:
    if plain.why_not is not None:
        return plain.why_not, None
    assert plain.exact is not None
    assert plain.errors is not None
    undo = [technique.install(found.situation) for technique in techniques]
    try:
        # As it will be called first, so that it is compiled for that.
        everything.gradients()
        with nothing_dropped(everything.network):
            comparison = worst(errors(plain.passes.gradients(), plain.exact), plain.errors)
    except Exception as error:
        return f"it failed on the first batch: {_first_line(error)}", None
    finally:
        for one in reversed(undo):
            one()
    if comparison.passed:
        return None, comparison
    return (
        f"its gradient of {comparison.parameter} is off by {comparison.fast:.2g}, the plain one's by "
        f"{comparison.plain:.2g}"
    ), comparison


def _tell(run: TrainingRun, shown: Comparison | None, seconds: float, failed: dict[str, str]) -> None:
    found, setup = run.acceleration, run.setup
    assert found is not None
    wanted = setup.args.acceleration
    if isinstance(wanted, list):
        failed = {name: why for name, why in found.left_out.items() if name in wanted}
    says = ", ".join(f"{technique.says} ({technique.name})" for technique in found.used())
    text = f"Faster than plain: {says}." if says else "Nothing is accelerated."
    if shown is not None:
        text += (
            f" Compared with the plain way on the first batch in {seconds:.1f} s: where it differs most, at "
            f"{shown.parameter}, its error is {shown.ratio:.2f} times the plain one's (2 are allowed)."
        )
    if failed:
        text += f" Left out: {'; '.join(f'{name}, because {why}' for name, why in failed.items())}."
    run.events.record(
        "acceleration",
        text,
        step=setup.state.global_step,
        level=logging.INFO if all(why.startswith(_NOT_COMPUTED) for why in failed.values()) else logging.WARNING,
        left_out=found.left_out,
        **found.as_json(),
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
