"""The loaders of a module: asked for in PyMarlin's way, ended early where the arguments say so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from trainwright.compat.pymarlin.core.module_interface import ModuleInterface
from trainwright.compat.pymarlin.core.trainer_arguments import TrainerArguments
from trainwright.compat.pymarlin.core.trainer_backend import TrainerBackend
from trainwright.config.batch_sizes import BatchSizes
from trainwright.data.order import set_epoch_of
from trainwright.engines.torch.randomness import random_state, set_random_state

_NOT_ASKED = object()


class Loaders:
    """What a module's loader methods give; ``are_cut``: within the arguments' limits (own loops see to that)."""

    def __init__(
        self,
        module: ModuleInterface,
        args: TrainerArguments,
        backend: TrainerBackend,
        sizes: BatchSizes,
        *,
        are_cut: bool,
    ) -> None:
        self._module, self._args, self._backend, self._sizes = module, args, backend, sizes
        self._are_cut = are_cut
        self._found: Any = _NOT_ASKED

    def for_training(self) -> Any:
        """A new training loader."""
        loader = self._new_training_loader()
        if loader is None:
            raise ValueError(f"{type(self._module).__name__}.get_train_dataloader returned None: nothing to train on.")
        if not self._are_cut:
            return loader
        steps = self._args.max_train_steps_per_epoch
        return first_batches(
            loader, None if steps is None else steps * self._sizes.accumulation, "get_train_dataloader"
        )

    def _new_training_loader(self) -> Any:
        return self._module.get_train_dataloader(sampler=self._backend.train_sampler, batch_size=self._sizes.per_device)

    def _validation(self) -> Any:
        """What the module gives: asked for once, but by loops of one's own in every epoch."""
        if self._found is _NOT_ASKED or not self._are_cut:
            self._found = self._module.get_val_dataloaders(
                sampler=self._backend.val_sampler, batch_size=self._args.val_batch_size
            )
        return self._found

    @property
    def are_named(self) -> bool:
        """Whether there is a dict of validation loaders."""
        return isinstance(self._validation() if self._found is _NOT_ASKED else self._found, dict)

    @property
    def for_validation(self) -> dict[str, Any]:
        """Validation loaders by name; a single one is called "default"."""
        found = self._validation()
        named = found if isinstance(found, dict) else {} if found is None else {"default": found}
        if not self._are_cut:
            return named
        most = self._args.max_val_steps_per_epoch
        return {key: first_batches(loader, most, "get_val_dataloaders") for key, loader in named.items()}

    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; reads lengths, draws nothing."""
        most = self._args.max_train_steps_per_epoch
        before = random_state()
        loader = self._new_training_loader()
        set_random_state(*before)
        if loader is None:
            return 0
        try:
            steps = math.ceil(len(loader) / self._sizes.accumulation)
        except TypeError:
            if most is None:
                raise ValueError(
                    "The training data has no length, so max_train_steps_per_epoch must say how long an epoch is."
                ) from None
            return most
        return steps if most is None else min(steps, most)


class FirstBatches:
    """A batch sampler that ends after ``count`` batches."""

    def __init__(self, batches: Any, count: int) -> None:
        self.batches, self.count = batches, count
        self.sampler = getattr(batches, "sampler", None)
        self.drop_last = getattr(batches, "drop_last", False)

    def set_epoch(self, epoch: int) -> None:
        set_epoch_of(self.batches, epoch)
        set_epoch_of(self.sampler, epoch)

    @property
    def ends_with_filler(self) -> bool:
        """Whether the last batch is there only to keep this process in step with others."""
        return self.count >= len(self.batches) and bool(getattr(self.sampler, "ends_with_filler", False))

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.batches), self.count)

    def __len__(self) -> int:
        return min(self.count, len(self.batches))


class FirstOfStream(DataLoader[Any]):
    """A loader over a stream that ends after ``count`` batches."""

    def __init__(self, dataset: Any, count: int, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._count = count

    def __iter__(self) -> Any:
        return islice(super().__iter__(), self._count)

    def __len__(self) -> int:
        return self._count


def first_batches(loader: Any, count: int | None, what: str) -> Any:
    """``loader``, or one like it that ends after ``count`` batches."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"{what} must return a torch DataLoader, not {type(loader).__name__}.")
    if count is None:
        return loader
    options: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return FirstOfStream(loader.dataset, count, **batching, **options)
    return DataLoader(loader.dataset, batch_sampler=FirstBatches(loader.batch_sampler, count), **options)
