"""What stands below the bars of a training: its loss, its speed, its last evaluation, its last checkpoint.

Written when something is logged, read by the thread that draws: whatever changes is replaced as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainwright.callbacks.sparkline import sparkline, thinner
from trainwright.callbacks.wording import amount, clock, deciding_metric, number, of_total, pace_of
from trainwright.core.events import RunEvents
from trainwright.core.speed import Speed

_MOST_POINTS = 400
_WIDEST_CURVE = 24
_LABEL = 6

#: A label, and what follows it.
Fact = tuple[str, list[str]]


class RunFacts:
    """The newest of everything that a person wants to know of a training.

    >>> facts = RunFacts(RunEvents(), "accuracy", best=lambda: (0.9, 10))
    >>> facts.note_log({"loss": 0.5, "learning_rate": 1e-3}, step=10, speed=None)
    >>> facts.note_evaluation({"eval_loss": 0.4, "eval_accuracy": 0.9}, step=10)
    >>> for line in facts.lines(60):
    ...     print(line)
    loss  ▁  0.5  lr 0.001
    eval  loss 0.4  accuracy 0.9  at step 10
    best  accuracy 0.9  at step 10
    """

    def __init__(
        self,
        events: RunEvents | None,
        deciding: str | None,
        *,
        best: Callable[[], tuple[float | None, int | None]] = lambda: (None, None),
        has_blocks: bool = True,
    ) -> None:
        self._events, self._deciding, self._has_blocks = events, deciding, has_blocks
        # Asked when drawing: whether an evaluation is the best is known after it was told.
        self._best = best
        self._seen = 0 if events is None else len(events.recorded)
        self._losses: tuple[tuple[float, float], ...] = ()
        self._log: dict[str, Any] = {}
        self._evaluation: list[str] = []
        self._checkpoint: tuple[str, float] | None = None
        self.speed: Speed | None = None

    def note_log(self, logs: Mapping[str, Any], *, step: int, speed: Speed | None) -> None:
        """A training log: its loss, its learning rate, its gradient norm, and what the clock says."""
        loss = logs.get("loss")
        if not isinstance(loss, (int, float)):
            return
        self._losses = thinner((*self._losses, (step, float(loss))), _MOST_POINTS)
        self._log = {name: logs[name] for name in ("loss", "learning_rate", "grad_norm") if name in logs}
        self.speed = speed

    def note_evaluation(self, metrics: Mapping[str, Any], *, step: int) -> None:
        """An evaluation."""
        words = []
        if isinstance(loss := metrics.get("eval_loss"), (int, float)):
            words.append(f"loss {number(loss)}")
        metric = deciding_metric(metrics, self._deciding)
        if metric is not None and metric[0] != "eval_loss":
            words.append(f"{metric[0]} {number(metric[1])}")
        if words:
            self._evaluation = [*words, f"at step {step}"]

    def lines(self, width: int) -> list[str]:
        """At most ``width`` columns each; where that is little, a fact takes a second line."""
        return [line for label, words in self._facts(width) if words for line in _packed(label, words, width)]

    def _facts(self, width: int) -> list[Fact]:
        return [
            ("loss", self._loss_words(width)),
            ("speed", speed_words(self.speed)),
            ("eval", self._evaluation),
            ("best", self._best_words()),
            ("saved", self._checkpoint_words()),
        ]

    def _loss_words(self, width: int) -> list[str]:
        log, losses = self._log, self._losses
        if not losses:
            return []
        curve = sparkline(losses, min(_WIDEST_CURVE, width // 3)) if self._has_blocks else ""
        words = [curve] if curve else []
        words.append(number(float(log["loss"])))
        for name, short in (("learning_rate", "lr"), ("grad_norm", "grad")):
            if isinstance(log.get(name), (int, float)):
                words.append(f"{short} {log[name]:.3g}")
        return words

    def _best_words(self) -> list[str]:
        value, step = self._best()
        if value is None or self._deciding is None:
            return []
        return [f"{self._deciding.removeprefix('eval_')} {number(value)}", f"at step {step}"]

    def _checkpoint_words(self) -> list[str]:
        if self._events is None:
            return []
        new = self._events.recorded[self._seen :]
        self._seen += len(new)
        for event in new:
            if event.get("kind") == "saved":
                self._checkpoint = f"checkpoint-{event.get('step')}", float(event["time"])
        if self._checkpoint is None:
            return []
        name, when = self._checkpoint
        return [f"{name}, {clock(time.time() - when)} ago"]


def speed_words(measured: Speed | None) -> list[str]:
    """What a clock says of a training, the most wanted first.

    >>> speed_words(Speed(10, steps_per_second=2.0, samples_per_second=64.0, data_wait=0.031, mfu=0.412))
    ['64 samples/s', 'MFU 41 %', 'waits for data 3 %']
    """
    if measured is None or not measured.steps:
        return []
    words = [pace_of(measured)]
    if measured.tokens_per_second:
        words.append(f"{amount(round(measured.tokens_per_second))} tokens/s")
    if measured.mfu is not None:
        words.append(f"MFU {measured.mfu:.0%}".replace("%", " %"))
    if measured.data_wait is not None:
        words.append(f"waits for data {measured.data_wait:.0%}".replace("%", " %"))
    if measured.memory:
        words.append(f"memory {of_total(measured.memory, measured.memory_total)}")
    return words


def _packed(label: str, words: Sequence[str], width: int) -> list[str]:
    """One line, or as many as the words need; none of them is cut but by a terminal narrower than it."""
    lines = [f"{label:<{_LABEL}}{words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(f"{'':<{_LABEL}}{word}")
    return [line[:width] for line in lines]
