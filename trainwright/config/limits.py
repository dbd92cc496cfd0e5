"""Limits on the number of batches: a number, or a share of those there are."""

from __future__ import annotations

from typing import Any, NamedTuple

from trainwright.config.fields import AllFields, is_ours, ours

#: Arguments that are a number of batches, or a share of them.
LIMITS = ("limit_train_batches", "limit_eval_batches", "limit_predict_batches", "overfit_batches")


class Limit(NamedTuple):
    """A limit, and the argument that it comes from, for messages."""

    value: int | float
    argument: str

    def of(self, batches: int | None) -> int:
        """How many of ``batches`` come; None where nobody knows how many there are.

        >>> Limit(3, "limit_train_batches").of(10), Limit(0.25, "limit_train_batches").of(10)
        (3, 2)
        """
        if isinstance(self.value, int):
            return self.value if batches is None else min(self.value, batches)
        if batches is None:
            raise ValueError(
                f"{self.argument}={self.value} is a share, and this data does not know how many batches it has: give a "
                f"number of batches, as in {self.argument}=100."
            )
        # A share of few batches is one at least.
        return max(int(batches * self.value + 1e-9), 1) if batches else 0


def train_limit(args: AllFields) -> Limit | None:
    """The limit of each epoch of training."""
    name = "limit_train_batches" if ours(args).overfit_batches is None else "overfit_batches"
    return _limit(args, name)


def evaluation_limit(args: AllFields, stage: str) -> Limit | None:
    """The limit of an evaluation; ``stage`` is "validation", "test" or "predict"."""
    if stage != "validation":
        return _limit(args, "limit_predict_batches")
    return _limit(args, "limit_eval_batches" if ours(args).overfit_batches is None else "overfit_batches")


def _limit(args: AllFields, name: str) -> Limit | None:
    value: Any = getattr(ours(args), name)
    # All of them is no limit, so that data without a length may say it too.
    return None if value is None or (isinstance(value, float) and value == 1.0) else Limit(value, name)


def coerce_limits(args: AllFields) -> None:
    """Numbers in the place of the words that files and command lines have."""
    for name in LIMITS:
        if is_ours(args, name) and getattr(args, name) is not None:
            setattr(args, name, _number(name, getattr(args, name)))
    if is_ours(args, "fast_dev_run"):
        args.fast_dev_run = _batches_to_try(args.fast_dev_run)


def _number(name: str, value: object) -> int | float:
    found = value
    if isinstance(value, str):
        try:
            found = int(value)
        except ValueError:
            try:
                found = float(value)
            except ValueError:
                found = None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"{name}={value!r} must be a number of batches (10), or a share of them (0.1).")
    return found


def _batches_to_try(value: object) -> int | None:
    words = {"true": 1, "yes": 1, "on": 1, "false": None, "no": None, "off": None}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    try:
        number = int(value) if isinstance(value, (int, str)) else 0 if value is None else -1
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f"fast_dev_run={value!r} must be true, or a number of batches.")
    return number or None


def check_limits(args: AllFields) -> None:
    """Limits that leave nothing, and those that contradict each other."""
    args = ours(args)
    for name in LIMITS:
        value: Any = getattr(args, name)
        if value is None:
            continue
        if isinstance(value, float) and not 0 < value <= 1:
            raise ValueError(
                f"{name}={value} is a share and must lie in (0, 1]; for a number of batches give a whole number, as in "
                f"{name}={max(int(value), 1) if value == value and abs(value) < 1e9 else 1}."
            )
        if value < 1 and isinstance(value, int):
            instead = (
                'eval_strategy="no" switches evaluations off' if name == "limit_eval_batches" else "1 is one batch"
            )
            raise ValueError(
                f"{name}={value} must be at least 1 (a number of batches) or a share such as 0.1; {instead}."
            )
    if args.overfit_batches is None:
        return
    for name, off in (
        ("limit_train_batches", None),
        ("limit_eval_batches", None),
        ("fast_dev_run", None),
        ("max_tokens_per_batch", None),
    ):
        if getattr(args, name) != off:
            raise ValueError(f"overfit_batches says which batches are used, and so does {name}: keep one of them.")
    if args.train_sampling_strategy in ("group_by_length", "balanced"):
        raise ValueError(
            "overfit_batches takes the first batches in the order of the data, and train_sampling_strategy="
            f'"{args.train_sampling_strategy}" has another: keep one of them.'
        )
