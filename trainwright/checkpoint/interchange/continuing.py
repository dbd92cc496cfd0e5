"""What a run that goes on from an imported checkpoint has to work out, now that the model is there.

Other libraries keep an optimizer's parameters by number and the place in the data as a number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainwright.checkpoint.optimizer_state import MORE, SHARED, is_more, split_name
from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState

#: State that has its parameter's shape; others (Adafactor's rows and columns) have shapes of their own.
_FULL_SIZE = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum", "exp_inf"}
#: Entries of a schedule's state that have one number for each group.
_PER_GROUP = ("base_lrs", "_last_lr", "min_lrs", "max_lrs", "_init_lrs")


@dataclass(frozen=True)
class PresentOptimizer:
    """The optimizer that the imported state is for."""

    #: Names of its parameters in its own numbering, and how many are in each group.
    numbered: list[str]
    group_sizes: list[int]
    #: Every parameter of the model, in the model's order.
    shapes: Mapping[str, tuple[int, ...]]
    trained: list[str]
    decay: frozenset[str]


def with_names(
    tensors: dict[str, Tensor], rest: dict[str, Any], present: PresentOptimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An imported state with names for numbers and in the groups of ``present``; raises where it does not fit."""
    stored = rest["optimizer"]
    name_of = _names(stored, present)
    named: dict[str, Tensor] = {}
    name_now: dict[str, str] = {}
    for flat, tensor in tensors.items():
        if is_more(flat):
            named[flat], name_now[flat] = tensor, flat
            continue
        number, key = split_name(flat)
        name = name_of[int(number)]
        _check_shape(name, key, tensor, present)
        name_now[flat] = f"state.{name}.{key}"
        named[name_now[flat]] = tensor
    values = {name_of[int(number)]: entries for number, entries in stored["state"].items()}
    sources = group_sources(stored["param_groups"], name_of, present)
    shared = {name_now[name]: name_now[first] for name, first in stored.get(SHARED, {}).items()}
    # Of groups nothing is there: what is imported of them is plain.
    more = [{**one, "parameter": name_of[int(one["parameter"])]} for one in stored.get(MORE, ())]
    groups = in_groups_of(stored["param_groups"], sources, present)
    optimizer = {**stored, "state": values, "param_groups": groups, MORE: more, SHARED: shared}
    del optimizer["numbering"]
    scheduler = for_groups(rest["scheduler"], sources, len(stored["param_groups"]))
    return named, {**rest, "optimizer": optimizer, "scheduler": scheduler}


def for_groups(scheduler: dict[str, Any] | None, sources: list[int], count: int) -> dict[str, Any] | None:
    """A schedule's state for groups that come from those numbered ``sources`` out of ``count``."""
    if scheduler is None:
        return None
    lists = {key: scheduler[key] for key in _PER_GROUP if isinstance(scheduler.get(key), list)}
    return {**scheduler, **{k: [v[s] for s in sources] for k, v in lists.items() if len(v) == count}}


def transformers_order(trained: list[str], decay: frozenset[str] | set[str]) -> list[list[str]]:
    """Parameters as transformers' Trainer groups and numbers them: first those that decay, then the others."""
    return [[name for name in trained if name in decay], [name for name in trained if name not in decay]]


def _names(stored: dict[str, Any], present: PresentOptimizer) -> dict[int, str]:
    """The name behind each number."""
    groups = stored["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    sizes = [len(group["params"]) for group in groups]
    by_rule = transformers_order(present.trained, present.decay)
    if sizes == present.group_sizes:
        # The same groups: the script builds its optimizer as it did.
        names = present.numbered
    elif stored["numbering"] == "transformers" and sizes == [len(group) for group in by_rule]:
        names = [name for group in by_rule for name in group]
    elif sizes == [len(present.trained)]:
        names = present.trained
    elif sizes == [len(present.shapes)]:
        names = list(present.shapes)
    else:
        raise ValueError(
            f"The imported optimizer has groups of {sizes} parameters; this model trains {len(present.trained)}, in "
            f"groups of {present.group_sizes}. Build the same model with the same parameters frozen, or pass the same "
            "optimizer with Trainer(optimizers=...)."
        )
    return dict(zip(numbers, names, strict=True))


def _check_shape(name: str, key: str, tensor: Tensor, present: PresentOptimizer) -> None:
    wanted = present.shapes.get(name)
    if wanted is None or name not in present.numbered:
        raise ValueError(
            f"The imported optimizer has state for {name!r}, which this model does not train: unfreeze it."
        )
    if key in _FULL_SIZE and tuple(tensor.shape) != wanted:
        raise ValueError(
            f"The imported optimizer's {key} for {name!r} has shape {tuple(tensor.shape)}, the parameter has {wanted}: "
            "the model has other parameters, or lists them in another order, than the one that was saved."
        )


def group_sources(groups: list[dict[str, Any]], name_of: dict[int, str], present: PresentOptimizer) -> list[int]:
    """For each present group, a saved group whose settings it takes; raises where its members' settings differ."""
    source_of = {name_of[number]: index for index, group in enumerate(groups) for number in group["params"]}
    sources: list[int] = []
    start = 0
    for place, size in enumerate(present.group_sizes):
        members = sorted({source_of[name] for name in present.numbered[start : start + size]})
        start += size
        settings = [_settings(groups[index]) for index in members]
        for other in settings[1:]:
            _refuse_difference(settings[0], other)
        sources.append(members[0] if members else min(place, len(groups) - 1))
    return sources


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _refuse_difference(first: dict[str, Any], other: dict[str, Any]) -> None:
    for key, value in first.items():
        if other.get(key) != value:
            name = "lr" if key == "initial_lr" else key
            raise ValueError(
                f"The saved optimizer uses {name}={value} for some parameters and {name}={other.get(key)} for others, "
                "but this run has them in one group: make the groups as in the run that was saved."
            )


def in_groups_of(groups: list[dict[str, Any]], sources: list[int], present: PresentOptimizer) -> list[dict[str, Any]]:
    """Settings as the file has them, as transformers' own resume takes them too, for the present groups."""
    made: list[dict[str, Any]] = []
    start = 0
    for source, size in zip(sources, present.group_sizes, strict=True):
        made.append({**_settings(groups[source]), "params": list(range(start, start + size))})
        start += size
    return made


def place_after(steps: int, steps_per_epoch: int, accumulation: int, now: Mapping[str, Any]) -> dict[str, Any]:
    """The place in the data after ``steps`` updates, counted as transformers counts; ``now`` is a fresh feed's."""
    epoch, rest = divmod(steps, max(steps_per_epoch, 1))
    unknown = dict.fromkeys(("samples", "batches_of_all", "read", "last_batch", "stream"))
    return {**now, **unknown, "epoch": epoch, "batches": rest * accumulation}


def draw_as_a_loader_does() -> None:
    """One number from torch's generator on the CPU, as a DataLoader takes when a pass over it begins."""
    torch.empty((), dtype=torch.int64).random_()


class LoaderDraws(TrainerCallback):
    """Makes dropout on the CPU go on in an imported run as it would have gone on under transformers.

    There each epoch and each evaluation takes a seed for its loader from the generator that dropout draws from; our
    loaders leave it alone.
    """

    _is_internal = True

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        draw_as_a_loader_does()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        draw_as_a_loader_does()
