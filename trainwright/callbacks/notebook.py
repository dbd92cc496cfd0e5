"""What a person sees in a notebook: a table of the logs and a curve, drawn in place.

Plain HTML and a picture: no script runs, and a saved notebook shows the end of the training. Without matplotlib there
is the table alone.
"""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from trainwright.callbacks import wording
from trainwright.callbacks.progress import ProgressCallback, harmless
from trainwright.config.arguments import TrainingArguments
from trainwright.core.state import TrainerControl, TrainerState
from trainwright.plots.curves import Line, curves
from trainwright.plots.drawing import as_address

_WIDTH, _MOST_ROWS = 560, 30
_SPEED = ("_runtime", "_per_second", "_jit_compilation_time")
#: Seconds between two drawings that only move the count of steps.
_PAUSE = 0.5
_CURVES = ("loss", "eval_loss")
#: Times as long as a drawing of the curves takes passes before the next one (the first one imports matplotlib, and that
#: is no reason to wait longer): about a hundredth of a training.
_TIMES, _LONGEST = 99, 5.0


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows what ``display`` is given."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class NotebookCallback(ProgressCallback):
    """Header, count of steps, a curve of the losses and a table of what was logged."""

    _leaves_model_alone = True

    def __init__(self) -> None:
        super().__init__()
        self._screen: Any = None
        self._rows: dict[int, dict[str, Any]] = {}
        self._title, self._note, self._drawn = "", "", 0.0
        self._svg, self._next_curve = "", 0.0

    @harmless
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        from IPython.display import HTML, display

        self._began, self._first_step, self._summary = time.perf_counter(), state.global_step, {}
        self._title = wording.header_line(args, state, kwargs.get("model"), kwargs.get("train_dataloader"))
        self._rows, self._note = {}, ""
        self._svg, self._next_curve = "", 0.0
        # What a resumed run logged before belongs to its curve.
        for entry in state.log_history:
            self._keep(int(entry.get("step", 0)), entry)
        self._redraw()
        self._screen = display(HTML(self._page(state)), display_id=True)

    @harmless
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if time.monotonic() - self._drawn > _PAUSE:
            self._draw(state)

    @harmless
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs: Mapping[str, Any] = kwargs.get("logs") or {}
        if "train_loss" in logs:
            self._summary = dict(logs)
        elif self._screen is None:
            self._say(wording.log_line(logs, state, pace="", max_str_len=self.max_str_len))
        else:
            self._keep(state.global_step, logs)
            self._redraw()
            self._draw(state)

    @harmless
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._predicted += 1
        if self._screen is not None and time.monotonic() - self._drawn > _PAUSE:
            total = wording.length_of(kwargs.get("eval_dataloader"))
            self._note = f"evaluating: batch {self._predicted}" + (f" of {total}" if total else "")
            self._draw(state)

    @harmless
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._predicted, self._note = 0, ""

    @harmless
    def on_predict(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._predicted, self._note = 0, ""

    @harmless
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        took = time.perf_counter() - self._began
        self._note = wording.closing_line(args, state, self._summary, self._first_step, took)
        self._next_curve = 0.0
        self._redraw()
        self._draw(state)
        self._screen = None

    def close(self, *, keep: bool = True) -> None:
        """Leave the page as it is."""
        self._screen = None

    # ---- the page

    def _keep(self, step: int, logs: Mapping[str, Any]) -> None:
        shown = {
            name: value
            for name, value in logs.items()
            if isinstance(value, (int, float)) and name not in ("step", "epoch") and not name.endswith(_SPEED)
        }
        if shown and "train_loss" not in logs:
            self._rows.setdefault(step, {}).update(shown)

    def _draw(self, state: TrainerState) -> None:
        if self._screen is None:
            return
        from IPython.display import HTML

        self._drawn = time.monotonic()
        self._screen.update(HTML(self._page(state)))

    def _page(self, state: TrainerState) -> str:
        done = f"step {state.global_step} of {state.max_steps}"
        share = state.global_step / state.max_steps if state.max_steps else 0.0
        bar = (
            f'<div style="background:#8884;height:6px;width:{_WIDTH}px">'
            f'<div style="background:#4477aa;height:6px;width:{_WIDTH * min(1.0, share):.0f}px"></div></div>'
        )
        note = self._note or done
        return f"<p>{html.escape(self._title)}</p>{bar}<p>{html.escape(note)}</p>{self._curve()}{self._table()}"

    def _redraw(self) -> None:
        """Draw the curves anew, unless that was done a moment ago: a training waits for it."""
        began = time.perf_counter()
        if began < self._next_curve:
            return
        lines = [Line(name, *zip(*points, strict=True)) for name in _CURVES if (points := self._points(name))]
        self._svg = curves(lines, size=(5.8, 2.2))
        now = time.perf_counter()
        self._next_curve = now + min(_TIMES * (now - began), _LONGEST)

    def _curve(self) -> str:
        return (
            f'<p><img alt="{" and ".join(_CURVES)} over the steps" src="{as_address(self._svg)}"></p>'
            if self._svg
            else ""
        )

    def _points(self, name: str) -> list[tuple[int, float]]:
        found = [(step, row[name]) for step, row in sorted(self._rows.items()) if name in row]
        return [(step, value) for step, value in found if math.isfinite(value)]

    def _table(self) -> str:
        rows = sorted(self._rows.items())[-_MOST_ROWS:]
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        if not names:
            return ""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("step", *names))
        body = "".join(
            f"<tr><td>{step}</td>" + "".join(f"<td>{_number(row.get(name))}</td>" for name in names) + "</tr>"
            for step, row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: object) -> str:
    return "" if value is None else f"{value:.4g}"
