"""PyMarlin's place for data preparation."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from trainwright.compat.pymarlin.utils.distributed import (
    DistributedPreprocessArguments,
    fetch_ranks_from_azureml_preprocess,
)


class DataProcessor(ABC):
    """One task of data preparation."""

    #: Which of several machines this is; None takes it from the environment.
    distrib_args: DistributedPreprocessArguments | None = None

    def __init__(self, distrib_args: DistributedPreprocessArguments | None = None) -> None:
        self.distrib_args = distrib_args

    @abstractmethod
    def process(self, *args: Any, **kwargs: Any) -> Any:
        """Do it."""

    def analyze(self, *args: Any, **kwargs: Any) -> Any:  # noqa: B027 - optional
        """Look at the result; optional."""

    def process_data(self, *args: Any) -> Any:
        """``process``, then ``analyze``; returns the former's result."""
        result = self.process(*args)
        self.analyze()
        return result

    def multi_process_data(self, *args: Any, process_count: int = 1) -> list[Any]:
        """``process`` for each element of the lists among ``args``, in several processes; the results joined.

        Other arguments, and lists of one element, are given to every call. On several machines each does its part of
        the lists; one that is left without gets an empty list. Results that cannot be joined (None, numbers) are
        returned as they are.
        """
        self._set_ranks()
        joined = _spread(self, self._collect_params(*args), process_count)
        self.analyze()
        return joined

    def _set_ranks(self) -> None:
        if self.distrib_args is None:
            self.distrib_args = fetch_ranks_from_azureml_preprocess()

    def _collect_params(self, *args: Any) -> list[list[Any]]:
        """Each argument as a list with one element for each call."""
        lists = _checked_lists(args)
        # A single list of one element is the first machine's too.
        calls = max(len(self._of_this_machine(value)) for value in lists)
        own = [self._of_this_machine(value) if isinstance(value, list) and len(value) > 1 else value for value in args]
        return _equally_long(own, calls)

    def _of_this_machine(self, values: list[Any]) -> list[Any]:
        ranks = self.distrib_args or DistributedPreprocessArguments()
        machine = ranks.global_rank // ranks.local_size if ranks.node_rank is None else ranks.node_rank
        block = max(len(values) // ranks.node_count, 1)
        return [value for place, value in enumerate(values) if place // block % ranks.node_count == machine]


class DataInterface(ABC):
    """Gives out datasets."""

    def __init__(self, distrib_args: object = None) -> None:
        self.distrib_args = distrib_args

    def setup_datasets(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027 - optional
        """Prepare the datasets; optional."""

    def process_data(self, data_processor: DataProcessor, *args: object) -> Any:
        """PyMarlin's older way to call a processor: ``process``, then ``analyze`` with the result."""
        result = data_processor.process(*args)
        data_processor.analyze(result)
        return result

    def multi_process_data(self, data_processor: DataProcessor, *args: object, process_count: int = 1) -> list[Any]:
        """PyMarlin's older way to :meth:`DataProcessor.multi_process_data`."""
        joined = _spread(data_processor, _equally_long(args, max(map(len, _checked_lists(args)))), process_count)
        data_processor.analyze(joined)
        return joined

    @abstractmethod
    def get_train_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """The training data."""

    @abstractmethod
    def get_val_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """The validation data."""

    def get_test_dataset(self, *args: object, **kwargs: object) -> Any:  # noqa: B027 - optional
        """The test data; optional."""


def _checked_lists(args: Sequence[Any]) -> list[list[Any]]:
    """Those that say how many calls there are."""
    lists = [value for value in args if isinstance(value, list)]
    if not lists:
        raise ValueError("multi_process_data needs a list among its arguments: what is to be spread over processes?")
    spread = [value for value in lists if len(value) != 1]
    if len({len(value) for value in spread}) > 1:
        raise ValueError("multi_process_data needs lists of equal length (or of length 1).")
    return spread or lists


def _equally_long(args: Sequence[Any], calls: int) -> list[list[Any]]:
    return [value if isinstance(value, list) and len(value) != 1 else _repeated(value, calls) for value in args]


def _repeated(value: object, count: int) -> list[Any]:
    return (value if isinstance(value, list) else [value]) * count


def _spread(data_processor: DataProcessor, lists: list[list[Any]], process_count: int) -> list[Any]:
    calls = list(zip(*lists, strict=True))
    if process_count == 1:
        results = [data_processor.process(*call) for call in calls]
    else:
        with multiprocessing.get_context("spawn").Pool(process_count) as pool:
            results = pool.starmap(data_processor.process, calls)
    if not all(map(_has_items, results)):
        # Tasks that leave files behind, or count, and nothing to join.
        return results
    return [item for result in results for item in result]


def _has_items(result: object) -> bool:
    # Not isinstance(result, Iterable): a dataset may have no more than __getitem__.
    try:
        iter(result)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True
