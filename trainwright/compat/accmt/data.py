"""Data as the Trainer's arguments and the module want it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from trainwright.compat.accmt.modules import AcceleratorModule
from trainwright.compat.accmt.settings import Settings
from trainwright.config.warnings import TrainwrightWarning
from trainwright.data.composing import ComposedCollator, ComposedOrder
from trainwright.data.curriculum import Curriculum, StepsCurriculum
from trainwright.data.order import RandomOrder

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class DataChoices:
    """How batches are made."""

    train_collate: Collate
    val_collate: Collate
    train_sampler: Any
    val_sampler: Any
    shuffle_validation: bool

    def train_order(self, length: int, seed: int) -> Any:
        """The order of training samples; None for the usual one."""
        return _order(self.train_sampler, length, seed)

    def val_order(self, length: int, seed: int) -> Any:
        """The order of validation samples; None for their own."""
        chosen = _order(self.val_sampler, length, seed)
        return RandomOrder(length, seed) if chosen is None and self.shuffle_validation else chosen


def _order(sampler: object, length: int, seed: int) -> Any:
    if sampler is None:
        return None
    if isinstance(sampler, Sampler):
        return sampler
    parts = list(sampler) if isinstance(sampler, (list, tuple)) else [sampler]
    return ComposedOrder(parts, length, seed)


def data_choices(settings: Settings, module: AcceleratorModule) -> DataChoices:
    """What the Trainer was told and, where it has one of its own, the module's collator."""
    later = settings.later
    return DataChoices(
        train_collate=_collator(module, "collate_fn_train", settings.collate_fn, later.collate_fn_train),
        val_collate=_collator(module, "collate_fn_val", settings.collate_fn, later.collate_fn_val),
        train_sampler=_one_of("sampler", settings.sampler, "sampler_train", later.sampler_train),
        val_sampler=later.sampler_val,
        shuffle_validation=settings.shuffle_validation,
    )


def check_train_choices(settings: Settings, train: object) -> None:
    """What was said about the order and the making of batches must have somebody to act on."""
    sampler = settings.sampler if settings.later.sampler_train is None else settings.later.sampler_train
    if isinstance(train, Curriculum) and sampler is not None:
        raise ValueError("sampler chooses among one data set, and a curriculum has several: leave it out.")
    collate = settings.collate_fn if settings.later.collate_fn_train is None else settings.later.collate_fn_train
    given = [name for name, value in (("sampler", sampler), ("collate_fn", collate)) if value is not None]
    if isinstance(train, DataLoader) and given:
        warnings.warn(
            f"{' and '.join(given)} do not act on a DataLoader, which has its own: give it the data set's.",
            TrainwrightWarning,
            stacklevel=3,
        )


def _one_of(name: str, value: object, other: str, instead: object) -> Any:
    if value is not None and instead is not None:
        raise ValueError(f"{name} and {other} say the same thing twice: keep one.")
    return instead if value is None else value


def _collator(module: AcceleratorModule, name: str, shared: object, own: object) -> Collate:
    for method in (name, "collate_fn"):
        if getattr(type(module), method) is not getattr(AcceleratorModule, method) or method in vars(module):
            return getattr(module, method)
    chosen = _one_of("collate_fn", shared, name, own)
    if chosen is None:
        return default_collate
    if isinstance(chosen, (list, tuple)):
        return ComposedCollator(chosen)
    if not callable(chosen):
        raise ValueError(f"collate_fn={chosen!r} must be a function, or a list of functions.")
    return chosen


def training_data(module: AcceleratorModule, dataset: object) -> Any:
    """What to train on: the module's own loader before the data set that ``fit`` got."""
    loader = _from_hook(module, "get_train_dataloader", dataset)
    if loader is not None:
        if not isinstance(loader, DataLoader):
            raise ValueError(
                f"{type(module).__name__}.get_train_dataloader returned a {type(loader).__name__}; it must return a "
                "DataLoader (several data sets after one another: fit with a StepsCurriculum)."
            )
        return loader
    if dataset is None:
        raise ValueError(
            f"fit needs data: pass train_dataset, or define get_train_dataloader on {type(module).__name__}."
        )
    if isinstance(dataset, list) and dataset and all(_is_stage(item) for item in dataset):
        return _curriculum(dataset)
    if not isinstance(dataset, Curriculum):
        _refuse_what_is_no_data("train_dataset", dataset)
    return dataset


def _is_stage(item: object) -> bool:
    if not isinstance(item, tuple) or len(item) not in (2, 3) or not isinstance(item[0], int):
        return False
    return _is_data(item[1])


def _curriculum(stages: list[tuple[Any, ...]]) -> Curriculum:
    """Pairs of the step at which a data set ends, and the data set."""
    curriculum, before = StepsCurriculum(), 0
    for end, dataset, *options in stages:
        curriculum.add(
            dataset, steps=-1 if end == -1 else end - before, dataloader_kwargs=options[0] if options else None
        )
        before = end
    return curriculum


def validation_data(module: AcceleratorModule, dataset: object) -> tuple[Any, dict[str, Any]]:
    """What to validate on (None, one, or a dict by name), and the user's keys by these names."""
    found = _from_hook(module, "get_validation_dataloader", dataset)
    found = dataset if found is None else found
    if isinstance(found, Mapping):
        sets = dict(found)
    elif isinstance(found, list) and found and all(_is_data(item) for item in found):
        sets = dict(enumerate(found))
    else:
        if found is not None:
            _refuse_what_is_no_data("val_dataset", found)
        return found, {}
    by_text: dict[str, Any] = {}
    for key in sets:
        if by_text.setdefault(str(key), key) is not key:
            raise ValueError(f"val_dataset has {by_text[str(key)]!r} and {key!r}, which are one name here: rename one.")
    if not sets:
        raise ValueError("val_dataset={} names no data set: leave it out, or put one in.")
    for key, value in sets.items():
        _refuse_what_is_no_data(f"val_dataset[{key!r}]", value)
    return {str(key): value for key, value in sets.items()}, {str(key): key for key in sets}


def _is_data(item: object) -> bool:
    """Whether a list's entry is a data set or loader, and not a sample."""
    return isinstance(item, (Dataset, DataLoader)) or hasattr(item, "column_names")


def _refuse_what_is_no_data(name: str, data: Any) -> None:
    if isinstance(data, (str, bytes)) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise ValueError(f"{name} must be a data set, not a {type(data).__name__}.")
    if hasattr(data, "__len__") and not isinstance(data, DataLoader) and len(data) == 0:
        raise ValueError(f"{name} is empty.")


def _from_hook(module: AcceleratorModule, name: str, dataset: object) -> Any:
    hook = getattr(module, name)
    takes_dataset = bool(inspect.signature(hook).parameters)
    return hook(dataset) if takes_dataset else hook()
