"""Trainer methods that read checkpoints back; each may be overridden."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.checkpoint.directory import PREVIOUS, all_checkpoints, list_checkpoints, newest_good, put_back, step_of
from trainwright.checkpoint.interchange.continuing import PresentOptimizer, with_names
from trainwright.checkpoint.manifest import DamagedCheckpoint, has_manifest, holds, run_of, verify
from trainwright.checkpoint.optimizer_state import OWN_TYPE, on_device, unflatten_optimizer
from trainwright.checkpoint.ownership import owner_after_resume
from trainwright.checkpoint.sharded import StoredTensors, is_stored
from trainwright.checkpoint.training_state import CALLBACKS, load_training_state, stored_schedule
from trainwright.checkpoint.weights import load_weights
from trainwright.config.fields import ours
from trainwright.config.secrets import holds_mask
from trainwright.core.state import TrainerState
from trainwright.engines.torch.joint import in_form_of
from trainwright.engines.torch.optimizer_states import load_exactly
from trainwright.engines.torch.randomness import of_process
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.capture import IN_TRAINING
from trainwright.trainer.checkpoint_texts import callback_values, numbered, tool_names
from trainwright.trainer.saving import SavingMethods

logger = logging.getLogger("trainwright")

STATE = "trainer_state.json"
_NEW_RUN = "Go on with what it was, or start a new run from the checkpoint's weights."
#: Settings that an optimizer takes from the checkpoint, with the names that people know them by.
_KEPT_SETTINGS = {"initial_lr": "learning_rate", "weight_decay": "weight_decay", "betas": "betas", "eps": "eps"}


class RestoringMethods(SavingMethods):
    """Resuming."""

    #: The library whose checkpoint this run goes on from, if it was imported.
    _imported_from: str | None = None
    #: Weights to train on with, by the optimizer's number, where the checkpoint's model holds others.
    _weights_in_training: dict[int, Tensor] = {}  # noqa: RUF012 - replaced, never changed

    def _resolve_checkpoint(self, wanted: str | Path | bool | None) -> Path | None:
        """The verified folder to resume from; ``True``: the newest good one of this run, "auto": if there is one."""
        if wanted is None and ours(self.args, "resume") == "auto":
            wanted = "auto"
        if wanted is None or wanted is False:
            return None
        run = self._run_directory()
        if self._handing_over is not None and (wanted is True or wanted == "auto"):
            fetched = self._handing_over.fetch()
            if fetched is None and wanted is True:
                raise ValueError(
                    "resume_from_checkpoint=True, but checkpointer.load() found none: use 'auto' or train()."
                )
            return fetched
        if wanted == "auto":
            if found := newest_good(run):
                return found
            _refuse_if_all_damaged(run)
            if hint := _hint_of_foreign(run):
                logger.warning("%s holds no checkpoint to go on from%s.", run, hint)
            return None
        if wanted is True:
            if found := newest_good(run):
                return found
            _refuse_if_all_damaged(run)
            _refuse_if_of_another_run(run)
            raise ValueError(
                f"resume_from_checkpoint=True, but {run} holds no checkpoint{_hint_of_foreign(run)}. "
                "Start with train() or pass the path of a checkpoint-N folder."
            )
        return _verified(Path(wanted))

    def _agreed_checkpoint(self, wanted: str | Path | bool | None) -> Path | None:
        """The first process chooses, since it alone writes: what others see may be older by a moment."""
        if self._handing_over is not None:
            # What a checkpointer fetched is in a place of each process's own.
            return self._resolve_checkpoint(wanted)
        own = self._resolve_checkpoint(wanted) if self._backend.rank == 0 else None
        owner = self._owner if own is None else owner_after_resume(own)
        checkpoint, self._owner = self._backend.gather((own, owner))[0]
        if self._wants_checkpoints():
            is_named = checkpoint is not None and wanted not in (True, None, "auto")
            self._claim_run_directory(step_of(checkpoint) if is_named else None)
        return checkpoint

    def _load_from_checkpoint(self, resume_from_checkpoint: str | Path, model: nn.Module | None = None) -> None:
        """Weights of a checkpoint into the model."""
        with self.strategy.rewritten(self.model):
            load_weights(unwrap(model or self.model), resume_from_checkpoint)
        self.engine.reread()

    def _load_training_state(self, folder: Path) -> dict[str, Any]:
        """Optimizer, schedule and scaler of a checkpoint; returns the rest (random state, data position)."""
        tensors, random_tensors, rest = load_training_state(folder, dict(unwrap(self.model).named_parameters()))
        processes = rest.get("processes", 1)
        _note_other_processes(processes, self._backend.world_size)
        # None: the one who handed the checkpoint back wants an optimizer and a schedule that begin anew.
        if rest["optimizer"] is not None:
            rest = self._load_tools(tensors, rest)
        if self.engine.precision.scaler is not None and rest["scaler"] is not None:
            self.engine.precision.scaler.load_state_dict(rest["scaler"])
        self.engine.meter.load_state_dict(rest["loss"], self.engine.device)
        self.engine.restore_last_step(rest["last_step"])
        if rest.get("left_out"):
            logger.warning(
                "%s was saved without %s: the run does not go on exactly as it would have.",
                folder.name,
                "; ".join(rest["left_out"]),
            )
        self.engine.reread()
        self._restore_callback_tensors(folder, rest["callbacks"])
        self._imported_from = rest.get("imported_from")
        random = None if rest["random"] is None else of_process((random_tensors, rest["random"]), self._backend.rank)
        return {
            "data": _with_processes(rest["data"], processes),
            "random": random,
            "processes": processes,
            "was_ending": rest.get("was_ending", False),
            "micro_batch": rest.get("micro_batch"),
            "schedule_is_missing": bool(rest.get("left_out")) and rest["scheduler"] is None,
        }

    def _load_tools(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
        """Optimizer and schedule; returns ``rest`` with the names that they have here."""
        if "tools" in rest:
            _refuse_other_tools(rest["tools"], tool_names(self))
        if "numbering" in rest["optimizer"]:
            tensors, rest = with_names(tensors, rest, self._present_optimizer())
        tensors = on_device(tensors, rest["optimizer"], self.engine.device)
        optimizer = unflatten_optimizer(tensors, rest["optimizer"], self._optimizer_parameter_names())
        self._weights_in_training = {
            number: entries.pop(IN_TRAINING)
            for number, entries in optimizer["state"].items()
            if isinstance(entries, dict) and IN_TRAINING in entries
        }
        _compare_groups(optimizer["param_groups"], self.optimizer.param_groups)
        # A setting that could not be saved, or that a newer torch has added, is the one of now.
        present = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        optimizer["param_groups"] = [
            {**now, **was} for now, was in zip(present, optimizer["param_groups"], strict=True)
        ]
        with self.strategy.rewritten(self.model, self.optimizer):
            kept = [tensors[name] for name in rest["optimizer"].get(OWN_TYPE, ())]
            load_exactly(self.optimizer, optimizer, kept)
        if self.lr_scheduler is not None and (schedule := stored_schedule(rest)) is not None:
            self.lr_scheduler.load_state_dict(in_form_of(schedule, self.lr_scheduler.state_dict()))
        return rest

    def _present_optimizer(self) -> PresentOptimizer:
        model = unwrap(self.model)
        return PresentOptimizer(
            numbered=self._optimizer_parameter_names(),
            group_sizes=[len(group["params"]) for group in self.optimizer.param_groups],
            shapes={name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
            trained=[name for name, parameter in model.named_parameters() if parameter.requires_grad],
            decay=frozenset(self.get_decay_parameter_names(model)),
        )

    def _take_up_training_weights(self) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for number, weight in self._weights_in_training.items():
            parameters[number].data.copy_(weight)
        self._weights_in_training = {}

    def _restore_callback_tensors(self, folder: Path, values: dict[str, Any]) -> None:
        stored = self._callback_tensors(folder) if is_stored(folder, CALLBACKS) else {}
        present = numbered(self.callback_handler.callbacks)
        for key in values.keys() - present.keys():
            logger.warning("The checkpoint holds the state of %s, which this run does not have.", key.split(".")[0])
        for key, callback in present.items():
            if key in values:
                own = {name.removeprefix(f"{key}."): t for name, t in stored.items() if name.startswith(f"{key}.")}
                callback.load_state_dict({"tensors": own, "values": callback_values(values[key])})
            else:
                logger.warning("The checkpoint holds no state of %s: it starts anew.", key.split(".")[0])

    def _callback_tensors(self, folder: Path) -> Mapping[str, Tensor]:
        """Tensors that callbacks saved; what is kept of a parameter that is in parts, in the same parts."""
        stored = StoredTensors(folder, CALLBACKS)
        if not self.strategy.is_sharded:
            return stored
        named = dict(unwrap(self.model).named_parameters())
        answer: dict[str, Tensor] = {}
        for name in stored:
            # "EMACallback.0.layer.weight", "MagnitudePruningModifier.0.mask.layer.weight"
            words = name.split(".")
            owners = (named.get(".".join(words[start:])) for start in range(2, len(words)))
            owner = next((parameter for parameter in owners if parameter is not None), None)
            answer[name] = stored[name] if owner is None else stored.spread_like(name, owner)
        return answer

    def _restore_callbacks(self, saved: dict[str, Any]) -> None:
        """Give callbacks back what they had counted; their settings too, when the arguments ask for it."""
        for callback in self.callback_handler.callbacks:
            states = saved.get(type(callback).__name__)
            if states is None or not hasattr(callback, "state"):
                continue
            state = states.pop(0) if isinstance(states, list) else states
            kept = dict(state.get("attributes", {}))
            if self.args.restore_callback_states_from_checkpoint:
                kept |= state.get("args", {})
            masked = [name for name, value in kept.items() if holds_mask(value)]
            if masked:
                who, what = type(callback).__name__, ", ".join(masked)
                logger.warning("Secrets are not kept in checkpoints: %s keeps the %s it has now.", who, what)
            vars(callback).update({name: value for name, value in kept.items() if name not in masked})

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        # The first process may still be writing it.
        self._saver.wait()
        self._backend.barrier()
        if best is None:
            logger.warning("No checkpoint was saved at the best evaluation; the trainer keeps the last model.")
            return
        try:
            verify(Path(best))
        except DamagedCheckpoint as error:
            self._events.record("best_model_lost", f"{error} The trainer keeps the last model.")
            return
        logger.info(
            "Loading the best model from %s (%s = %s).", best, self.args.metric_for_best_model, self.state.best_metric
        )
        self._load_from_checkpoint(best)


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


def _refuse_other_tools(saved: dict[str, str], now: dict[str, str]) -> None:
    """The state of one optimizer, or schedule, means nothing to another."""
    for kind, words in (("optimizer", "The optimizer"), ("schedule_class", "The learning-rate schedule")):
        if saved[kind] != now[kind]:
            name = "schedule" if kind == "schedule_class" else kind
            raise ValueError(
                f"{words} was {saved[name]} when the checkpoint was saved and is {now[name]} now, which cannot go on "
                f"with the other's state. {_NEW_RUN}"
            )
    if saved["schedule"] != now["schedule"]:
        logger.warning(
            "The learning-rate schedule was %s and is %s now: it goes on from the step it has come to.",
            saved["schedule"],
            now["schedule"],
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


def _compare_groups(saved: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """Refuse groups of other parameters; say which settings are the checkpoint's and not those of the arguments."""
    sizes, present = ([len(group["params"]) for group in groups] for groups in (saved, now))
    if sizes != present:
        raise ValueError(
            f"The checkpoint's optimizer has {sum(sizes)} parameters in groups of {sizes}, this run's has "
            f"{sum(present)} in groups of {present}: weight_decay, or which parameters are trained, has changed. "
            f"{_NEW_RUN}"
        )
    changed = {
        name: f"{name} was {old[key]} and would be {new[key]} now"
        for old, new in zip(saved, now, strict=True)
        for key, name in _KEPT_SETTINGS.items()
        # OneCycleLR and CyclicLR move the betas too, and leave this key behind.
        if key in old and key in new and not (key == "betas" and "max_momentum" in old)
        if not _same_setting(old[key], new[key])
    }
    if changed:
        logger.warning("The optimizer goes on with the checkpoint's settings: %s.", "; ".join(changed.values()))


def _same_setting(one: Any, other: Any) -> bool:
    # Tuples and tensors are lists and numbers in older checkpoints.
    one, other = (value.tolist() if isinstance(value, Tensor) else value for value in (one, other))
    return list(one) == list(other) if isinstance(one, (list, tuple)) else one == other


def _verified(folder: Path) -> Path:
    """``folder``, or the newest good checkpoint in it; what is damaged is refused with a way out."""
    folder = put_back(folder)
    if list_checkpoints(folder):
        found = newest_good(folder)
        _refuse_if_all_damaged(folder) if found is None else None
        assert found is not None
        return found
    if not folder.is_dir():
        raise ValueError(f"{folder} is not there. Pass the path of a checkpoint-N folder.")
    if not has_manifest(folder):
        raise ValueError(f"{folder} is not a finished checkpoint of trainwright: it has no manifest{_hint(folder)}.")
    try:
        verify(folder)
    except DamagedCheckpoint as error:
        other = newest_good(folder.parent)
        way_out = f" Resume from {other} instead, or pass True." if other else " There is no other one beside it."
        raise ValueError(f"{error}{way_out}") from error
    return folder


def _refuse_if_all_damaged(run: Path) -> None:
    damaged = list_checkpoints(run)
    if damaged:
        raise ValueError(
            f"Every checkpoint in {run} is damaged ({', '.join(path.name for path in damaged)}); "
            f"`trainwright verify {run}` says how. Move them away to start anew."
        )


def _refuse_if_of_another_run(run: Path) -> None:
    if others := all_checkpoints(run):
        raise ValueError(
            f"resume_from_checkpoint=True, but the checkpoints in {run} were written by another run. To go on from one "
            f"of them pass its path, {others[-1]} for example."
        )


def _hint(folder: Path) -> str:
    """How to use a folder that another library wrote."""
    foreign = ("optimizer.pt", "trainer_state.json", "pytorch_model.bin")
    if any((folder / name).exists() for name in foreign):
        return f". If another library wrote it: trainwright import {folder}"
    return ""


def _hint_of_foreign(run: Path) -> str:
    folders = [path for path in run.glob("checkpoint-*") if not has_manifest(path)] if run.is_dir() else []
    for folder in sorted(folders, key=lambda path: step_of(path) or 0, reverse=True):
        if hint := _hint(folder):
            return hint
    return ""
