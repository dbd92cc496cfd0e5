"""``trainwright estimate``: memory per GPU for each way to spread an experiment, before any GPU is asked for."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.engines.torch.rehearsal.estimate import Estimate, estimate_memory
from trainwright.experiment.adapters import with_adapter
from trainwright.experiment.building import _trainer, arguments_for, training_rows, without_training
from trainwright.experiment.sources import first
from trainwright.experiment.tasks import task_kit
from trainwright.experiment.tasks.base import Given, Prepared
from trainwright.trainer.trainer import Trainer
from trainwright.training.memory import largest_batch

logger = logging.getLogger("trainwright")

#: Rows that are read to find a batch: enough for some of usual length.
_ROWS = 512
#: Not spread over processes here, whatever the experiment says: nothing is trained.
_ALONE = {"backend": None, "fsdp": None, "fsdp_config": None, "deepspeed": None, "parallelism_config": None}


@dataclass(frozen=True)
class Plan:
    """What was estimated, and for what."""

    estimates: list[Estimate]
    parameters: int
    trained: int
    #: Shape of each tensor in the batch that was tried.
    batch: dict[str, list[int]]
    #: Bytes that a GPU has, if known.
    memory: int | None
    gpus: int
    #: What the estimates leave out.
    left_out: list[str]

    def fits(self, estimate: Estimate) -> bool | None:
        """Whether it fits; None where the GPU's memory is not known."""
        return None if self.memory is None else estimate.total <= self.memory

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, sizes in bytes."""
        rows = [
            {
                **dataclasses.asdict(one),
                "allocated": one.allocated,
                "total": one.total,
                "fits": self.fits(one),
            }
            for one in self.estimates
        ]
        return {**dataclasses.asdict(self), "estimates": rows}


def estimate(loaded: Loaded, *, gpus: int = 1, memory: float | None = None) -> Plan:
    """Estimate every strategy for ``gpus`` of ``memory`` GiB each; by default, of what is in this machine."""
    if gpus < 1:
        raise ConfigError(f"--gpus {gpus}: at least 1.")
    if memory is not None and memory <= 0:
        raise ConfigError(f"--memory {memory}: how many GiB does one GPU have?")
    task, args = arguments_for(loaded)
    train, _ = training_rows(loaded, args)
    prepared = _prepared(task, Given(_not_pretrained(loaded), first(train, _ROWS)))
    prepared.train = prepared.encode(first(train, _ROWS))
    prepared.eval = None
    # A model that is evaluated in half precision is left where it is until then; this one has nothing to be moved.
    alone = dataclasses.replace(without_training(args), **_ALONE, fp16_full_eval=False, bf16_full_eval=True)
    trainer = _trainer(loaded, alone, prepared, training=False)
    batch = _batch(trainer)
    try:
        found = estimate_memory(
            prepared.model,
            args,
            batch,
            gpus=gpus,
            loss=trainer.compute_loss,
        )
    except ValueError as error:
        raise ConfigError(f"{loaded.document.source}: {error}") from error
    parameters = list(prepared.model.parameters())
    return Plan(
        found,
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        {name: list(value.shape) for name, value in _named(batch).items() if isinstance(value, Tensor)},
        _memory_here() if memory is None else int(memory * 2**30),
        gpus,
        _left_out(loaded, args),
    )


def _not_pretrained(loaded: Loaded) -> Loaded:
    """The same experiment with a model whose weights are not read: only their sizes matter."""
    model = dataclasses.replace(loaded.experiment.model, pretrained=False)
    return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, model=model))


def _prepared(task: str, given: Given) -> Prepared:
    kit = task_kit(task)
    try:
        with torch.device("meta"):
            return _with_adapter(kit.prepare(given), task, given.loaded)
    except ConfigError:
        raise
    except (RuntimeError, NotImplementedError):
        # Some constructors look at numbers they just made: such a model is made for real.
        return _with_adapter(kit.prepare(given), task, given.loaded)
    except ValueError as error:
        raise ConfigError(f"{given.loaded.where(('data',))}: {error}") from error


def _with_adapter(prepared: Prepared, task: str, loaded: Loaded) -> Prepared:
    prepared.model = with_adapter(loaded, task, prepared.model)
    return prepared


def _batch(trainer: Trainer) -> Any:
    """The largest of a few batches; a mask that masks nothing is left out, since attention does without it too."""
    with _quiet():
        loader = trainer.get_train_dataloader()
        batch = largest_batch(trainer.train_dataset, trainer.args.length_column_name, loader)
    batch = next(iter(loader)) if batch is None else batch
    mask = _named(batch).get("attention_mask")
    if isinstance(mask, Tensor) and bool(mask.all()):
        batch = {name: value for name, value in batch.items() if name != "attention_mask"}
    return batch


@contextmanager
def _quiet() -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _named(batch: object) -> dict[str, Any]:
    if hasattr(batch, "items"):
        return dict(batch.items())
    values = batch if isinstance(batch, (list, tuple)) else [batch]
    return {str(index): value for index, value in enumerate(values)}


def _memory_here() -> int | None:
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def _left_out(loaded: Loaded, args: Any) -> list[str]:
    experiment = loaded.experiment
    found = []
    if experiment.recipe is not None:
        found.append("what the recipe adds")
    if experiment.teacher is not None or experiment.distill_teacher is not None:
        found.append("the teacher")
    if "ema" in experiment.callbacks:
        found.append("the averaged copy of the weights (ema)")
    if args.memory_budget is not None:
        found.append(f"what memory_budget={args.memory_budget} saves: figures are for everything kept")
    return found
