"""What is noted of a training while it runs: losses, times, batches, memory, weights."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.core.callback import TrainerCallback
from trainwright.training.hooks import is_overridden
from trainwright.trying.plan import OBSERVED, OURS, THEIRS, WEIGHTS, Plan, kill_at, newest_checkpoint

#: Seconds that a kill waits for a checkpoint that is still being written.
_PATIENCE = 60.0
_LOSS_METHODS = ("compute_loss", "training_step")


class Recorder(TrainerCallback):
    """A callback that notes what happens, and kills its process when the plan says so."""

    #: Ours does not look whether this callback has changed the model.
    _leaves_model_alone = True

    def __init__(self, plan: Plan, resume_from: str) -> None:
        self.plan, self.resume_from = plan, resume_from
        #: The process that is observed; one that it forks has this recorder too.
        self.process = os.getpid()
        self.facts: dict[str, Any] = {"library": plan.library, "losses": {}, "ends": {}, "batches": {}, "saves": []}
        self._trainer: Any = None
        self._batches: list[Any] = []
        self._loss: Tensor | None = None
        #: Seconds that observing has taken: they are not the library's.
        self._spent = 0.0

    def now(self) -> float:
        """Seconds on a clock that stands still while something is noted."""
        return time.perf_counter() - self._spent

    # ---- called by the wrapped methods

    def begin(self, trainer: Any, files: list[str]) -> None:
        """Called by ``train()`` before it does anything."""
        self._trainer = trainer
        self.facts |= {"outcome": "stopped in training", "files": files, "train_called": self.now()}

    def finish(self) -> None:
        """Called when ``train()`` has returned."""
        facts, model = self.facts, self._trainer.model
        _wait_for_device(self._trainer.args.device)
        facts["train_returned"] = self.now()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        facts["peak_rss"] = peak if sys.platform == "darwin" else peak * 1024
        if torch.cuda.is_available():
            facts["peak_cuda"] = torch.cuda.max_memory_allocated()
        if not self.plan.probe:
            _write_weights(model, Path(self.plan.folder) / WEIGHTS)
        self.end("trained")

    def end(self, outcome: str, **more: Any) -> None:
        """Write what was noted."""
        self.facts |= {"outcome": outcome, **more}
        for step, prints in self.facts["batches"].items():
            self.facts["batches"][step] = [_as_text(one) for one in prints]
        (Path(self.plan.folder) / OBSERVED).write_text(json.dumps(self.facts), encoding="utf-8")

    # ---- events

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        began = time.perf_counter()
        trainer, facts = self._trainer, self.facts
        facts |= {"steps": args.max_steps, "start_step": state.global_step, "accumulation": _accumulation(args)}
        facts |= {"device": _device_name(args.device), "batch_size": args.per_device_train_batch_size}
        facts |= {"seed": args.seed, "workers": args.dataloader_num_workers, "model": type(model).__name__}
        facts |= {"dropout": has_dropout(model), "weights": _as_text(_row_sums(dict(model.named_parameters())))}
        if self.plan.library == THEIRS:
            self._wrap_training_step(trainer)
        else:
            self._wrap_record_loss(trainer.engine)
        self._spent += time.perf_counter() - began

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        # What the device has still to do belongs to this step, not to noting it.
        _wait_for_device(args.device)
        began = time.perf_counter()
        self.facts["ends"][step] = self.now()
        self.facts["batches"][step] = [one["sums"] for one in self._batches]
        self.facts.setdefault("samples", {})[step] = sum(one["samples"] for one in self._batches)
        tokens = [one["tokens"] for one in self._batches]
        if None not in tokens:
            self.facts.setdefault("tokens", {})[step] = sum(tokens)
        self._batches = []
        if self._loss is not None:
            self.facts["losses"][step], self._loss = self._loss.item(), None
        if self.plan.killed and step >= kill_at(args.max_steps) > 0:
            self._die()
        self._spent += time.perf_counter() - began

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            # Where both are noted before: a script's own log() may round them, or leave them out.
            self.facts["losses"].setdefault(state.global_step, float(logs["loss"]))
        if logs and logs.get("grad_norm") is not None:
            self.facts.setdefault("gradient_norms", {})[state.global_step] = float(logs["grad_norm"])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.facts["saves"].append(state.global_step)

    # ---- noting

    def _wrap_training_step(self, trainer: Any) -> None:
        original = trainer.training_step

        def training_step(model: Any, inputs: Any, *words: Any, **named: Any) -> Any:
            self.note_batch(inputs)
            loss = original(model, inputs, *words, **named)
            part = loss.detach().float()
            self._loss = part if self._loss is None else self._loss + part
            return loss

        trainer.training_step = training_step

    def _wrap_record_loss(self, engine: Any) -> None:
        original = engine.record_loss

        def record_loss(loss: Any) -> None:
            original(loss)
            self._loss = None if loss is None else loss.detach().float()

        vars(engine)["record_loss"] = record_loss

    def note_batch(self, batch: Any) -> None:
        """Called with each batch before it is trained on."""
        began = time.perf_counter()
        tensors = _tensors_of(batch)
        ids = tensors.get("input_ids")
        samples = next((len(one) for one in tensors.values() if one.ndim), 0)
        tokens = None if ids is None else ids.numel()
        self._batches.append({"sums": _row_sums(tensors), "samples": samples, "tokens": tokens})
        if self.plan.probe and self.plan.library == OURS and not self.facts["ends"]:
            self.facts.setdefault("own_loss", []).append(own_loss(self._trainer, batch))
        self._spent += time.perf_counter() - began

    def _die(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while newest_checkpoint(self.plan.output_dir) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.end("killed")
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_device(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _tensors_of(batch: Any) -> dict[str, Tensor]:
    if isinstance(batch, Mapping):
        named = batch.items()
    else:
        named = ((str(n), one) for n, one in enumerate(batch if isinstance(batch, (tuple, list)) else [batch]))
    return {str(name): one for name, one in sorted(named) if isinstance(one, Tensor)}


def _row_sums(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A short print of tensors, made where they lie: nothing waits for the device."""
    found = {}
    for name, one in tensors.items():
        kind = torch.float64 if one.is_floating_point() and one.device.type != "mps" else None
        rows = one.detach().flatten(1) if one.ndim > 1 else one.detach().reshape(-1, 1)
        # Squares too: rows of the same tokens in another order have the same sum.
        found[name] = rows.sum(1, dtype=kind), (rows * _places(rows)).sum(1, dtype=kind)
    return {name: torch.stack(sums) for name, sums in found.items()}


def _places(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[1] + 1, device=rows.device) % 31


def _as_text(sums: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, one in sorted(sums.items()):
        digest.update(f"{name} {one.shape} {one.tolist()}".encode())
    return digest.hexdigest()[:16]


def _accumulation(args: Any) -> int:
    return int(args.gradient_accumulation_steps)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def has_dropout(model: nn.Module) -> bool:
    """Whether the model draws random numbers when it is trained: in a layer, or as its configuration says."""
    config = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    return any(
        getattr(one, "p", 0) for one in model.modules() if isinstance(one, nn.modules.dropout._DropoutNd)
    ) or any(isinstance(value, float) and value > 0 for name, value in settings.items() if "drop" in name)


def own_loss(trainer: Any, batch: Any) -> tuple[float, int] | None:
    """The loss that the model itself returns for a batch, and how many targets it is the mean of."""
    changed = trainer.compute_loss_func is not None or trainer.label_smoother
    if changed or not isinstance(batch, Mapping) or any(is_overridden(trainer, name) for name in _LOSS_METHODS):
        return None
    with torch.no_grad():
        outputs = trainer.model(**trainer._prepare_inputs(batch))
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    targets = trainer.count_targets(batch)
    return None if loss is None else (float(loss.mean()), int(targets or 1))


def _write_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    # Clones: safetensors refuses tensors that share memory, as tied embeddings do.
    save_file({name: one.detach().cpu().contiguous().clone() for name, one in model.state_dict().items()}, path)
