"""The order of a training in phases: each epoch goes through the data of its phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset

from trainwright.core.phases import PhasePlan
from trainwright.data.iterables import has_length
from trainwright.data.order import Order, set_epoch_of


class PhasedOrder(Order):
    """In each epoch the samples of its phase, out of the data of all phases behind each other.

    Args:
        plan: Which phase an epoch belongs to.
        orders: The order of each phase's samples, numbered within its own data.
        offsets: Where each phase's data begins.
        samples: Of all data.
    """

    epochs_differ = True

    def __init__(self, plan: PhasePlan, orders: Sequence[Any], offsets: Sequence[int], samples: int) -> None:
        super().__init__(samples)
        self.plan, self.orders, self.offsets = plan, list(orders), list(offsets)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        set_epoch_of(self._present, epoch)

    @property
    def _present(self) -> Any:
        return self.orders[self.plan.number_at(self.epoch)]

    def indices(self) -> list[int]:
        offset = self.offsets[self.plan.number_at(self.epoch)]
        return [offset + int(index) for index in self._present]

    def __len__(self) -> int:
        return len(self._present)

    def samples_of(self, number: int) -> int:
        """Samples of an epoch of a phase."""
        return len(self.orders[number])


def joined_data(datasets: Sequence[Any]) -> tuple[Any, list[int]]:
    """Several datasets as one, in which each is there once, and where each of them begins.

    >>> first, second = [1, 2], [3]
    >>> data, offsets = joined_data([first, second, first])
    >>> list(data), offsets
    ([1, 2, 3], [0, 2, 0])
    """
    starts: dict[int, int] = {}
    distinct: list[Any] = []
    samples = 0
    for dataset in datasets:
        if id(dataset) not in starts:
            starts[id(dataset)] = samples
            distinct.append(dataset)
            samples += len(dataset)
    # One that stands alone stays what it is: tensors in memory are read faster than through a wrapper.
    return distinct[0] if len(distinct) == 1 else ConcatDataset(distinct), [starts[id(one)] for one in datasets]


def phased_order(loader: Any) -> PhasedOrder | None:
    """The order of a loader in phases; None where it has none."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    order = getattr(sampler, "order", sampler)
    return order if isinstance(order, PhasedOrder) else None


def samples_in(loader: Any, epoch: int) -> int | None:
    """Samples of the data of an epoch: that of other phases may change between two starts."""
    if (order := phased_order(loader)) is not None:
        return order.samples_of(order.plan.number_at(epoch))
    dataset = getattr(loader, "dataset", None)
    return len(dataset) if dataset is not None and has_length(dataset) else None
