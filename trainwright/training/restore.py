"""Read the states of a checkpoint back into model, optimizer, schedule and callbacks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.checkpoint.directory import PREVIOUS
from trainwright.checkpoint.interchange.continuing import with_names
from trainwright.checkpoint.manifest import DamagedCheckpoint, has_manifest, holds, run_of, verify
from trainwright.checkpoint.optimizer_state import OWN_TYPE, on_device, unflatten_optimizer
from trainwright.checkpoint.sharded import StoredTensors, is_stored
from trainwright.checkpoint.training_state import CALLBACKS, load_training_state, stored_schedule
from trainwright.checkpoint.weights import load_weights
from trainwright.config.secrets import holds_mask
from trainwright.core.state import TrainerState
from trainwright.engines.torch.joint import in_form_of
from trainwright.engines.torch.made import Made
from trainwright.engines.torch.optimizer_states import load_exactly
from trainwright.engines.torch.randomness import of_process
from trainwright.engines.torch.targets import unwrap
from trainwright.training.capture import IN_TRAINING
from trainwright.training.checkpoint_texts import callback_values, numbered, tool_names
from trainwright.training.course import (
    CourseSoFar,
    in_present_groups,
    load_options,
    load_schedule,
    made_then,
    present_optimizer,
    schedule_is_ours,
)
from trainwright.training.optimizers import optimizer_parameter_names
from trainwright.training.recipe import take_replaced_parameters
from trainwright.training.recipe_folder import enlarge_to, read_recipe_state
from trainwright.training.run import StoredTools, TrainingRun
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


STATE = "trainer_state.json"


_NEW_RUN = "Go on with what it was, or start a new run from the checkpoint's weights."


def load_from_checkpoint(setup: Setup, resume_from_checkpoint: str | Path, model: nn.Module | None = None) -> None:
    """Weights of a checkpoint into the model."""
    changing = [type(m).__name__ for m in setup.modifiers if m.changes_structure]
    if model is None and changing and setup.run is not None and setup.run.site is not None:
        # Back from where layers were made smaller to a moment when they were not.
        replaced = enlarge_to(unwrap(setup.model), Path(resume_from_checkpoint), changing)
        if replaced:
            take_replaced_parameters(setup, replaced)
    with setup.engine.weights.rewritten(setup.model):
        load_weights(unwrap(model or setup.model), resume_from_checkpoint)
    setup.engine.reread()


def restore_training_state(run: TrainingRun, folder: Path, max_steps: int) -> dict[str, Any]:
    """Optimizer, schedule and scaler of a checkpoint; returns the rest (random state, data position).

    Its run was ``max_steps`` long.
    """
    setup = run.setup
    run.so_far = None
    tensors, random_tensors, rest = load_training_state(folder, dict(unwrap(setup.model).named_parameters()))
    processes = rest.get("processes", 1)
    _note_other_processes(processes, setup.backend.world_size)
    run.stored_tools = stored = StoredTools(tensors, rest, max_steps)
    setup.hooks()._load_optimizer_and_scheduler(str(folder))
    setup.hooks()._load_scaler(str(folder))
    rest, run.stored_tools = stored.rest, None
    setup.engine.meter.load_state_dict(rest["loss"], setup.engine.device)
    setup.engine.restore_last_step(rest["last_step"])
    if rest.get("left_out"):
        logger.warning(
            "%s was saved without %s: the run does not go on exactly as it would have.",
            folder.name,
            "; ".join(rest["left_out"]),
        )
    setup.engine.reread()
    restore_callback_tensors(setup, folder, rest["callbacks"])
    run.imported_from = rest.get("imported_from")
    random = None if rest["random"] is None else of_process((random_tensors, rest["random"]), setup.backend.rank)
    return {
        "data": _with_processes(rest["data"], processes),
        "random": random,
        "processes": processes,
        "was_ending": rest.get("was_ending", False),
        "micro_batch": rest.get("micro_batch"),
        "acceleration": rest.get("acceleration"),
        "schedule_is_missing": bool(rest.get("left_out")) and rest["scheduler"] is None,
    }


def load_optimizer_and_scheduler(run: TrainingRun | None, checkpoint: str | Path | None) -> None:
    """Optimizer and schedule of the checkpoint that ``run`` is resumed from."""
    if checkpoint is None:
        return
    stored = _being_loaded(run, "_load_optimizer_and_scheduler")
    # None: the one who handed the checkpoint back wants an optimizer and a schedule that begin anew.
    if run is not None and stored.rest["optimizer"] is not None:
        stored.rest = load_tools(run, stored.tensors, stored.rest, stored.max_steps)


def load_scaler(run: TrainingRun | None, checkpoint: str | Path | None) -> None:
    """The state of fp16's scaler, if there is any."""
    if run is None or checkpoint is None:
        return
    saved, scaler = _being_loaded(run, "_load_scaler").rest["scaler"], run.setup.engine.precision.scaler
    if scaler is not None and saved is not None:
        scaler.load_state_dict(saved)


def _being_loaded(run: TrainingRun | None, name: str) -> StoredTools:
    if run is None or run.stored_tools is None:
        raise ValueError(f"{name} acts while a training is resumed: call train(resume_from_checkpoint=...).")
    return run.stored_tools


def load_tools(run: TrainingRun, tensors: dict[str, Tensor], rest: dict[str, Any], max_steps: int) -> dict[str, Any]:
    """Optimizer and schedule; returns ``rest`` with the names that they have here."""
    setup = run.setup
    if "tools" in rest:
        _refuse_other_tools(rest["tools"], tool_names(setup), schedule_is_ours(setup))
    if "numbering" in rest["optimizer"]:
        tensors, rest = with_names(tensors, rest, present_optimizer(setup))
    tensors = on_device(tensors, rest["optimizer"], setup.engine.device)
    optimizer = unflatten_optimizer(tensors, rest["optimizer"], optimizer_parameter_names(setup))
    run.weights_in_training = {
        number: entries.pop(IN_TRAINING)
        for number, entries in optimizer["state"].items()
        if isinstance(entries, dict) and IN_TRAINING in entries
    }
    rest = in_present_groups(setup, optimizer, rest)
    _refuse_other_options(optimizer["param_groups"], setup.optimizer)
    _refuse_other_groups(optimizer["param_groups"], setup.optimizer.param_groups)
    then = Made() if run.made is None else made_then(run, rest, optimizer["param_groups"], max_steps)
    rates = [group["lr"] for group in optimizer["param_groups"]] if run.made is not None else []
    optimizer["param_groups"] = load_options(optimizer["param_groups"], setup.optimizer, then, run.made)
    with setup.engine.weights.rewritten(setup.model, setup.optimizer):
        kept = [tensors[name] for name in rest["optimizer"].get(OWN_TYPE, ())]
        load_exactly(setup.optimizer, optimizer, kept)
    other_schedule = "tools" in rest and rest["tools"]["schedule_class"] != tool_names(setup)["schedule_class"]
    if setup.lr_scheduler is not None and not other_schedule and (schedule := stored_schedule(rest)) is not None:
        schedule = in_form_of(schedule, setup.lr_scheduler.state_dict())
        setup.lr_scheduler.load_state_dict(load_schedule(setup.lr_scheduler, schedule, then, run.made))
    run.so_far = None if run.made is None else CourseSoFar(then, rates, other_schedule)
    return rest


def take_up_training_weights(run: TrainingRun) -> None:
    setup = run.setup
    parameters = [p for group in setup.optimizer.param_groups for p in group["params"]]
    for number, weight in run.weights_in_training.items():
        parameters[number].data.copy_(weight)
    run.weights_in_training = {}


def restore_callback_tensors(setup: Setup, folder: Path, values: dict[str, Any]) -> None:
    stored = stored_callback_tensors(setup, folder) if is_stored(folder, CALLBACKS) else {}
    present = numbered(setup.callbacks.everyone)
    for key in values.keys() - present.keys():
        logger.warning("The checkpoint holds the state of %s, which this run does not have.", key.split(".")[0])
    for key, callback in present.items():
        if key in values:
            own = {name.removeprefix(f"{key}."): t for name, t in stored.items() if name.startswith(f"{key}.")}
            callback.load_state_dict({"tensors": own, "values": callback_values(values[key])})
        else:
            logger.warning("The checkpoint holds no state of %s: it starts anew.", key.split(".")[0])


def stored_callback_tensors(setup: Setup, folder: Path) -> Mapping[str, Tensor]:
    """Tensors that callbacks saved; what is kept of a parameter that is in parts, in the same parts."""
    stored = StoredTensors(folder, CALLBACKS)
    if not setup.engine.weights.layout.in_parts:
        return stored
    named = dict(unwrap(setup.model).named_parameters())
    answer: dict[str, Tensor] = {}
    for name in stored:
        # "EMACallback.0.layer.weight", "MagnitudePruningModifier.0.mask.layer.weight"
        words = name.split(".")
        owners = (named.get(".".join(words[start:])) for start in range(2, len(words)))
        owner = next((parameter for parameter in owners if parameter is not None), None)
        answer[name] = stored[name] if owner is None else stored.spread_like(name, owner)
    return answer


def restore_callbacks(setup: Setup, saved: dict[str, Any]) -> None:
    """Give callbacks back what they had counted; their settings too, when the arguments ask for it."""
    left = {name: list(states) if isinstance(states, list) else [states] for name, states in saved.items()}
    left.pop("TrainerControl", None)
    stateful = [callback for callback in setup.callbacks.everyone if hasattr(callback, "state")]
    for name, states in left.items():
        present = [callback for callback in stateful if type(callback).__name__ == name]
        if not present:
            logger.warning("The checkpoint holds the state of %s, which this run does not have.", name)
            continue
        for callback, state in _with_their_states(present, states):
            _restore_callback(callback, state, setup.args.restore_callback_states_from_checkpoint)


def _restore_callback(callback: Any, state: dict[str, Any], with_settings: bool) -> None:
    kept = dict(state.get("attributes", {})) | (state.get("args", {}) if with_settings else {})
    masked = [name for name, value in kept.items() if holds_mask(value)]
    if masked:
        who, what = type(callback).__name__, ", ".join(masked)
        logger.warning("Secrets are not kept in checkpoints: %s keeps the %s it has now.", who, what)
    vars(callback).update({name: value for name, value in kept.items() if name not in masked})


def _with_their_states(callbacks: list[Any], states: list[dict[str, Any]]) -> list[tuple[Any, dict[str, Any]]]:
    """Callbacks of one class with the states that are theirs; says who is left over.

    One that has an ``identity`` takes the state of the same; of the others those that were made with the same arguments
    go together, and the rest in their order.
    """
    found: list[tuple[Any, dict[str, Any]]] = []
    without, left = list(callbacks), list(states)
    for fits in (_is_same, _has_same_arguments, _is_any):
        for callback in list(without):
            state = next((state for state in left if fits(callback, state)), None)
            if state is not None:
                found.append((callback, state))
                without.remove(callback)
                left.remove(state)
    # What the user calls it.
    shown = getattr(callbacks[0], "shown_as", type(callbacks[0]).__name__)
    if hasattr(callbacks[0], "identity") and all("identity" in state for state in states):
        for callback in without:
            text = "The checkpoint holds no state of %s (%s): it starts anew."
            logger.warning(text, shown, _in_short(callback.identity))
        for state in left:
            text = "The checkpoint holds the state of %s (%s), which this run does not have."
            logger.warning(text, shown, _in_short(state["identity"]))
    elif len(states) != len(callbacks):
        text = "The checkpoint holds the state of %d %s, and this run has %d: the first of each go together."
        logger.warning(text, len(states), shown, len(callbacks))
    return found


def _is_same(callback: Any, state: dict[str, Any]) -> bool:
    return hasattr(callback, "identity") and state.get("identity") == callback.identity


def _has_same_arguments(callback: Any, state: dict[str, Any]) -> bool:
    return _is_any(callback, state) and bool(state.get("args")) and callback.state().get("args") == state["args"]


def _is_any(callback: Any, state: dict[str, Any]) -> bool:
    """An earlier version did not write down whose a state is."""
    return not hasattr(callback, "identity") or "identity" not in state


def _in_short(identity: dict[str, Any]) -> str:
    """The first thing that an identity says."""
    first = next(iter(identity.values()), None)
    return " + ".join(map(str, first)) if isinstance(first, list) else str(first)


def load_best_model(run: TrainingRun) -> None:
    setup = run.setup
    best = setup.state.best_model_checkpoint
    # The first process may still be writing it.
    run.saver.wait()
    setup.backend.barrier()
    if best is None:
        logger.warning("No checkpoint was saved at the best evaluation; the trainer keeps the last model.")
        return
    try:
        verify(Path(best))
    except DamagedCheckpoint as error:
        run.events.record("best_model_lost", f"{error} The trainer keeps the last model.")
        return
    metric, value = setup.args.metric_for_best_model, setup.state.best_metric
    text = f"Loading the best model from {best} ({metric} = {value})."
    # The last line of a training names it, too.
    run.events.record("best_model", text, step=setup.state.best_global_step, level=logging.DEBUG)
    setup.hooks()._load_from_checkpoint(str(best))
    _restore_modifiers(run, Path(best))


def _restore_modifiers(run: TrainingRun, best: Path) -> None:
    """Masks and the like as they were then: those of the end would change the model that was the best."""
    setup = run.setup
    states = read_recipe_state(best) if setup.modifiers else {}
    # By the names that the checkpoint knows them by: those of an earlier recipe may stand among them.
    for key, modifier in numbered(setup.callbacks.everyone).items():
        if modifier in setup.modifiers and key in states:
            modifier.load_state_dict(states[key])
            if run.site is not None:
                modifier.resume(run.site, run.site.epoch_of(setup.state))


def stored_state(checkpoint: Path) -> TrainerState:
    """The record of a run in a checkpoint."""
    if not holds(checkpoint, STATE):
        raise ValueError(f"{checkpoint} has no {STATE}, so it is not known where its run stood.")
    return TrainerState.load_from_json(checkpoint / STATE)


def found_again(best: str | None, checkpoint: Path) -> str | None:
    """Where the best model so far is now: the run's folder may have been moved since ``best`` was written down."""
    if best is None:
        return None
    run = run_of(checkpoint)
    places = [checkpoint.parent / Path(best).name, Path(best)]
    if run is not None:
        places.append(checkpoint.parent / f"{PREVIOUS}-{run.id}" / Path(best).name)
    found = next((place for place in places if has_manifest(place) and run_of(place) == run), None)
    if found is None:
        logger.warning("The best model so far was in %s, which is not there: the next best one is kept.", best)
        return None
    return str(found)


#: Options of nearly every optimizer, and what schedules and others write beside them.
_COMMON = {"params", "lr", "initial_lr", "weight_decay", "maximize", "foreach", "capturable", "differentiable", "fused"}
_COMMON |= {"param_names", "decoupled_weight_decay"}


def _refuse_other_options(saved: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """A class that is called as before, and is another: none of the options that its state was made with is known."""
    were = {name for group in saved for name in group} - _COMMON
    are = {name for group in optimizer.param_groups for name in group} - _COMMON
    if were and are and not were & are:
        raise ValueError(
            f"The checkpoint's {type(optimizer).__name__} was another optimizer, with {', '.join(sorted(were))} in "
            f"place of {', '.join(sorted(are))}: this one cannot go on with its state. {_NEW_RUN}"
        )


def _refuse_other_tools(saved: dict[str, str], now: dict[str, str], schedule_is_ours: bool) -> None:
    """The state of one optimizer means nothing to another; a schedule made from the arguments can do without."""
    for kind, words in (("optimizer", "The optimizer"), ("schedule_class", "The learning-rate schedule")):
        if saved[kind] != now[kind] and not (kind == "schedule_class" and schedule_is_ours):
            name = "schedule" if kind == "schedule_class" else kind
            raise ValueError(
                f"{words} was {saved[name]} when the checkpoint was saved and is {now[name]} now, which cannot go on "
                f"with the other's state. {_NEW_RUN}"
            )


def _note_other_processes(saved: int, now: int) -> None:
    if saved != now:
        logger.warning(
            "The checkpoint was saved by a run of %d processes and this one has %d: samples come in the same order, "
            "and in the same steps if batch size x accumulation x processes is the same. What processes draw at random "
            "(dropout) is not what it would have been.",
            saved,
            now,
        )


def _with_processes(data: dict[str, Any], processes: int) -> dict[str, Any]:
    """The place in the data; of a checkpoint that counted the samples of one process, without that count."""
    if "processes" in data or "steps" in data:
        return data
    return {**data, "processes": processes} | ({"samples": None} if processes > 1 else {})


def _refuse_other_groups(saved: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    sizes, present = ([len(group["params"]) for group in groups] for groups in (saved, now))
    if sizes != present:
        raise ValueError(
            f"The checkpoint's optimizer has {sum(sizes)} parameters in groups of {sizes}, this run's has "
            f"{sum(present)} in groups of {present}: which parameters are trained, or how they are grouped, has "
            f"changed. {_NEW_RUN}"
        )
