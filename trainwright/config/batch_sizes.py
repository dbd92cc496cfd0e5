"""One batch under its three names: per device, per process, global."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.config.warnings import warn


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of one optimizer step, as the three families of libraries count them.

    >>> BatchSizes.of_global(96, world_size=2, limit=40)
    BatchSizes(per_device=24, accumulation=2, world_size=2)
    >>> sizes = BatchSizes(per_device=24, accumulation=2, world_size=2)
    >>> sizes.per_process, sizes.global_batch
    (48, 96)
    """

    #: Samples that run at once on a device: Hugging Face's ``per_device_train_batch_size``.
    per_device: int
    #: Batches whose gradients are added up before the weights change.
    accumulation: int = 1
    world_size: int = 1

    @property
    def per_process(self) -> int:
        """Samples of one process in an optimizer step."""
        return self.per_device * self.accumulation

    @property
    def global_batch(self) -> int:
        """Samples of all processes in an optimizer step: PyMarlin's ``train_batch_size``."""
        return self.per_process * self.world_size

    @classmethod
    def of_global(cls, global_batch: int, world_size: int, limit: int | None) -> BatchSizes:
        """Cut a global batch into equal parts of at most ``limit`` samples (None: no limit)."""
        share = share_of_global_batch(global_batch, world_size)
        per_device = share if limit is None else largest_fitting_divisor(share, limit)
        return cls(per_device, share // per_device, world_size)


def share_of_global_batch(global_batch: int, world_size: int) -> int:
    """Samples of each process; refuses a batch that does not divide, since it would silently become another.

    >>> share_of_global_batch(96, 4)
    24
    """
    if global_batch < 1:
        raise ValueError(f"The global batch size must be at least 1, got {global_batch}.")
    share, left = divmod(global_batch, world_size)
    if left or not share:
        below, above = share * world_size, (share + 1) * world_size
        nearest = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"A global batch of {global_batch} cannot be shared equally by {world_size} processes: use {nearest}."
        )
    return share


def largest_fitting_divisor(share: int, limit: int) -> int:
    """The largest size that divides ``share`` and is at most ``limit``, so that pieces are equal and none is lost.

    Warns where that is less than half of what would fit, and names a batch that cuts better.

    >>> largest_fitting_divisor(90, 40), largest_fitting_divisor(6, 1000)
    (30, 6)
    """
    if limit < 1:
        raise ValueError(f"The limit of samples that run at once must be at least 1, got {limit}.")
    found = _largest_divisor(share, limit)
    fitting = min(share, limit)
    if found * 2 <= fitting and fitting > 2:
        better = _better_share(share, limit)
        warn(
            f"A batch of {share} samples per process can be cut into equal pieces of at most {limit} only as "
            f"{share // found} x {found}, though {fitting} would fit. A batch of {better} per process runs as "
            f"{better // _largest_divisor(better, limit)} x {_largest_divisor(better, limit)}."
        )
    return found


def _largest_divisor(share: int, limit: int) -> int:
    return next(size for size in range(min(share, limit), 0, -1) if share % size == 0)


def _better_share(share: int, limit: int) -> int:
    """The nearest batch that cuts into pieces of at least three quarters of what fits."""
    for distance in range(1, share + limit):
        for candidate in (share - distance, share + distance):
            if candidate > 0 and _largest_divisor(candidate, limit) * 4 >= 3 * min(candidate, limit):
                return candidate
    return limit
