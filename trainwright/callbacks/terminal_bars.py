"""Live bars at the foot of a terminal, and facts below them.

A thread of their own draws them, so a training step pays nothing: the training thread only counts. Every 0.2 s the
thread reads the counts and draws. It also notices when training was left by an exception, for which there is no event:
the stack frame of the training loop is then gone, the bars are closed where they stood, and the terminal is as it was
before.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from types import FrameType
from typing import Any, ClassVar, TextIO

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainwright.callbacks.bar_row import EpochRow, Row
from trainwright.callbacks.log_streams import handlers_on

_SECONDS_BETWEEN_DRAWINGS = 0.2
_WIDEST_BAR, _NARROWEST_BAR = 40, 5
#: Lines of the terminal that stay free for what is printed, and the fewest columns in which facts say anything.
_FREE_LINES, _NARROWEST_FACTS = 4, 24


class TerminalConsole(Console):
    """A console that fails like any stream when its reader is gone, where rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("The reader of the progress display is gone.")


@lru_cache(maxsize=1)
def shared_console() -> Console:
    """One console on stderr for the process, so that what is printed and what is drawn take turns."""
    return TerminalConsole(stderr=True)


class TerminalBars:
    """Bars for training, epoch and evaluation, and lines of facts below; what is printed meanwhile appears above."""

    #: The bars now on the screen: there is one screen, so a second run at the same time prints plain lines.
    shown: ClassVar[TerminalBars | None] = None

    def __init__(self, console: Console, *, redirect: bool) -> None:
        self.console = console
        self.training: Row | None = None
        self.epoch: EpochRow | None = None
        self.prediction: Row | None = None
        #: Lines below the bars, for so many columns.
        self.facts: Callable[[int], list[str]] | None = None
        self.closed = False
        self._thread_id = threading.get_ident()
        self._loop_frame: FrameType | None = None
        self._streams: list[tuple[str, TextIO, _Above]] = []
        self._handlers: list[tuple[logging.StreamHandler[Any], TextIO, _Above]] = []
        self._stop = threading.Event()
        self._closing = threading.Lock()
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._render,
        )
        self._redirect = redirect
        self._painter = threading.Thread(target=self._paint, name="trainwright-bars", daemon=True)

    def start(self) -> None:
        """Show the bars."""
        self._live.start()
        # A hidden cursor would stay hidden if the process were killed.
        self.console.show_cursor(True)
        if self._redirect:
            for name in ("stdout", "stderr"):
                original = getattr(sys, name)
                above = _Above(self, original)
                setattr(sys, name, above)
                self._streams.append((name, original, above))
                for handler in handlers_on(original):
                    handler.setStream(above)
                    self._handlers.append((handler, original, above))
        TerminalBars.shown = self
        atexit.register(self.close)
        self._painter.start()

    def watch(self, frame: FrameType | None) -> None:
        """Close the bars by themselves once ``frame`` of this thread has been left."""
        self._loop_frame = frame

    def abandoned(self) -> bool:
        """Whether the loop that the bars belong to was left without a word."""
        if self._loop_frame is None:
            return False
        frame = sys._current_frames().get(self._thread_id)
        while frame is not None:
            if frame is self._loop_frame:
                return False
            frame = frame.f_back
        return True

    def write(self, text: str) -> None:
        """Print a line above the bars; tqdm's name for it."""
        self.console.print(text, markup=False, soft_wrap=True)

    def refresh(self) -> None:
        """Draw now."""
        if not self.closed:
            self._live.refresh()

    def close(self, *, keep: bool = True) -> None:
        """Stop drawing and give the streams back; ``keep`` leaves the training bar on the screen where it stood."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        self._stop.set()
        self._loop_frame = None
        self._give_streams_back()
        if TerminalBars.shown is self:
            TerminalBars.shown = None
        atexit.unregister(self.close)
        self.prediction = None
        self._live.transient = not keep or self.training is None
        with suppress(OSError, ValueError):
            # The terminal may be gone; then nothing is left to tidy.
            self._live.stop()

    def forget_in_child(self) -> None:
        """After a fork: the drawing thread and its locks did not come along, so write straight through."""
        self.closed = True
        self._give_streams_back()

    def _give_streams_back(self) -> None:
        for name, original, above in self._streams:
            # Someone may have put their own stream over ours; theirs stays.
            if getattr(sys, name) is above:
                setattr(sys, name, original)
        for handler, original, above in self._handlers:
            if handler.stream is above:
                # Not setStream(): after a fork the handler's lock may be held by a thread that did not come along.
                handler.stream = original

    def _paint(self) -> None:
        while not self._stop.wait(_SECONDS_BETWEEN_DRAWINGS):
            try:
                if self.abandoned():
                    self.close()
                else:
                    self.refresh()
            except (Exception, SystemExit):
                # A display that fails goes dark; training knows nothing of it.
                self.close()

    def _render(self) -> RenderableType:
        facts = self._fact_lines()
        lines = [self._line(self.training, shortly=bool(facts))] if self.training is not None else []
        if self.epoch is not None and facts:
            lines.append(self._line(self.epoch))
        if self.prediction is not None:
            lines.append(self._line(self.prediction))
        return Group(*lines, *(_fact(line) for line in facts))

    def _fact_lines(self) -> list[str]:
        """As many as leave room for what is printed above; none where only a bar fits."""
        width, height = self.console.width - 1, self.console.height
        room = height - _FREE_LINES - 3
        if self.facts is None or width < _NARROWEST_FACTS or room < 1:
            return []
        return self.facts(width)[:room]

    def _line(self, row: Row | EpochRow, *, shortly: bool = False) -> RenderableType:
        label = f"{row.label:<5}"
        # Two gaps, and one column in which the cursor rests.
        most = self.console.width - len(label) - 3
        text = row.text(most - _NARROWEST_BAR, shortly=shortly)
        space = most - len(text)
        cells: list[RenderableType] = [Text(label, style="bold", no_wrap=True)]
        if space >= _NARROWEST_BAR:
            cells.append(ProgressBar(row.total, row.done(), width=min(space, _WIDEST_BAR), pulse=row.total is None))
        cells.append(Text(text, no_wrap=True, overflow="ellipsis"))
        grid = Table.grid(padding=(0, 1))
        grid.add_row(*cells)
        # Exactly full lines would wrap on some terminals.
        grid.width = None if space >= _NARROWEST_BAR else self.console.width - 1
        return grid


def _fact(line: str) -> Text:
    label, rest = line[:6], line[6:]
    return Text.assemble((label, "bold"), rest, no_wrap=True, overflow="crop")


class _Above(FileProxy):
    """Stands in for stdout or stderr while bars are shown: what is printed appears above them."""

    def __init__(self, bars: TerminalBars, file: TextIO) -> None:
        super().__init__(bars.console, file)
        self._bars = bars
        self._file = file

    def write(self, text: str) -> int:
        if not self._bars.closed and self._bars.abandoned():
            # Most likely a traceback: close first, so that it stands below the bar.
            self._bars.close()
        return self._file.write(text) if self._bars.closed else super().write(text)


def shown_bars() -> TerminalBars | None:
    """The bars that are on the screen, if any; such as were abandoned are closed first."""
    bars = TerminalBars.shown
    if bars is not None and bars.abandoned():
        bars.close()
    return TerminalBars.shown


def _after_fork() -> None:
    if TerminalBars.shown is not None:
        TerminalBars.shown.forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
