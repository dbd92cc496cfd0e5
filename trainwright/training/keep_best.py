"""KeepBest: the best model so far, in a folder of its own, whole at any moment."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.checkpoint.left_out import in_words
from trainwright.checkpoint.models import ModelFolder
from trainwright.config.arguments import TrainingArguments
from trainwright.config.cadence import Every, RunProgress
from trainwright.config.registry import suggestion
from trainwright.config.run_directory import run_directory
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import ExportableState, TrainerControl, TrainerState
from trainwright.engines.torch.targets import unwrap

logger = logging.getLogger("trainwright")

TRAIN_LOSS = "train_loss"
_TIMES = ("_runtime", "_per_second", "_preparation_time", "epoch")


class KeepBest(TrainerCallback, ExportableState):
    """Saves the model alone, ready to be used, whenever a metric is the best so far.

    Checkpoints, which a run goes on from, are another thing: they come and go by ``checkpoint_every``.

    Args:
        metric: What is judged after each evaluation, for instance ``"eval_loss"``; ``"train_loss"`` is the mean
            training loss since the last time. Of several names the mean is judged. None saves after every evaluation.
        folder: Where the model goes: ``from_pretrained`` reads it where the model is one of transformers. It is
            replaced as a whole, so a crash leaves the old model or the new; files of others in it are kept.
        greater_is_better: As in ``TrainingArguments``: by default yes, unless the name ends in "loss".
        below, above: Save only while ``above < value < below``.
        every: For ``"train_loss"`` in a run without evaluations: when to judge, written like ``checkpoint_every``.
        patience: End the training after so many times in a row without a new best.
        safe_serialization: safetensors; False writes ``pytorch_model.bin``, which ``torch.load(weights_only=True)``
            reads.
        max_shard_size: Models larger than this are written in several files.
        notes: Gives what ``status.json`` beside the model says; by default metric, value, step and epoch.
        model: Gives the model to save, where it is not the Trainer's.

    >>> keep = KeepBest("eval_loss", "models/line", below=0.5)
    >>> keep.is_better(0.7), keep.is_better(0.4)
    (False, True)
    """

    may_repeat = True

    def __init__(
        self,
        metric: str | Sequence[str] | None,
        folder: str | Path,
        *,
        greater_is_better: bool | None = None,
        below: float | None = None,
        above: float | None = None,
        every: str | None = None,
        patience: int | None = None,
        safe_serialization: bool = True,
        max_shard_size: str | int = "50GB",
        notes: Callable[[], dict[str, Any]] | None = None,
        model: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.metrics = (metric,) if isinstance(metric, str) else tuple(metric or ())
        if patience is not None and (patience < 1 or not self.metrics):
            raise ValueError(f"patience={patience} must be at least 1, and needs a metric that may improve.")
        by_name = bool(self.metrics) and not self.metrics[0].endswith("loss")
        self.greater_is_better = by_name if greater_is_better is None else greater_is_better
        self.below, self.above, self.patience = below, above, patience
        self.every = None if every is None else Every.parse(every)
        # Absolute: somebody's code may change the working directory.
        place = Path(folder).absolute()
        self._target = ModelFolder(place, safe_serialization=safe_serialization, max_shard_size=max_shard_size)
        self._notes, self._model = notes, model
        #: The best value so far that was saved; None before the first.
        self.best: float | None = None
        #: The best so far, saved or not: the same in all processes, of which only the first knows what was saved.
        self._judged: float | None = None
        #: In a resumed run, the values of the model that is in the folder: it may be newer than the checkpoint.
        self._there: list[float] | None = None
        #: Times in a row without a new best.
        self.times_worse = 0
        #: Names that evaluations of this run gave.
        self._seen: set[str] = set()
        self._has_complained = False
        self._found: dict[str, float] = {}
        self._found_at = -1
        self._losses_before: tuple[float, int] = (0.0, 0)
        self._last = RunProgress()
        self._is_training = False

    @property
    def folder(self) -> Path:
        """Where the model goes."""
        return self._target.path

    @property
    def has_lost_patience(self) -> bool:
        return self.patience is not None and self.times_worse >= self.patience

    @property
    def stop_reason(self) -> str | None:
        """Why it has stopped the training."""
        if not self.has_lost_patience:
            return None
        return f"{' + '.join(self.metrics)} has not improved {self.times_worse} times in a row"

    def is_better(self, value: float) -> bool:
        """Whether ``value`` would be a new best within the bounds."""
        return self._is_new_best(value, self._judged, self.greater_is_better)

    def _is_new_best(self, value: float, best: float | None, greater_is_better: bool) -> bool:
        if not math.isfinite(value):
            return False
        if (self.below is not None and value >= self.below) or (self.above is not None and value <= self.above):
            return False
        return best is None or is_before(value, best, greater_is_better)

    @property
    def identity(self) -> dict[str, Any]:
        """What it judges by: only the state of one that does the same is taken up by a resume."""
        return {"metrics": list(self.metrics), "greater_is_better": self.greater_is_better}

    # ---- events

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == 0:
            # A second train() of the same Trainer is a run of its own.
            self.best, self._judged, self.times_worse, self._losses_before = None, None, 0, (0.0, 0)
        elif self._judged is None:
            # A checkpoint of an earlier version has one number for both.
            self._judged = self.best
        self._found, self._found_at, self._is_training = {}, -1, True
        self._seen = set()
        self._last = self._moment(state)
        if run_directory(args).resolve().is_relative_to(self.folder.resolve()):
            raise ValueError(
                f"The run directory {args.output_dir} lies in {self.folder}, which every better model replaces: "
                "choose folders beside each other."
            )
        self._target.refuse_what_is_no_folder()
        self._there = None
        if state.is_world_process_zero:
            self._target.clean_up()
            if state.global_step > 0:
                self._there = self._values_there()
        if self.has_lost_patience:
            control.should_training_stop = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._is_training:
            # Somebody looks at other data; what is kept is decided by the training's own evaluations.
            return
        metrics = kwargs.get("metrics") or {}
        if state.global_step != self._found_at:
            self._complain_of_missing()
            self._found, self._found_at = {}, state.global_step
        self._seen.update(metrics)
        if not self.metrics:
            self._keep(state, kwargs, None)
        elif self.metrics == (TRAIN_LOSS,):
            if not self._found:
                self._judge_training(state, control, kwargs)
                self._found[TRAIN_LOSS] = 0.0
        else:
            news = {name: metrics[name] for name in self.metrics if name in metrics}
            self._found |= news
            if news and len(self._found) == len(self.metrics):
                self._judge(sum(self._found.values()) / len(self._found), state, control, kwargs)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.every is not None:
            self._judge_if_due(self._moment(state), state, control, kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.every is not None:
            self._judge_if_due(self._moment(state, epoch_end=True), state, control, kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.every is not None:
            self._judge_training(state, control, kwargs)
        self._complain_of_missing()
        self._is_training = False

    def on_train_failed(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._is_training = False

    def _complain_of_missing(self) -> None:
        """Say once what evaluations never give: nothing would be saved by it, and nobody would know why."""
        missing = [name for name in self.metrics if name not in self._seen and name != TRAIN_LOSS]
        if self._seen and missing and not self._has_complained:
            self._has_complained = True
            found = sorted(name for name in self._seen if not name.endswith(_TIMES))
            logger.error(
                "No model is saved in %s: evaluations give no %s%s; they give %s.",
                self.folder,
                missing[0],
                suggestion(missing[0], found),
                ", ".join(found) or "nothing",
            )

    def _judge_if_due(
        self, now: RunProgress, state: TrainerState, control: TrainerControl, kwargs: dict[str, Any]
    ) -> None:
        assert self.every is not None
        if self.every.due(now, self._last):
            self._last = now
            self._judge_training(state, control, kwargs)

    def _judge_training(self, state: TrainerState, control: TrainerControl, kwargs: dict[str, Any]) -> None:
        """Judge the mean training loss since the last time; before the first step there is none."""
        total, count = kwargs["losses"].sums()
        before, self._losses_before = self._losses_before, (total, count)
        if count > before[1]:
            mean = (total - before[0]) / (count - before[1])
            if self.metrics:
                self._judge(mean, state, control, kwargs)
            else:
                self._keep(state, kwargs, None)

    def _judge(self, value: float, state: TrainerState, control: TrainerControl, kwargs: dict[str, Any]) -> None:
        if self.is_better(value):
            self._judged, self.times_worse = value, 0
        else:
            self.times_worse += 1
        # Not only a new best: the last one may not have been saved.
        if self._is_new_best(value, self.best, self.greater_is_better):
            self._keep(state, kwargs, value)
        if self.has_lost_patience:
            control.should_training_stop = True

    def _keep(self, state: TrainerState, kwargs: dict[str, Any], value: float | None) -> None:
        before, self.best = self.best, value
        if not state.is_world_process_zero or self._better_is_there(kwargs.get("events"), state):
            return
        facts: dict[str, Any] = {"metric": " + ".join(self.metrics) or None, "value": value}
        facts |= {"step": state.global_step, "epoch": state.epoch}
        facts = facts if self._notes is None else self._notes()
        facts["kept_by"] = {**self.identity, "values": self._values(), "step": state.global_step}
        optimizer, events = kwargs.get("optimizer"), kwargs.get("events")
        # A schedule-free optimizer trains other weights than those that are to be used.
        rests = callable(getattr(optimizer, "eval", None))
        if optimizer is not None and rests:
            optimizer.eval()
        try:
            model = unwrap(kwargs["model"]) if self._model is None else self._model()
            self._target.save(model, facts)
        except Exception as error:
            # Anything: a model's own code may have written it.
            self.best = before
            logger.error("The model could not be saved in %s (%s); training goes on.", self.folder, error)
            if events is not None:
                events.unsaved[str(self.folder)] = in_words(error)
        else:
            self._there = None
            if events is not None:
                events.unsaved.pop(str(self.folder), None)
        finally:
            if optimizer is not None and rests:
                optimizer.train()

    def _values(self) -> list[float]:
        """What was just judged."""
        return [] if not self.metrics or self.best is None else [self.best]

    def _directions(self) -> list[bool]:
        """Of each of these, whether greater is better."""
        return [self.greater_is_better]

    def _values_there(self) -> list[float] | None:
        """By which values the model that is in the folder was kept; None where it was not kept by the same."""
        found = self._target.status().get("kept_by")
        if not isinstance(found, dict) or any(found.get(name) != value for name, value in self.identity.items()):
            return None
        values = found.get("values")
        fits = isinstance(values, list) and len(values) == len(self._directions())
        return values if fits and all(isinstance(value, (int, float)) for value in values) else None

    def _better_is_there(self, events: Any, state: TrainerState) -> bool:
        """Whether the folder holds a better model, which the run saved after the checkpoint that it went on from."""
        there, now = self._there, self._values()
        if there is None or not any(map(is_before, there, now, self._directions())):
            return False
        text = (
            f"The model in {self.folder} stays: it has {there}, and that of step {state.global_step} has {now} "
            f"({' + '.join(self.metrics)}). It was saved after the checkpoint that this run went on from; delete it to "
            "have the best since then."
        )
        if events is not None:
            events.record("better_model_stays", text)
        return True

    def _moment(self, state: TrainerState, *, epoch_end: bool = False) -> RunProgress:
        return RunProgress(
            step=state.global_step, epoch=state.epoch or 0.0, max_steps=state.max_steps, epoch_end=epoch_end
        )

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        attributes = {"best": self.best, "times_worse": self.times_worse, "_losses_before": list(self._losses_before)}
        return {"args": {}, "attributes": {**attributes, "_judged": self._judged}, "identity": self.identity}


def is_before(value: float, other: float, greater_is_better: bool) -> bool:
    """Whether ``value`` is strictly better than ``other``.

    >>> is_before(0.1, 0.2, greater_is_better=False), is_before(0.2, 0.2, greater_is_better=True)
    (True, False)
    """
    return value > other if greater_is_better else value < other
