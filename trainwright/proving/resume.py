"""The row about resuming: the user's training, whole and broken off, to the same bits or not."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainwright.data.loader import has_length
from trainwright.proving.copies import TrainerCopy, copied, let_go_afterwards
from trainwright.proving.record import THE_LOSS, Record, Recorder, compare
from trainwright.proving.refusals import first_line, is_refusal
from trainwright.proving.result import Bounds, Row
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup

#: Steps that are trained where an epoch is longer, or nobody knows how long; samples at most in each of their batches.
STEPS, ROWS = 6, 8
#: An epoch is gone through where it has at most so many steps, and some steps of the next one.
_SHORT_EPOCH, _STEPS_AFTER_IT = 12, 4

_EXACT = Bounds(0.0, 0.0, 0.0, "a resume goes on with the same bits")


@dataclass(frozen=True)
class _Plan:
    settings: dict[str, Any]
    #: Samples of the data that are used, where it may be cut short.
    rows: int | None
    #: The step that is resumed after.
    after: int


def resume_row(source: Setup, folder: Path, seed: int) -> Row:
    """Train a few steps as the user would; the same, resumed after a step that ``seed`` chooses."""
    start = time.perf_counter()
    plan = _planned(source, folder / "planned", seed)
    name = f"resume after step {plan.after}"
    whole = _train(source, plan, folder / "whole")
    try:
        resumed = _train(source, plan, folder / "resumed", folder / "whole" / f"checkpoint-{plan.after}")
    except ValueError as error:
        if not is_refusal(error):
            raise
        # What began by itself and cannot go on: that is what this row is about.
        return Row(name, "fail", first_line(error), seconds=time.perf_counter() - start)
    why = _difference(whole, resumed, plan.after)
    if why is not None and whole.batches[plan.after :] == resumed.batches:
        again = _train(source, plan, folder / "again")
        if not _equal(whole, again) and again.batches == whole.batches and source.args.device.type != "cpu":
            return Row(name, "not tried", "this device gives other bits each time for the same steps")
        if not _equal(whole, again):
            why = "the same training from the beginning gives other numbers, too: something is drawn without a seed."
    found = compare(Record(resumed.losses, [], whole.start, resumed.weights), replace(whole, gradients=[]))
    if why is None:
        why = _said_by_the_training(source, plan, folder / "asked")
    weights = found.weights.get(found.weights_at)
    worst = found.weights_at if weights else THE_LOSS if found.loss else None
    return Row(
        name,
        "pass" if why is None else "fail",
        why,
        loss=found.loss,
        weights=weights,
        bounds=_EXACT,
        worst=worst if why is not None else None,
        seconds=time.perf_counter() - start,
    )


def _planned(source: Setup, folder: Path, seed: int) -> _Plan:
    """A short training over more than one epoch, where the data allows it."""
    args, hooks = source.args, source.hooks()
    size, accumulation = min(args.per_device_train_batch_size, ROWS), min(args.gradient_accumulation_steps, 2)
    settings: dict[str, Any] = {
        "dataloader_num_workers": 0,
        "dataloader_persistent_workers": False,
        "dataloader_prefetch_factor": None,
        "gradient_accumulation_steps": accumulation,
        "max_steps": STEPS,
        "per_device_train_batch_size": size,
        # It would take longer than everything else together.
        "torch_compile": False,
        "torch_compile_backend": None,
        "torch_compile_mode": None,
    }
    rows = None
    if not (is_overridden(hooks, "get_train_dataloader") or is_overridden(hooks, "_get_train_sampler")):
        # The last batch of an epoch a small one.
        rows = 2 * size * accumulation + size // 2 + 1
    steps, first = STEPS, 1
    loader = _copied(source, _Plan(settings, rows, 0), folder).trainer.get_train_dataloader()
    in_epoch = -(-len(loader) // accumulation) if has_length(loader) else None
    if in_epoch is not None and in_epoch <= _SHORT_EPOCH:
        # In the middle of the second epoch: what remembers earlier epochs shows there, and what remembers samples.
        steps, first = in_epoch + _STEPS_AFTER_IT, in_epoch + 1
    after = random.Random(seed).randrange(first, steps)
    settings |= {"max_steps": steps, "save_steps": after, "save_strategy": "steps"}
    return _Plan(settings, rows, after)


def _first(dataset: Any, count: int) -> Any:
    """The first samples of a dataset, if it can be cut short without changing what it is."""
    if dataset is None or not has_length(dataset) or len(dataset) <= count or hasattr(dataset, "set_epoch"):
        return dataset
    if isinstance(dataset, list):
        return dataset[:count]
    if hasattr(dataset, "select") and hasattr(dataset, "column_names"):
        return dataset.select(range(count))
    is_by_index = hasattr(dataset, "__getitem__") and not isinstance(dataset, torch.utils.data.IterableDataset)
    return _First(dataset, count) if is_by_index else dataset


class _First(torch.utils.data.Dataset[Any]):
    """The first samples of a dataset; everything else that is asked of it, or set, is the dataset's."""

    def __init__(self, dataset: Any, count: int) -> None:
        vars(self).update(_dataset=dataset, _count=count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name in ("_dataset", "_count"):
            # While it is being copied.
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)


def _train(source: Setup, plan: _Plan, folder: Path, checkpoint: Path | None = None, **settings: Any) -> Record:
    with let_go_afterwards(source):
        return _trained(_copied(source, plan, folder, **settings), checkpoint)


def _copied(source: Setup, plan: _Plan, folder: Path, **settings: Any) -> TrainerCopy:
    copy = copied(source, {**plan.settings, **settings}, str(folder))
    if plan.rows is not None:
        copy.setup.train_dataset = _first(copy.setup.train_dataset, plan.rows)
    return copy


def _trained(copy: TrainerCopy, checkpoint: Path | None) -> Record:
    recorder = Recorder(copy.setup, gradients=False)
    copy.setup.callbacks.add_callback(recorder)
    copy.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return recorder.record


def _equal(one: Record, other: Record) -> bool:
    same_weights = all(
        name in other.weights and torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items()
    )
    return same_weights and one.losses == other.losses


def _difference(whole: Record, resumed: Record, after: int) -> str | None:
    """What a resumed training did otherwise, or None."""
    for step, (one, other) in enumerate(zip(whole.batches[after:], resumed.batches, strict=False), after + 1):
        if one != other:
            return (
                f"from step {step} on other data is trained on: the sampler, the dataset or the collator remembers "
                "something that is in no checkpoint (a counter, an iterator, a generator outside of it). Make the "
                "order a function of the epoch (set_epoch), or draw from a torch.Generator that it holds."
            )
    if len(whole.batches) - after != len(resumed.batches):
        return f"{len(resumed.batches)} steps are left after a resume, and not {len(whole.batches) - after}."
    if _equal(whole, resumed):
        return None
    first = next((n for n, (a, b) in enumerate(zip(whole.losses, resumed.losses, strict=False), 1) if a != b), None)
    where = "weights" if first is None else f"losses from step {first} on"
    return (
        f"{where} differ although the data is the same: the model, the loss or the Trainer remembers something that is "
        "in no checkpoint (an attribute, a generator). Put it into a buffer, or return it from get_state()."
    )


def _said_by_the_training(source: Setup, plan: _Plan, folder: Path) -> str | None:
    """Why a training itself would refuse to call a resume exact; these few steps may not have shown it."""
    try:
        _train(source, plan, folder, exact="require", max_steps=1)
    except ValueError as error:
        if "would not be exact" not in str(error):
            raise
        return str(error).partition("would not be exact: ")[2] or str(error)
    return None
