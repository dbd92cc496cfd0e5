"""Samplers: rare classes more often, and batches of one's own making."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainwright.compat.accmt.hyperparameters import read_config
from trainwright.config.backends import rank_from_environment
from trainwright.data.balance import weights_by_class
from trainwright.data.order import DrawnOrder


class TemperatureSampler(DrawnOrder):
    """Draws samples so that a class with the share p of the data is drawn with a probability in proportion to p^(1/T).

    A temperature of 1 keeps the shares, a high one makes all classes nearly equal
    (https://arxiv.org/abs/1907.05019). As many samples are drawn in an epoch as there are, with repetition; each epoch
    draws anew, as a function of (seed, epoch). Give it to the Trainer as ``sampler``.

    Args:
        dataset: The training data, or any list of its samples in the same order.
        temperature: 1 or more.
        distribution: Samples of each class: a dict, or a file with it (JSON, YAML, or CSV with two columns); counted
            where it is not given.
        target_format: The class of a sample; by default its entry "label" or "target", or else its last.
        seed: Of the draws.
        use_threads: Makes no difference here.

    >>> sampler = TemperatureSampler([(0, "a")] * 90 + [(0, "b")] * 10, temperature=1000, seed=0)
    >>> sum(index >= 90 for index in sampler) > 30
    True
    """

    def __init__(
        self,
        dataset: Any,
        temperature: float,
        distribution: Mapping[Any, float] | str | Path | None = None,
        target_format: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        use_threads: bool = True,
    ) -> None:
        if not isinstance(temperature, (int, float)) or not temperature > 0:
            raise ValueError(f"temperature={temperature!r} must be a positive number.")
        samples = _samples(dataset)
        classes = [_plain((target_format or _last)(sample)) for sample in samples]
        if not classes:
            raise ValueError("TemperatureSampler needs samples, and the data set has none.")
        here = Counter(classes)
        counts = here if distribution is None else _counts_of(distribution, here)
        missing = next((name for name in here if name not in counts), None)
        if missing is not None:
            raise ValueError(f"distribution has no class {missing!r}; it has {', '.join(map(str, counts))}.")
        if not any(counts[name] for name in here):
            raise ValueError("distribution: the counts of all classes of the data are 0, so none could be drawn.")
        super().__init__(
            weights_by_class(classes, temperature, counts), torch.initial_seed() % 2**31 if seed is None else seed
        )


class CustomBatchSampler:
    """Derive batches of one's own from it, and give them to the Trainer as ``batch_sampler``.

    ``__iter__`` gives lists of indices; ``set_epoch(epoch)``, where there is one, is told the epoch.
    """

    def __init__(self) -> None:
        self.batch_size = rank_from_environment().world_size


def _samples(dataset: Any) -> Iterable[Any]:
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[place] for place in range(len(dataset)))
    return dataset


def _last(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return sample[next((key for key in ("label", "target") if key in sample), list(sample)[-1])]
    if isinstance(sample, (tuple, list)):
        return sample[-1]
    raise ValueError(
        f"TemperatureSampler does not know the class of a {type(sample).__name__}: give target_format=lambda sample: "
        "..."
    )


def _plain(value: Any) -> Any:
    """A class that may be counted: of tensors and numpy's numbers the number."""
    return value.item() if hasattr(value, "item") else value


def _counts_of(distribution: Mapping[Any, float] | str | Path, classes: Mapping[Any, int]) -> Mapping[Any, float]:
    """How many samples each class has, in the words of the data: in files of JSON and CSV every class is text."""
    found: Any = _read(distribution)
    if not isinstance(found, Mapping):
        raise ValueError(f"distribution must name a count for each class, not be a {type(found).__name__}.")
    for name, count in found.items():
        is_number = isinstance(count, (int, float)) and not isinstance(count, bool)
        if not is_number or not math.isfinite(count) or count < 0:
            raise ValueError(f"distribution: the count of {name!r} is {count!r}; it must be a number, 0 or more.")
    in_files = not isinstance(distribution, Mapping)
    by_text = {str(name): count for name, count in found.items()} if in_files else {}
    return {name: by_text[str(name)] for name in classes if str(name) in by_text} | dict(found)


def _read(distribution: Mapping[Any, float] | str | Path) -> Any:
    if isinstance(distribution, Mapping):
        return distribution
    path = Path(distribution)
    if path.suffix in (".json", ".yaml", ".yml"):
        return read_config(path)
    if path.suffix != ".csv":
        raise ValueError(f"distribution={str(path)!r}: it may be a dict, or a JSON, YAML or CSV file.")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row[-2:] for row in csv.reader(file) if len(row) >= 2]
    counts: dict[str, float] = {}
    for place, (name, count) in enumerate(rows):
        try:
            counts[name.strip()] = float(count)
        except ValueError:
            # The first may be a head line.
            if place:
                raise ValueError(f"distribution: {path} has {count!r} as the count of {name!r}.") from None
    return counts
