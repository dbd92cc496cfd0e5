"""How much of the data is used: all of it, or a part for trying something out."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class LimitFields:
    limit_train_batches: None | str | int | float = None  # noqa: RUF036
    """Train on this many batches of each epoch in every process, or on this share of them (1.0 is all); micro-batches
    of gradient accumulation count singly."""

    limit_eval_batches: None | str | int | float = None  # noqa: RUF036
    """Evaluate on this many batches of each evaluation set in every process, or on this share of them."""

    limit_predict_batches: None | str | int | float = None  # noqa: RUF036
    """The same for predict() and test()."""

    overfit_batches: None | str | int | float = None  # noqa: RUF036
    """Train on the first so many batches (or that share) again and again, in the order of the data, and evaluate on
    the same: a model that cannot learn these by heart has an error somewhere."""

    fast_dev_run: None | str | int = None  # noqa: RUF036
    """Try the script: so many batches (true: 1) of training, evaluation and prediction, in a temporary folder, with no
    checkpoints, trackers and uploads."""
