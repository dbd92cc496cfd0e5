"""PyMarlin's place for data preparation."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from typing import Any


class DataProcessor(ABC):
    """One task of data preparation."""

    @abstractmethod
    def process(self, *args: object) -> Any:
        """Do it."""

    def analyze(self, *args: object) -> Any:  # noqa: B027 - optional
        """Look at the result; optional."""


class DataInterface(ABC):
    """Gives out datasets, and runs processors."""

    def __init__(self, distrib_args: object = None) -> None:
        self.distrib_args = distrib_args

    def setup_datasets(self) -> None:  # noqa: B027 - optional
        """Prepare the datasets; optional."""

    def process_data(self, data_processor: DataProcessor, *args: object) -> Any:
        """``process``, then ``analyze``; returns the former's result."""
        result = data_processor.process(*args)
        data_processor.analyze(result)
        return result

    def multi_process_data(self, data_processor: DataProcessor, *args: object, process_count: int = 1) -> list[Any]:
        """``process`` for each element of the lists among ``args``, in several processes; the results joined.

        Other arguments, and lists of one element, are given to every call.
        """
        longest = max((len(value) for value in args if isinstance(value, list)), default=0)
        if not longest:
            raise ValueError(
                "multi_process_data needs a list among its arguments: what is to be spread over processes?"
            )
        if any(isinstance(value, list) and len(value) not in (1, longest) for value in args):
            raise ValueError("multi_process_data needs lists of equal length (or of length 1).")
        spread = [value if isinstance(value, list) and len(value) > 1 else _repeated(value, longest) for value in args]
        calls = list(zip(*spread, strict=True))
        if process_count == 1:
            results = [data_processor.process(*call) for call in calls]
        else:
            with multiprocessing.get_context("spawn").Pool(process_count) as pool:
                results = pool.starmap(data_processor.process, calls)
        joined = [item for result in results for item in result]
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


def _repeated(value: object, count: int) -> list[Any]:
    return (value if isinstance(value, list) else [value]) * count
