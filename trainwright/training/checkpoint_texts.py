"""A running training as text: what ``config.yaml``, ``trainer_state.json`` and ``training_state.json`` say of it."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, MutableSequence
from typing import Any

import yaml
from torch import Tensor

from trainwright.checkpoint.left_out import LeftOut
from trainwright.checkpoint.pack import unstorable, why_unstorable
from trainwright.checkpoint.states import join_state, split_state
from trainwright.checkpoint.training_state import SCHEDULE_MORE, more_of_schedule, only_json
from trainwright.config.arguments import TrainingArguments
from trainwright.core.log_history import LogUnreadable, LongLog
from trainwright.core.state import callback_states
from trainwright.engines.torch.targets import unwrap
from trainwright.training.hooks import is_users_own
from trainwright.training.optimizers import optimizer_parameter_names
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup

#: Marks values of a callback that plain JSON would change: it has no tuples, and its keys are text.
_ENCODED = "$values"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The parts of a run that are not in its weights: they may be those of the last boundary instead of now."""

    random: tuple[dict[str, Tensor], dict[str, Any]]
    position: dict[str, Any]
    #: Buffers as they were, where a step that is under way has changed them.
    buffers: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    #: Input tokens and floating point operations so far, where a step that is under way has added to them.
    counts: tuple[int, float] | None = None
    #: Weights as training goes on with them, by parameter, where those that are saved are not the same.
    in_training: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    #: A callback had ended the run (early stopping) when something else interrupted it.
    was_ending: bool = False


def arguments_text(args: TrainingArguments) -> Callable[[], str]:
    """The arguments as they are now; writing them as YAML, which takes longer, is left to the call of the answer."""
    # Somebody's own kind of value: as it shows itself.
    frozen = json.dumps(args.to_dict(), default=str)
    return lambda: _as_yaml(frozen)


@functools.lru_cache(maxsize=4)
def _as_yaml(values: str) -> str:
    # Remembered: it is the same text at every save, and takes as long as several small steps.
    return yaml.safe_dump(json.loads(values), sort_keys=False)


def training_text(
    run: TrainingRun, snapshot: Snapshot, optimizer: dict[str, Any], callbacks: dict[str, Any], left_out: LeftOut
) -> Callable[[], str]:
    setup = run.setup
    engine = setup.engine
    scaler = engine.precision.scaler
    scheduler = setup.lr_scheduler
    schedule = None
    if scheduler is not None:
        schedule = left_out.attempt("the learning-rate schedule", lambda: only_json(scheduler.state_dict()), None)
    exact_schedule = {}
    if schedule is not None:
        exact_schedule = left_out.attempt("the learning-rate schedule's form", lambda: more_of_schedule(schedule), {})
    parameters = left_out.attempt("which parameters decay", lambda: _parameter_names(setup), {})
    # Turned into text at once: schedulers go on changing their lists while the checkpoint is written.
    settled = json.dumps(
        {
            "optimizer": optimizer,
            "scheduler": schedule,
            SCHEDULE_MORE: exact_schedule,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": snapshot.random[1],
            "data": snapshot.position,
            "callbacks": callbacks,
            "parameters": parameters,
            "imported_from": run.imported_from,
            "was_ending": snapshot.was_ending,
            "tools": tool_names(setup),
            # A resume tells from it what is to be otherwise from there on.
            "made": None if run.made is None else run.made.as_json(),
            "processes": setup.backend.world_size,
            "micro_batch": run.micro.state_dict() if run.micro.automatic else None,
            "acceleration": None if run.acceleration is None else run.acceleration.as_json(),
            # A resume says that it is not exact, and why.
            "left_out": list(left_out.reasons),
        }
    )
    loss, last_step = engine.meter.state(), engine.last_step()

    def text() -> str:
        rest = {**json.loads(settled), "loss": loss(), "last_step": last_step()}
        return json.dumps(rest, indent=2, sort_keys=True) + "\n"

    return text


def tool_names(setup: Setup) -> dict[str, str]:
    """Name what made the states of optimizer and schedule, by class and, for a schedule of ours, by its name."""
    schedule = _kind(setup.lr_scheduler)
    chosen = setup.args.lr_scheduler_type
    ours = setup.own_scheduler and not is_users_own(setup.hooks(), "create_scheduler")
    return {
        "optimizer": _kind(setup.optimizer),
        "schedule_class": schedule,
        "schedule": str(getattr(chosen, "value", chosen)) if ours else schedule,
    }


def _kind(tool: object) -> str:
    """The name of a class; several that are driven as one name themselves."""
    return str(getattr(tool, "kind", type(tool).__name__))


def _parameter_names(setup: Setup) -> dict[str, Any]:
    """Note the parameters' order, decay and numbers in the optimizer: so that an export needs no model."""
    model = unwrap(setup.model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    decays = set(setup.hooks().get_decay_parameter_names(model))
    return {
        "order": trained,
        "decay": [name for name in trained if name in decays],
        "numbered": optimizer_parameter_names(setup),
        "groups_are_ours": setup.own_optimizer and not is_users_own(setup.hooks(), "create_optimizer"),
    }


def state_text(
    setup: Setup, snapshot: Snapshot | None, left_out: LeftOut, log: MutableSequence[dict[str, Any]]
) -> Callable[[], str]:
    """``trainer_state.json``, with ``log`` as its log; entries are never changed once made."""
    state = setup.state

    def read(callback: Any) -> dict[str, Any]:
        what = f"the state of {type(callback).__name__}"
        # Through text: what is saved must not change with the callback.
        return left_out.attempt(what, lambda: json.loads(json.dumps(only_json(callback.state()))), {})

    stateful = callback_states([*setup.callbacks.everyone, setup.control], read)
    state.stateful_callbacks = stateful
    counts = snapshot.counts if snapshot is not None else None
    tokens, operations = counts or (state.num_input_tokens_seen, state.total_flos + setup.current_flos)
    frozen = dataclasses.replace(
        state,
        log_history=log,
        stateful_callbacks=stateful,
        num_input_tokens_seen=tokens,
        total_flos=operations,
    )

    def text() -> str:
        try:
            return frozen.to_json()
        except LogUnreadable as error:
            left_out.note("older entries of the log", error)
            return dataclasses.replace(frozen, log_history=log.recent if isinstance(log, LongLog) else []).to_json()

    return text


def callback_tensors(callbacks: list[Any], left_out: LeftOut | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``state_dict()`` of callbacks that have one: tensors as ``<class>.<number>.<name>``, and the values.

    A callback whose state cannot be stored raises or, with ``left_out``, is noted there.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, callback in numbered(callbacks).items():
        if left_out is None:
            found = _state_of(callback)
        else:
            what = f"the state of {type(callback).__name__}"
            found = left_out.attempt(what, lambda callback=callback: _state_of(callback), None)
        if found is not None:
            tensors |= {f"{key}.{name}": tensor for name, tensor in found[0].items()}
            values[key] = found[1]
    return tensors, values


def _state_of(callback: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    state = callback.state_dict()
    tensors = {name: tensor.detach() for name, tensor in state.get("tensors", {}).items()}
    if name := unstorable(tensors):
        raise ValueError(f"{name} is {why_unstorable(tensors[name])}, which safetensors cannot hold")
    return tensors, _as_json(state.get("values", {}))


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    plain = only_json(values)
    if json.loads(json.dumps(plain)) == values:
        return plain
    tensors, encoded = split_state(values, "the values of its state_dict()")
    if tensors:
        raise ValueError("tensors belong under 'tensors' in its state_dict(), not under 'values'")
    return {_ENCODED: encoded}


def callback_values(stored: dict[str, Any]) -> dict[str, Any]:
    """The values of a callback's ``state_dict()`` as it gave them."""
    return join_state({}, stored[_ENCODED]) if set(stored) == {_ENCODED} else stored


def numbered(callbacks: list[Any]) -> dict[str, Any]:
    """Callbacks with a ``state_dict`` under names that a second one of the same class does not take away."""
    found: dict[str, Any] = {}
    for callback in callbacks:
        if callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None)):
            name = type(callback).__name__
            found[f"{name}.{sum(key.startswith(f'{name}.') for key in found)}"] = callback
    return found
