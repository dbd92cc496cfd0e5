"""What a person sees while a run goes on.

On a terminal: a header line, at the foot a panel of live bars and facts (loss, speed, last evaluation, last
checkpoint), and one line for each log above it. The panel is drawn on stderr.
Anywhere else, as soon as stdout *or* stderr is not a terminal: plain lines on stdout and no bar. So
``python train.py | tee train.log`` and ``python train.py > train.log`` both get a log that reads well, and a bar never
ends up in a file.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from trainwright.callbacks import wording
from trainwright.callbacks.bar_row import EpochRow, Row
from trainwright.callbacks.call_stack import call_stack, innermost_shared
from trainwright.callbacks.run_facts import RunFacts
from trainwright.config.arguments import TrainingArguments
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from rich.console import Console

    from trainwright.callbacks.terminal_bars import TerminalBars

logger = logging.getLogger("trainwright")

Event = Callable[..., None]


class PrinterCallback(TrainerCallback):
    """Prints each log as one line on stdout; ``disable_tqdm=True`` chooses it in place of the bars."""

    _leaves_model_alone = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs.get("logs")
        if logs is None or not state.is_local_process_zero:
            return
        # A new dict: transformers' PrinterCallback takes total_flos out of the logs of everyone after it.
        shown = {name: value for name, value in logs.items() if name != "total_flos"}
        short = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in shown.items()}
        print(short, flush=True)


def harmless(method: Event) -> Event:
    """Let a display fail by itself: the run that it shows must not stop."""

    @functools.wraps(method)
    def guarded(
        self: ProgressCallback, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self._gave_up or not state.is_world_process_zero:
            return
        try:
            method(self, args, state, control, **kwargs)
        except (Exception, SystemExit) as error:  # rich ends the program when a pipe breaks
            self._gave_up = True
            logger.warning("The progress display failed and is switched off; training goes on: %r", error)
            self.close()

    return guarded


class ProgressCallback(TrainerCallback):
    """Header, a live panel and log lines; plain lines where there is no terminal.

    ``max_str_len`` bounds strings in log lines. ``console``, a ``rich.console.Console``, replaces the terminal found.
    """

    _leaves_model_alone = True

    def __init__(self, max_str_len: int = 100, *, console: Console | None = None) -> None:
        self.max_str_len = max_str_len
        #: HF's names for what is on the screen: ``training_bar.write(line)`` prints above the bars.
        self.training_bar: TerminalBars | None = None
        self.prediction_bar: Row | None = None
        self._console = console
        self._gave_up = False
        self._bars: TerminalBars | None = None
        self._facts: RunFacts | None = None
        #: Another object after a run has gone back to a checkpoint.
        self._state = TrainerState()
        self._summary: Mapping[str, Any] = {}
        self._began, self._first_step = time.perf_counter(), 0
        self._begin_stack: list[FrameType] = []
        self._forget_prediction()

    # ---- training

    @harmless
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close()
        self._forget_prediction()
        loader = kwargs.get("train_dataloader")
        self._began, self._first_step, self._summary = time.perf_counter(), state.global_step, {}
        self._state, self._facts = state, None
        self._say(wording.header_line(args, state, kwargs.get("model"), loader))
        bars = self._open_bars()
        if bars is not None:
            self._fill_panel(bars, args, state, loader, kwargs.get("events"))
            self.training_bar = bars
            self._begin_stack = call_stack()
            bars.refresh()

    def _fill_panel(
        self, bars: TerminalBars, args: TrainingArguments, state: TrainerState, loader: object, events: Any
    ) -> None:
        examples, batches = wording.examples_of(loader), wording.length_of(loader)
        per_step = examples * args.gradient_accumulation_steps / batches if examples and batches else None
        bars.training = Row("train", state.max_steps, lambda: self._state.global_step, samples_per_unit=per_step)
        epochs = wording.epochs_of(args, state, loader)
        if epochs is not None and epochs > 1:
            bars.epoch = EpochRow(epochs, lambda: self._state.epoch)
        has_blocks = bars.console.encoding.startswith("utf")
        self._facts = RunFacts(
            events,
            args.metric_for_best_model,
            best=lambda: (self._state.best_metric, self._state.best_global_step),
            has_blocks=has_blocks,
        )
        bars.facts = self._facts.lines

    @harmless
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self._state = state
        if self.training_bar is not None and self._begin_stack:
            self.training_bar.watch(innermost_shared(self._begin_stack, call_stack()))
            self._begin_stack = []

    @harmless
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs: Mapping[str, Any] = kwargs.get("logs") or {}
        if "train_loss" in logs:
            # The run's summary: the closing line says it.
            self._summary = dict(logs)
            return
        self._state = state
        pace = wording.pace_of(state.speed) if "loss" in logs else ""
        self._note_beside_bar(args, logs)
        if self._facts is not None:
            self._facts.note_log(logs, step=state.global_step, speed=state.speed)
        self._say(wording.log_line(logs, state, pace=pace, max_str_len=self.max_str_len))

    @harmless
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close(keep=False)
        took = time.perf_counter() - self._began
        reason = wording.reason_in(kwargs.get("events"))
        self._say(wording.closing_line(args, state, self._summary, self._first_step, took, reason))

    @harmless
    def on_train_failed(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The panel stays as it stood; the last line says what ended the run."""
        self.close()
        took = time.perf_counter() - self._began
        self._say(wording.failing_line(state, kwargs["error"], took))

    # ---- evaluation and prediction

    @harmless
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self._prediction_loader is None or self._prediction_loader is not kwargs.get("eval_dataloader"):
            self._begin_prediction(kwargs.get("eval_dataloader"))
        self._predicted += 1
        if self._predicted == 2 and self._predicts_live and self.training_bar is None:
            self._open_prediction_bars()

    @harmless
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._facts is not None:
            self._facts.note_evaluation(kwargs.get("metrics") or {}, step=state.global_step)
        self._end_prediction()

    @harmless
    def on_predict(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._end_prediction()

    def close(self, *, keep: bool = True) -> None:
        """Take the bars off the screen, or, with ``keep``, leave the training bar where it stood; safe to repeat."""
        bars, self._bars, self.training_bar, self.prediction_bar = self._bars, None, None, None
        self._begin_stack = []
        if bars is not None:
            bars.close(keep=keep)

    # ---- how it is shown

    def _say(self, line: str) -> None:
        if self._bars is not None and not self._bars.closed:
            self._bars.write(_at_words(line, self._bars.console.width))
        elif self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            is_seen = _is_terminal(sys.stdout)
            print(_at_words(line, shutil.get_terminal_size().columns) if is_seen else line, flush=True)

    def _note_beside_bar(self, args: TrainingArguments, logs: Mapping[str, Any]) -> None:
        row = self._bars.training if self._bars is not None else None
        if row is None:
            return
        if "loss" in logs:
            row.fields["loss"] = f"{logs['loss']:.3g}"
        metric = wording.deciding_metric(logs, args.metric_for_best_model)
        if metric is not None:
            row.fields[metric[0]] = f"{metric[1]:.3g}"

    def _terminal(self) -> Console | None:
        """Where bars can be drawn, or None."""
        if self._console is not None:
            return self._console if self._console.is_terminal else None
        if "ipykernel" in sys.modules:
            # Without ipywidgets rich warns at every drawing.
            usable = importlib.util.find_spec("ipywidgets") is not None
        else:
            usable = _is_terminal(sys.stdout) and _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        if not usable:
            return None
        from trainwright.callbacks.terminal_bars import shared_console

        return shared_console()

    def _open_bars(self) -> TerminalBars | None:
        console = self._terminal()
        if console is None:
            return None
        from trainwright.callbacks.terminal_bars import TerminalBars, shown_bars

        if shown_bars() is not None:
            # A run inside another run: its lines appear above the bar of the outer one.
            return None
        self._bars = TerminalBars(console, redirect=self._console is None and not console.is_jupyter)
        self._bars.start()
        return self._bars

    def _begin_prediction(self, loader: object) -> None:
        self._forget_prediction()
        self._prediction_loader = loader
        total = wording.length_of(loader)
        if self.training_bar is not None:
            self._add_prediction_row(self.training_bar)
        elif total != 1 and self._terminal() is not None:
            self._predicts_live, self._begin_stack = True, call_stack()

    def _open_prediction_bars(self) -> None:
        loop, self._begin_stack = innermost_shared(self._begin_stack, call_stack()), []
        bars = self._open_bars()
        if bars is not None:
            bars.watch(loop)
            self._add_prediction_row(bars)

    def _add_prediction_row(self, bars: TerminalBars) -> None:
        total = wording.length_of(self._prediction_loader)
        bars.prediction = self.prediction_bar = Row("eval", total, lambda: self._predicted)

    def _end_prediction(self) -> None:
        if self.training_bar is None:
            self.close(keep=False)
        elif self.training_bar.training is not None:
            self.training_bar.prediction = self.prediction_bar = None
            self.training_bar.training.pause()
        self._forget_prediction()

    def _forget_prediction(self) -> None:
        self._prediction_loader: Any = None
        self._predicted = 0
        self._predicts_live = False


def _at_words(line: str, width: int) -> str:
    """``line`` broken between words where a terminal would break it anywhere."""
    if len(line) < width:
        return line
    return textwrap.fill(line, max(width - 1, 20), break_long_words=False, break_on_hyphens=False)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        # No stream (pythonw), or a closed one.
        return False
