"""Short trainings of copies: the real loop on the user's model and first samples, with one thing changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainwright.engines.torch.acceleration.proof import exact_products, nothing_dropped
from trainwright.proving.copies import TrainerCopy, copied, let_go_afterwards
from trainwright.proving.formats import all_in
from trainwright.proving.material import UPDATES, GivenBatches, Material
from trainwright.proving.record import Record, Recorder, compare, every_pass_within
from trainwright.proving.result import Allowed
from trainwright.training.setup import Setup

#: A step as plain as it can be: what a row is about is switched on in that row.
_PLAIN: dict[str, Any] = {
    "acceleration": "off",
    "backend": None,
    "bf16": False,
    "bf16_full_eval": False,
    "deepspeed": None,
    "fp16": False,
    "fp16_full_eval": False,
    "fsdp": None,
    "fsdp_config": None,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "lr_scheduler_kwargs": None,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "max_steps": UPDATES,
    "max_tokens_per_batch": None,
    "micro_batch": None,
    "neftune_noise_alpha": None,
    "tensor_parallel_size": 1,
    "torch_compile": False,
    "torch_compile_backend": None,
    "torch_compile_mode": None,
    "train_sampling_strategy": "random",
    "use_liger_kernel": False,
    "warmup_steps": 0,
}
#: The share by which losses and gradients may differ, by format: far more than rounding, far less than a mistake.
_SHARES = {torch.float64: (1e-10, "rounding in float64"), torch.float32: (1e-4, "rounding in float32")}
#: Where ``count_targets`` of the user's gives a sum in float32.
_NARROW_COUNTS = (1e-6, "rounding in count_targets, which is in float32")

Within = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Way:
    """How a short training is done: what is changed about the plain one."""

    settings: dict[str, Any] = field(default_factory=dict)
    #: Batches that each update's samples are given in.
    pieces: int = 1
    #: What is done to each batch.
    change: Callable[[Any], Any] | None = None
    #: Around each of the passes.
    within: Within | None = None
    nudge: float = 0.0
    #: Looks at the copy before it trains.
    look: Callable[[TrainerCopy], AbstractContextManager[None]] | None = None
    #: This process and the number of all of them: its part of each update.
    process: tuple[int, int] = (0, 1)


@dataclass
class Stage:
    """A place where copies of one Trainer train, and what plain trainings gave there."""

    source: Setup
    material: Material
    folder: Path
    #: The format in which steps are compared.
    dtype: torch.dtype
    _references: dict[tuple[torch.dtype, str], Record] = field(default_factory=dict)
    _allowed: dict[torch.dtype, Allowed] = field(default_factory=dict)
    _trainings: int = 0
    #: Whether targets are counted in a format with more rounding than float64.
    _counts_narrowly: bool = False
    #: Seconds of the last plain training.
    seconds: float = 0.0

    def train(self, way: Way, dtype: torch.dtype | None = None) -> Record:
        """Train a copy in this way for a few updates."""
        with let_go_afterwards(self.source):
            return self._train(way, dtype or self.dtype)

    def _train(self, way: Way, dtype: torch.dtype) -> Record:
        batches = self._batches_of(way)
        self._trainings += 1
        settings = {
            **_PLAIN,
            "per_device_train_batch_size": max(1, self.material.rows[0] // way.pieces),
            "gradient_accumulation_steps": way.pieces // way.process[1],
            **way.settings,
        }
        copy = copied(self.source, settings, str(self.folder / f"training-{self._trainings}"), dtype)
        copy.trainer.get_train_dataloader = lambda: GivenBatches(batches, dtype)
        copy.trainer.count_targets = partial(self._counted, copy.trainer.count_targets)
        # Its weights are what is compared.
        copy.setup.model_init = None
        recorder = Recorder(copy.setup, nudge=way.nudge)
        copy.setup.callbacks.add_callback(recorder)
        every_pass_within(copy.setup.engine, partial(_computed, dtype, self.source.args.device, way.within))
        with ExitStack() as around:
            around.enter_context(nothing_dropped(copy.setup.model))
            if way.look is not None:
                around.enter_context(way.look(copy))
            copy.trainer.train()
        return recorder.record

    def _counted(self, count_targets: Callable[[Any], Any], batch: Any) -> Any:
        """What ``count_targets`` says, in a format of its own: shares of a step are in that of a tensor."""
        found = count_targets(batch)
        if not isinstance(found, torch.Tensor):
            return found
        if not found.is_floating_point():
            return int(found)
        self._counts_narrowly |= found.dtype != torch.float64
        return found.double()

    def _batches_of(self, way: Way) -> list[Any]:
        rank, processes = way.process
        updates = [update[rank::processes] for update in self.material.batches(way.pieces)]
        change = way.change or (lambda batch: batch)
        return [change(batch) for update in updates for batch in update]

    def reference(self, dtype: torch.dtype | None = None, **settings: Any) -> Record:
        """The plain training, with settings that both of a comparison have."""
        key = (dtype or self.dtype, repr(sorted(settings.items())))
        if key not in self._references:
            start = time.perf_counter()
            self._references[key] = self.train(Way(settings), dtype)
            self.seconds = time.perf_counter() - start
        return self._references[key]

    def allowed(self, dtype: torch.dtype | None = None) -> Allowed:
        """How far another training may be from the plain one.

        What an optimizer makes of rounding depends on it, and on the parameter (Adam divides small gradients by
        themselves), so it is tried: gradients are changed by a hundredth of what they may differ by, and weights may
        differ by ten times as much as they do then.
        """
        dtype = dtype or self.dtype
        if dtype not in self._allowed:
            plain = self.reference(dtype)
            share, why = _SHARES[dtype]
            if self._counts_narrowly and share < _NARROW_COUNTS[0]:
                share, why = _NARROW_COUNTS
            nudged = compare(self.train(Way(nudge=share / 100), dtype), plain).weights
            self._allowed[dtype] = Allowed(share, {name: max(share, 10 * size) for name, size in nudged.items()}, why)
        return self._allowed[dtype]


@contextmanager
def _computed(dtype: torch.dtype, device: torch.device, within: Within | None) -> Iterator[None]:
    with ExitStack() as around:
        around.enter_context(exact_products())
        if device.type == "cuda":
            # Convolutions take shortcuts of their own.
            cudnn = torch.backends.cudnn
            around.enter_context(cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=False))
        around.enter_context(all_in(dtype))
        if within is not None:
            around.enter_context(within())
        yield
