"""When something is due: one small language for logging, evaluating and saving."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_WORDS = {
    **dict.fromkeys(("step", "steps"), "step"),
    **dict.fromkeys(("epoch", "epochs"), "epoch"),
    **dict.fromkeys(("eval", "evals", "evaluation", "evaluations"), "eval"),
    **dict.fromkeys(("s", "sec", "second", "seconds"), "second"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "minute"),
    **dict.fromkeys(("h", "hour", "hours"), "hour"),
    **dict.fromkeys(("day", "days"), "day"),
    **dict.fromkeys(("%", "percent", "run"), "%"),
}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,12})?|\.\d{1,12})(k?)\s*([a-z]+|%)")
_OR = re.compile(r"\s+or\s+")
_ALLOWED = (
    'write a number and a unit, such as "500 steps", "1k steps", "1 epoch", "0.5 epochs", "3 evals", "30 seconds", '
    '"10 minutes", "2 hours", "10%" or "0.1 run" (of all steps); join several with " or "; or write "never"'
)
# Epoch progress is a sum of fractions; a multiple reached but for rounding counts as reached.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A point in a run at which one may ask whether something is due."""

    step: int = 0
    """Optimizer steps done."""
    epoch: float = 0.0
    """Epochs done, with the fraction of the current one."""
    evaluations: int = 0
    """Evaluations done."""
    seconds: float = 0.0
    """Time since training began in this process."""
    max_steps: int = 0
    """Steps of the whole run."""
    epoch_end: bool = False
    """Whether an epoch has just ended, as opposed to a step."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One amount of one unit. Decimal keeps what was typed, so that text and number agree to the last digit."""

    amount: Decimal
    unit: str

    def __str__(self) -> str:
        digits = format(self.amount, "f")
        digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
        if self.unit == "%":
            return f"{digits}%"
        return f"{digits} {self.unit}" if self.amount == 1 else f"{digits} {self.unit}s"

    def step_interval(self, max_steps: int) -> int | None:
        """Steps between two times, where that is what this interval counts."""
        if self.unit == "step":
            return int(self.amount)
        # Rounded up, as Hugging Face resolves logging_steps=0.1.
        return max(1, math.ceil(max_steps * float(self.amount / 100))) if self.unit == "%" else None

    def due(self, now: RunProgress, last: RunProgress) -> bool:
        """Whether the interval ends at ``now``, the last time having been ``last``."""
        steps = self.step_interval(now.max_steps)
        if steps is not None:
            return now.step > last.step and now.step % steps == 0
        amount = float(self.amount)
        if self.unit == "epoch":
            return self._epochs_due(now, last, amount)
        if self.unit == "eval":
            return now.evaluations // int(amount) > last.evaluations // int(amount)
        return now.seconds - last.seconds >= amount * _SECONDS[self.unit]

    def _epochs_due(self, now: RunProgress, last: RunProgress, amount: float) -> bool:
        whole = amount == int(amount)
        if whole and not now.epoch_end:
            return False
        if amount == 1:
            # Also where an epoch was cut short, as with Hugging Face's "epoch".
            return now.step != last.step or not last.epoch_end
        return math.floor(now.epoch / amount + _ROUNDING) > math.floor(last.epoch / amount + _ROUNDING)


@dataclass(frozen=True, slots=True)
class Every:
    """Intervals, any of which makes something due; none at all means never.

    >>> every = Every.parse("1k steps or 0.5 epochs")
    >>> str(every)
    '1000 steps or 0.5 epochs'
    >>> begin = RunProgress(max_steps=5000)
    >>> every.due(RunProgress(step=999, epoch=0.4, max_steps=5000), begin)
    False
    >>> every.due(RunProgress(step=1000, epoch=0.4, max_steps=5000), begin)
    True
    """

    parts: tuple[Interval, ...] = ()

    @classmethod
    def parse(cls, text: str | Every) -> Every:
        """Read ``text``; a ``ValueError`` says what may be written."""
        if isinstance(text, Every):
            return text
        if not isinstance(text, str):
            raise ValueError(f"{text!r} does not say when: {_ALLOWED}.")
        return _parse(text)

    @classmethod
    def from_strategy(cls, strategy: str, steps: float | None = None) -> Every:
        """Hugging Face's words: ``"steps"`` with a number (below 1 a share of the run), ``"epoch"``, the rest never."""
        if strategy == "epoch":
            return cls((Interval(Decimal(1), "epoch"),))
        if strategy != "steps" or steps is None:
            return NEVER
        amount = Decimal(str(steps))
        return cls((Interval(amount * 100, "%") if steps < 1 else Interval(Decimal(int(steps)), "step"),))

    def as_strategy(self) -> tuple[str, float | None]:
        """The nearest of Hugging Face's words, and the number that goes with it where the meaning is the same."""
        if not self.parts:
            return "no", None
        if len(self.parts) == 1:
            amount, unit = self.parts[0].amount, self.parts[0].unit
            if unit == "step":
                return "steps", int(amount)
            if unit == "%" and amount < 100:
                return "steps", float(amount / 100)
            if unit == "epoch" and amount == 1:
                return "epoch", None
        return "steps", None

    def due(self, now: RunProgress, last: RunProgress) -> bool:
        """Whether it is time at ``now``; ``last`` is when it was done last, or the beginning of training."""
        return any(part.due(now, last) for part in self.parts)

    def counts(self, unit: str) -> bool:
        """Whether any interval is given in ``unit``: step, epoch, eval, % or time."""
        return any(part.unit == unit or (unit == "time" and part.unit in _SECONDS) for part in self.parts)

    def only_steps(self) -> bool:
        """Whether a step's number alone decides, so that ``step % step_interval(...)`` is the whole question."""
        return len(self.parts) == 1 and self.parts[0].unit in ("step", "%")

    def ends_each_epoch(self) -> bool:
        """Whether the end of every epoch makes it due, that of a run's last one included."""
        return any(part.unit == "epoch" and part.amount == 1 for part in self.parts)

    def step_interval(self, max_steps: int, epochs: float = 0) -> int:
        """About how many steps lie between two times, for those who want one number; what is not known counts as all.

        Exact for steps and shares. ``epochs`` is how many ``max_steps`` make.
        """
        found = [max(max_steps, 1)]
        for part in self.parts:
            steps = part.step_interval(max_steps)
            if steps is None and part.unit == "epoch" and epochs > 0:
                steps = max(1, math.ceil(float(part.amount) * max_steps / epochs))
            if steps is not None:
                found.append(steps)
        # A single interval longer than the run is still the answer: 500 steps are 500 in a run of 10.
        return found[1] if len(found) == 2 else min(found)

    def __str__(self) -> str:
        return " or ".join(str(part) for part in self.parts) or "never"

    def __bool__(self) -> bool:
        return bool(self.parts)


NEVER = Every()


@lru_cache(maxsize=64)
def _parse(text: str) -> Every:
    words = text.strip().lower()
    if words == "never":
        return NEVER
    return Every(tuple(_interval(part.strip(), text) for part in _OR.split(words)))


def _interval(part: str, text: str) -> Interval:
    match = _PART.fullmatch(part)
    unit = _WORDS.get(match[3]) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} does not say when: {_ALLOWED}.")
    amount: Any = Decimal(match[1])
    if match[2]:
        amount *= 1000
    if match[3] == "run":
        amount *= 100
    if amount == 0:
        raise ValueError(f'{text!r}: an interval must be longer than 0; write "never" to switch it off.')
    if unit in ("step", "eval") and amount != int(amount):
        raise ValueError(f'{text!r}: {unit}s are counted in whole numbers; for a share of the run write "10%".')
    if unit == "%" and amount > 100:
        raise ValueError(f"{text!r}: there is no more than 100% of a run.")
    return Interval(amount, unit)
