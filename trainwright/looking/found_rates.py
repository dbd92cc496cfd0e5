"""What ``lr_find`` found: numbers, words, a picture."""

from __future__ import annotations

import dataclasses
from html import escape
from importlib.util import find_spec
from typing import Any

from trainwright.looking.pages import table

#: Lines of the table, and the longest bar.
_LINES, _BAR = 16, 30


@dataclasses.dataclass(frozen=True)
class LearningRates:
    """Rates that were tried and the loss at each; print it, or let a notebook show it.

    ``losses`` has the loss of the step that was taken last, too, where that was no number; ``smoothed`` has not.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    #: The rate at which the loss falls fastest; None where it does not fall.
    suggestion: float | None
    #: Whether it ended because the loss grew, and not because all rates were tried.
    has_diverged: bool

    @property
    def words(self) -> str:
        """The answer in a sentence."""
        if self.suggestion is not None:
            return f"Suggestion: learning_rate={self.suggestion:g}"
        if self.has_diverged:
            return "No suggestion: the loss only grows. Try smaller rates, and look at data and loss."
        return "No suggestion: the loss does not fall. Try greater rates or more steps, and look at data and loss."

    @property
    def picture(self) -> str:
        """The loss over the rate (in powers of ten), as SVG text; empty without matplotlib."""
        if find_spec("matplotlib") is None:
            return ""
        import math

        from trainwright.plots.curves import Line, curves

        known = len(self.smoothed)
        powers = [math.log10(rate) for rate in self.rates]
        lines = [Line("loss", powers, self.losses), Line("smoothed", powers[:known], self.smoothed)]
        marks = [] if self.suggestion is None else [(math.log10(self.suggestion), f"{self.suggestion:g}")]
        return curves(lines, x_label="learning rate, as a power of ten", marks=marks)

    def __str__(self) -> str:
        count = len(self.smoothed)
        chosen = sorted({round(place * (count - 1) / max(_LINES - 1, 1)) for place in range(_LINES)}) if count else []
        greatest = max(self.smoothed, default=0.0)
        least = min(0.0, *self.smoothed) if count else 0.0
        lines = [f"{'learning rate':>13}  {'loss':>10}  (smoothed)"]
        for place in chosen:
            bar = "█" * round(_BAR * (self.smoothed[place] - least) / max(greatest - least, 1e-12))
            lines.append(f"{self.rates[place]:>13.2g}  {self.smoothed[place]:>10.4g}  {bar}")
        if self.has_diverged:
            lines.append(f"{self.rates[-1]:>13.2g}  the loss has grown too far: greater rates were not tried")
        return "\n".join([*lines, self.words])

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self.words)}</b></p>"]
        if svg := self.picture:
            from trainwright.plots.drawing import as_address

            parts.append(f'<img alt="The loss over the learning rate" src="{as_address(svg)}">')
        else:
            parts.append(table(["learning rate", "loss"], self._rows()))
        return "\n".join(parts)

    def _rows(self) -> list[tuple[str, str]]:
        return [(f"{rate:.2g}", f"{loss:.4g}") for rate, loss in zip(self.rates, self.smoothed, strict=False)]

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values; a loss that is no number is null."""
        return {
            **dataclasses.asdict(self),
            "losses": [loss if loss == loss and abs(loss) < 1e300 else None for loss in self.losses],
        }
