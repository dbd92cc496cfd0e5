"""The first batch of a training, without taking it from the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainwright.data.asked_order import data_seed
from trainwright.data.loader import Loader, close_loader
from trainwright.data.position import starts_by_index
from trainwright.data.rebuild import resumable_loader, shared_training
from trainwright.data.seeding import MapFetch
from trainwright.proving.copies import nothing_said, random_numbers_put_back
from trainwright.proving.duplicates import Memo, duplicate, share_data
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup, data_rank, require_model

#: What reading a batch may change in a setup.
_CHANGES = ("train_dataset", "data_collator", "signature_columns", "columns_said")


def first_batch(setup: Setup) -> Any:
    """The batch that this process trains on first, as the collator made it.

    It is read from copies of dataset and collator, and all random numbers are put back.
    """
    require_model(setup)
    if setup.run is not None:
        raise ValueError("This Trainer is training: look at its data before or after.")
    has_own_loader = is_overridden(setup.hooks(), "get_train_dataloader")
    if setup.hooks().train_dataset is None and setup.module is None and not has_own_loader:
        raise ValueError("There is no training data to look at: pass train_dataset= to the Trainer.")
    with _data_copied(setup), random_numbers_put_back(), nothing_said():
        loader = resumable_loader(setup.hooks().get_train_dataloader(), data_seed(setup.args))
        loader = shared_training(loader, data_rank(setup), setup.args.gradient_accumulation_steps)
        found = _first_of(loader)
    if found is None:
        raise ValueError("The training data gives no batch: is the dataset empty?")
    return found


def _first_of(loader: Any) -> Any:
    if isinstance(loader, Loader):
        loader.set_epoch(0)
        if starts_by_index(loader):
            # In this process: the batch is the same one in any worker.
            batches: Any = loader.batch_sampler
            numbered = next(iter(batches.numbered(0)), None)
            fetch = MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed)
            return None if numbered is None else fetch(0, numbered[1])
    try:
        return next(iter(loader), None)
    finally:
        close_loader(loader)


@contextmanager
def _data_copied(setup: Setup) -> Iterator[None]:
    """Within it the Trainer reads copies of its data; large arrays and tables are shared."""
    trainer, args = setup.hooks(), setup.given_args
    # Whatever the data refers to of these stays what it is.
    memo: Memo = {id(one): one for one in (trainer, setup, args, setup.model, setup.processing_class)}
    kept = {name: getattr(setup, name) for name in _CHANGES}
    workers = args.dataloader_num_workers
    share_data(setup.train_dataset, memo)
    try:
        setup.columns_said = set(setup.columns_said)
        setup.train_dataset = duplicate(setup.train_dataset, memo, may_share=False)
        setup.data_collator = duplicate(setup.data_collator, memo)
        args.dataloader_num_workers = 0
        yield
    finally:
        args.dataloader_num_workers = workers
        for name, value in kept.items():
            setattr(setup, name, value)
