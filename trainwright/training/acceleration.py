"""Which accelerations a run uses: chosen by rules, proven on its first batch, kept in its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from trainwright.core.callback import TrainerCallback, listens_to
from trainwright.data.collators import only_stacks
from trainwright.engines.torch.acceleration.blocks import CompiledBlocks, compilations
from trainwright.engines.torch.acceleration.call import Call
from trainwright.engines.torch.acceleration.clip import ClipInUpdate
from trainwright.engines.torch.acceleration.head import NoLogits
from trainwright.engines.torch.acceleration.padding import NoPadding
from trainwright.engines.torch.acceleration.technique import Situation, Technique, Undo
from trainwright.engines.torch.module import main_model
from trainwright.engines.torch.targets import unwrap
from trainwright.training.first_call import Verdict, at_first_call, forget_compiled, judge
from trainwright.training.hooks import is_ours, is_overridden
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

TECHNIQUES: tuple[Technique, ...] = (CompiledBlocks(), NoLogits(), ClipInUpdate(), NoPadding())

_BITS_ON_CPU = "on a CPU results would differ in their last bits"

#: Methods whose overrides may look at logits, and events at which callbacks may look at gradients.
_LOOKING_METHODS = ("compute_loss", "training_step", "_clip_grad_norm", "_get_grad_norm")
_LOOKING_EVENTS = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")


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

    def take_out(self, name: str) -> None:
        self.installed.pop(name)()

    def adopt(self, verdict: Verdict) -> None:
        """Use what passed."""
        self.shapes = verdict.shapes
        for technique in verdict.passed:
            if technique.name not in verdict.reasons:
                self.install(technique)
        self.left_out.update(verdict.reasons)

    def used(self) -> list[Technique]:
        return [technique for technique in TECHNIQUES if technique.name in self.installed]

    def close(self) -> None:
        for name in reversed(list(self.installed)):
            self.take_out(name)

    def as_json(self) -> dict[str, Any]:
        """For checkpoints: a resume uses the same, if it runs on the same."""
        return {
            "asked": self.asked,
            "memory_budget": self.situation.memory_budget,
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
    is_same_wish = stored is not None and (stored["asked"], stored.get("memory_budget")) == (
        setup.args.acceleration,
        setup.args.memory_budget,
    )
    then = stored if is_same_machine and is_same_wish else None
    for technique in TECHNIQUES:
        why = _why_not(technique, situation, setup.args.acceleration, then)
        if why is None:
            found.install(technique)
        else:
            found.left_out[technique.name] = why
    _keep_to_the_budget(found)
    if not is_same_machine and (found.installed or (stored and stored["used"])):
        logger.warning(
            "The run goes on on another device or version of torch: with acceleration its results are not the same to "
            "the last bit."
        )
    if any(technique.is_proven for technique in found.used()):
        setup.engine.first_within(partial(_proving, run, then))
        guard = ProveAgain(situation.network, lambda: setup.engine.first_within(partial(_proving, run, None)))
        run.guards.append(guard)
        setup.callbacks.add_callback(guard)
    elif found.installed or situation.is_asked_for:
        _tell(run)


def _keep_to_the_budget(found: Acceleration) -> None:
    """Refuse to train with more memory than was allowed."""
    budget, name = found.situation.memory_budget, CompiledBlocks.name
    if budget is not None and name not in found.installed:
        raise ValueError(
            f"memory_budget={budget} needs compiled blocks, and there are none: {found.left_out.get(name)}. Leave it "
            "out; gradient_checkpointing=True saves memory in any network."
        )


def _situation(run: TrainingRun) -> Situation:
    setup, args = run.setup, run.setup.args
    wanted = args.acceleration
    settings = frozenset(name for name in ("torch_compile", "use_liger_kernel") if getattr(args, name))
    return Situation(
        # A Module's own forward need not be called in its steps.
        network=main_model(unwrap(setup.model)),
        engine=setup.engine,
        device=args.device,
        steps=run.plan.max_steps,
        loss_is_the_networks=not setup.calling.loss_outside_model and setup.module is None,
        lengths_vary=not only_stacks(setup.data_collator) or args.max_tokens_per_batch is not None,
        layout="tensor_parallel" if args.tensor_parallel_size > 1 else setup.engine.weights.layout.name,
        settings=settings,
        onlookers=_onlookers(setup),
        changes_network=bool(setup.modifiers),
        is_asked_for=wanted == "max" or isinstance(wanted, list),
        memory_budget=args.memory_budget,
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
        pays = technique.pays_on_cpu and situation.lengths_vary
        if not pays and not (technique.name == CompiledBlocks.name and situation.memory_budget is not None):
            return _BITS_ON_CPU
    placed: Any = getattr(situation.network, "hf_device_map", {})
    if len(set(placed.values())) > 1:
        return "device_map puts the network on several devices"
    if situation.changes_network:
        return "a recipe changes the network or its gradients while it is trained"
    if technique.is_visible and situation.onlookers and not isinstance(wanted, list):
        return f"{situation.onlookers[0]} could see it"
    return technique.why_not(situation)


def _unfit(candidates: list[Technique], situation: Situation, call: Call) -> dict[str, str]:
    """Which do not go with the first call, and why."""
    found = {technique.name: why for technique in candidates if (why := technique.why_not_for(call)) is not None}
    return {**found, **_not_without_padding(candidates, situation, found)}


def _not_without_padding(candidates: list[Technique], situation: Situation, reasons: dict[str, str]) -> dict[str, str]:
    """On a CPU other bits are worth it only where there is much less to compute."""
    if situation.device.type != "cpu" or situation.is_asked_for:
        return {}
    left = [technique.name for technique in candidates if technique.name not in reasons and technique.pays_on_cpu]
    return {} if NoPadding.name in left else dict.fromkeys(left, _BITS_ON_CPU)


@contextmanager
def _proving(run: TrainingRun, then: dict[str, Any] | None) -> Iterator[None]:
    """Within it, from the network's first call on, what passed the comparison with the plain way is used."""
    found = run.acceleration
    assert found is not None
    setup, situation = run.setup, found.situation
    candidates = [technique for technique in found.used() if technique.is_proven]
    for technique in reversed(candidates):
        found.take_out(technique.name)
    verdicts: list[Verdict] = []
    is_first = then is None and found.shapes is None

    def prove(call: Call) -> None:
        forget_compiled(situation, found.compiled_before)
        # With several processes only what goes with the batch of each.
        unfit = _unfit(candidates, situation, call) if is_first else {}
        for other in setup.backend.gather(unfit):
            found.left_out.update(other)
        fit = [technique for technique in candidates if technique.name not in found.left_out]
        # No training yet: whoever reads how fast it goes does not want to find compilers in it.
        with run.spent.on("begin"):
            verdict = judge(setup, situation, fit, call, None if then is None else then["shapes"])
        # With several processes only what passed in each.
        for other in setup.backend.gather(verdict.reasons):
            verdict.reasons.update(other)
        verdict.reasons.update(_not_without_padding(fit, situation, verdict.reasons))
        found.adopt(verdict)
        _keep_to_the_budget(found)
        verdicts.append(verdict)

    with at_first_call(situation.network, prove):
        yield
    if not verdicts:
        found.left_out.update(dict.fromkeys((one.name for one in candidates), "the network as a whole is never called"))
        _keep_to_the_budget(found)
    if found.installed or situation.is_asked_for or not verdicts or verdicts[0].reasons:
        _tell(run, verdicts[0] if verdicts else None)


def _tell(run: TrainingRun, verdict: Verdict | None = None) -> None:
    found, setup = run.acceleration, run.setup
    assert found is not None
    wanted = setup.args.acceleration
    failed = {} if verdict is None else verdict.reasons
    if isinstance(wanted, list):
        failed = {name: why for name, why in found.left_out.items() if name in wanted}
    says = ", ".join(f"{technique.says} ({technique.name})" for technique in found.used())
    text = f"Faster than plain: {says}." if says else "Nothing is accelerated."
    if verdict is not None and verdict.shown is not None:
        shown = verdict.shown
        memory = f" and {verdict.peak / 1e9:.1f} GB" if verdict.peak else ""
        text += (
            f" Compared with the plain way on the first batch in {verdict.seconds:.1f} s{memory}: where it differs "
            f"most, at {shown.parameter}, its error is {shown.ratio:.2f} times the plain one's (2 are allowed)."
        )
    gain = None if verdict is None else verdict.gain
    if gain is not None:
        text += f" {gain}"
    repeats = None if verdict is None else verdict.repeats
    if repeats is False:
        text += (
            " The same pass gave other last bits the second time, because a kernel adds up in no fixed order (torch's "
            "attention does): a resume is equal up to that, and to the bit, but slower, with full_determinism=True."
        )
    if failed:
        text += f" Left out: {'; '.join(f'{name}, because {why}' for name, why in failed.items())}."
    run.events.record(
        "acceleration",
        text,
        step=setup.state.global_step,
        level=logging.WARNING if failed else logging.INFO,
        left_out=found.left_out,
        gain=None if gain is None else gain.as_json(),
        repeats=repeats,
        **found.as_json(),
    )


class ProveAgain(TrainerCallback):
    """Has accelerations compared once more with the plain way when other parameters are trained, or layers replaced."""

    def __init__(self, network: nn.Module, prove: Callable[[], None]) -> None:
        self._network, self._prove = network, prove
        #: None until the first step, whose batch is compared anyway.
        self._before: list[object] | None = None

    def on_step_begin(self, args: object, state: object, control: object, **kwargs: object) -> None:
        now = layers_and_trained(self._network)
        before, self._before = self._before, now
        if before is None:
            return
        if len(now) != len(before) or any(one is not other for one, other in zip(now, before, strict=True)):
            self._prove()


def layers_and_trained(network: nn.Module) -> list[object]:
    """Its modules and the parameters that are trained. In every step: a few tenths of a microsecond for each."""
    found: list[object] = []
    left = [network]
    while left:
        module = left.pop()
        found.append(module)
        found += [one for one in module._parameters.values() if one is not None and one.requires_grad]
        left += [child for child in module._modules.values() if child is not None]
    return found
