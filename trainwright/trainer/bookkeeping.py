"""Trainer methods around the loop: logging, counting, summing up, and the callbacks' list."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainwright.checkpoint.directory import checkpoint_path
from trainwright.checkpoint.durable import discard
from trainwright.core.errors import NotSavedError
from trainwright.core.results import speed_metrics
from trainwright.engines.torch.targets import base_model
from trainwright.trainer.artifacts import ArtifactMethods
from trainwright.trainer.checkpoint_texts import Moment
from trainwright.trainer.planning import TrainingPlan, plan_training, total_train_batch_size
from trainwright.trainer.search import Search
from trainwright.trainer.signatures import overrides

logger = logging.getLogger("trainwright")

#: Pauses between attempts to save at the end of training what could not be saved before.
LAST_ATTEMPTS = (0.0, 5.0, 15.0)


class BookkeepingMethods(ArtifactMethods):
    """What a Trainer counts and says."""

    current_flos: float = 0
    #: The hyperparameter search that this training is a trial of.
    _search: Search | None = None
    hp_name: Callable[[Any], str] | None = None
    _plan: TrainingPlan
    _first_step: int
    _start_time: float
    _log_takes_time: bool
    _summary: dict[str, float]

    # ---- logs

    def _log_training(self, logs: dict[str, float]) -> None:
        self.store_flos()
        if self._log_takes_time:
            self.log(logs, self._start_time)
        else:
            self.log(logs)

    def _evaluate_in_training(self, ignore_keys: list[str] | None) -> dict[str, float]:
        metrics = self.evaluate(ignore_keys=ignore_keys)
        if self._search is not None:
            self._search.report(metrics, self.state.global_step)
        return metrics

    def _save_in_training(self) -> None:
        self.store_flos()
        self._save_checkpoint(self.model, None)

    def _finish(self) -> None:
        """The run's summary, and the best model if it was asked for; before ``on_train_end``."""
        steps = self.state.global_step - self._first_step
        share = steps / max(self.state.max_steps, 1)
        summary: dict[str, float] = speed_metrics(
            "train", self._start_time, num_samples=self._plan.samples * share, num_steps=steps
        )
        self.store_flos()
        summary["total_flos"] = self.state.total_flos
        summary["train_loss"] = self.engine.meter.overall()
        summary.update(self._memory.stop("train"))
        self._summary = summary
        self.log(summary)
        self._make_up_for_failed_save()
        self.engine.rest_weights()
        if self.args.load_best_model_at_end:
            self._load_best_model()

    def _make_up_for_failed_save(self) -> None:
        """At the end of training: try again what the disk refused, and note what is not saved."""
        self._saver.wait()
        if not self._save_has_failed():
            return
        for pause in LAST_ATTEMPTS:
            time.sleep(pause)
            self._write_moment(Moment(self._random_now(), self._feed.position()), background=False)
            if not self._save_has_failed():
                self._events.record("saved_late", "The last checkpoint could be saved after all.", level=logging.INFO)
                return
        name = checkpoint_path(self._checkpoint_home(), self.state.global_step).name
        self._events.unsaved[name] = self._saver.failure or "another process could not write its part"

    def _refuse_to_look_saved(self) -> None:
        """After everything else: a training that could not save must not end like one that did."""
        if self._handing_over is not None:
            self._hand_over_the_end()
        if self._events.unsaved:
            raise self._not_saved()

    def _not_saved(self, how: str = "came to its end") -> NotSavedError:
        """The error that says what is not on disk, after the weights were written elsewhere if that is possible."""
        takes_all = self._takes_all_to_save() or self.strategy.gathers_to_save
        instead = None if takes_all else self._save_elsewhere()
        error = NotSavedError(self._events.unsaved, instead, how)
        self._events.record("lost", str(error), step=self.state.global_step, level=logging.ERROR)
        return error

    def _save_elsewhere(self) -> str | None:
        """The weights in the run directory or, where that takes nothing, in the system's place for temporary files."""
        needed = sum(tensor.nbytes for tensor in self.model.state_dict().values() if isinstance(tensor, Tensor))
        for place in (str(self._run_directory()), None):
            folder: Path | None = None
            try:
                folder = Path(tempfile.mkdtemp(prefix="rescued-model-", dir=place))
                if shutil.disk_usage(folder).free > 1.1 * needed:
                    self._save(folder)
                    return str(folder)
            except Exception as error:
                logger.error("The model could not be written elsewhere either: %s.", error)
            if folder is not None:
                discard(folder)
        return None

    # ---- counting

    def _observer(self) -> Callable[[Any], None] | None:
        """A function that counts tokens and FLOPs of each micro-batch, or None when there is nothing to count."""
        per_token = self._flops_per_token()
        own_flops = overrides(self, BookkeepingMethods, "floating_point_ops")
        tokens_wanted = self.args.include_num_input_tokens_seen
        if not per_token and not own_flops and tokens_wanted == "no":
            return None
        main_input = getattr(self.model, "main_input_name", "input_ids")

        def observe(batch: Any) -> None:
            if own_flops:
                self.current_flos += float(self.floating_point_ops(batch))
            elif per_token and isinstance(batch, Mapping) and isinstance(batch.get(main_input), Tensor):
                self.current_flos += per_token * batch[main_input].numel()
            if tokens_wanted != "no":
                self.state.num_input_tokens_seen += self._count_input_tokens(batch, main_input, tokens_wanted)

        return observe

    def _count_input_tokens(self, batch: Any, main_input: str, how: str) -> int:
        if not isinstance(batch, Mapping) or not isinstance(batch.get(main_input), Tensor):
            return 0
        mask = batch.get("attention_mask")
        if how == "non_padding" and isinstance(mask, Tensor):
            return int(mask.sum())
        return batch[main_input].numel()

    def _flops_per_token(self) -> float:
        """6 x parameters without embeddings, HF's estimate; counted once and not at every step."""
        count = getattr(base_model(self.model), "num_parameters", None)
        return 6.0 * count(exclude_embeddings=True) if callable(count) else 0.0

    def floating_point_ops(self, inputs: Any) -> int:
        """Estimated floating point operations of forward and backward for ``inputs``."""
        main_input = getattr(self.model, "main_input_name", "input_ids")
        if not isinstance(inputs, Mapping) or main_input not in inputs:
            return 0
        return int(self._flops_per_token()) * inputs[main_input].numel()

    def store_flos(self) -> None:
        """Add the operations counted since the last call to the state."""
        self.state.total_flos += self.current_flos
        self.current_flos = 0

    # ---- sizes

    def get_total_train_batch_size(self, args: Any) -> int:
        """Samples per optimizer step over all devices."""
        return total_train_batch_size(args)

    def set_initial_training_values(
        self, args: Any, dataloader: Any
    ) -> tuple[int, int, int, int, int, int | None, int]:
        """HF's tuple: epochs, steps per epoch, examples, training samples, batch size, batches per epoch, max steps."""
        plan = plan_training(self, dataloader)
        batch = total_train_batch_size(args)
        return (
            plan.epochs,
            plan.steps_per_epoch,
            plan.examples,
            plan.samples,
            batch,
            plan.batches_per_epoch,
            plan.max_steps,
        )

    def get_sp_size(self) -> int:
        return 1

    def get_cp_size(self) -> int:
        return 1

    def get_tp_size(self) -> int:
        return 1

    def end(self) -> None:
        """Finish trackers; nothing else is open after ``train``."""
