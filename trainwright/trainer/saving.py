"""Trainer methods that write and read models and checkpoints; each may be overridden."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.checkpoint.directory import checkpoint_path, get_last_checkpoint, rotate, write_whole
from trainwright.checkpoint.training_state import (
    flatten_optimizer,
    load_training_state,
    save_training_state,
    unflatten_optimizer,
)
from trainwright.checkpoint.weights import load_weights, save_weights
from trainwright.core.state import callback_states
from trainwright.data.feed import TrainFeed
from trainwright.engines.torch.randomness import random_state, set_random_state
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.evaluation import EvaluationMethods

logger = logging.getLogger("trainwright")


class SavingMethods(EvaluationMethods):
    """Checkpoints and models of a Trainer."""

    _feed: TrainFeed

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Write the model (and tokenizer or processor) so that ``from_pretrained`` reads it."""
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            self._save(folder)

    def _save(self, output_dir: str | Path | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(unwrap(self.model), folder, state_dict)
        processor = self.processing_class or getattr(getattr(self, "data_collator", None), "tokenizer", None)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(str(folder))
        (folder / "training_args.json").write_text(self.args.to_json_string() + "\n", encoding="utf-8")

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Write ``checkpoint-<step>`` whole, then let older ones go."""
        target = checkpoint_path(self._run_directory(), self.state.global_step)
        if self.state.best_global_step is not None:
            best = checkpoint_path(self._run_directory(), self.state.best_global_step)
            if best.is_dir() or best == target:
                self.state.best_model_checkpoint = str(best)
        write_whole(target, self._write_checkpoint)
        for gone in rotate(self._run_directory(), self.args.save_total_limit, target, self.state.best_model_checkpoint):
            logger.info("Deleted %s (save_total_limit=%s).", gone.name, self.args.save_total_limit)

    def _run_directory(self) -> Path:
        return Path(self.args.output_dir)

    def _write_checkpoint(self, folder: Path) -> None:
        self.engine.rest_weights()
        self.save_model(str(folder), _internal_call=True)
        if not self.args.save_only_model:
            self._write_training_state(folder)
        self.state.stateful_callbacks = callback_states([*self.callback_handler.callbacks, self.control])
        self.state.save_to_json(folder / "trainer_state.json")

    def _write_training_state(self, folder: Path) -> None:
        tensors, optimizer = flatten_optimizer(self.optimizer.state_dict(), self._optimizer_parameter_names())
        random_tensors, random_numbers = random_state()
        scaler = self.engine.precision.scaler
        rest = {
            "optimizer": optimizer,
            "scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": random_numbers,
            "data": self._feed.position(),
            "loss": self.engine.meter.state_dict(),
            "last_step": self.engine.last_step(),
        }
        save_training_state(folder, tensors, random_tensors, rest)

    def _optimizer_parameter_names(self) -> list[str]:
        """Name of each parameter in the order in which the optimizer numbers them."""
        names = {id(p): name for name, p in unwrap(self.model).named_parameters()}
        groups = self.optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        return [names.get(id(p), f"unnamed.{index}") for index, p in enumerate(parameters)]

    # ---- reading back

    def _resolve_checkpoint(self, wanted: str | Path | bool | None) -> Path | None:
        """The folder to resume from; ``True`` means the newest of this run."""
        if wanted is None or wanted is False:
            return None
        if wanted is True:
            found = get_last_checkpoint(self._run_directory())
            if found is None:
                raise ValueError(
                    f"resume_from_checkpoint=True, but {self._run_directory()} holds no checkpoint. "
                    "Start with train() or pass the path of a checkpoint-N folder."
                )
            return Path(found)
        folder = Path(wanted)
        if not (folder / "trainer_state.json").is_file():
            raise ValueError(f"{folder} is not a checkpoint: it has no trainer_state.json. Pass a checkpoint-N folder.")
        return folder

    def _load_from_checkpoint(self, resume_from_checkpoint: str | Path, model: nn.Module | None = None) -> None:
        """Weights of a checkpoint into the model."""
        load_weights(unwrap(model or self.model), resume_from_checkpoint)

    def _load_training_state(self, folder: Path) -> dict[str, Any]:
        """Optimizer, schedule and scaler of a checkpoint; returns the rest (random state, data position)."""
        tensors, random_tensors, rest = load_training_state(folder)
        optimizer = unflatten_optimizer(tensors, rest["optimizer"], self._optimizer_parameter_names())
        self.optimizer.load_state_dict(optimizer)
        if self.lr_scheduler is not None and rest["scheduler"] is not None:
            self.lr_scheduler.load_state_dict(rest["scheduler"])
        if self.engine.precision.scaler is not None and rest["scaler"] is not None:
            self.engine.precision.scaler.load_state_dict(rest["scaler"])
        self.engine.meter.load_state_dict(rest["loss"], self.engine.device)
        self.engine.restore_last_step(rest["last_step"])
        return {"data": rest["data"], "random": (random_tensors, rest["random"])}

    def _restore_random_state(self, random: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
        set_random_state(*random)

    def _restore_callbacks(self, saved: dict[str, Any]) -> None:
        """Give callbacks back what they had counted; their settings too, when the arguments ask for it."""
        for callback in self.callback_handler.callbacks:
            states = saved.get(type(callback).__name__)
            if states is None or not hasattr(callback, "state"):
                continue
            state = states.pop(0) if isinstance(states, list) else states
            vars(callback).update(state.get("attributes", {}))
            if self.args.restore_callback_states_from_checkpoint:
                vars(callback).update(state.get("args", {}))

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if best is None:
            logger.warning("No checkpoint was saved at the best evaluation; the trainer keeps the last model.")
            return
        logger.info(
            "Loading the best model from %s (%s = %s).", best, self.args.metric_for_best_model, self.state.best_metric
        )
        self._load_from_checkpoint(best)
