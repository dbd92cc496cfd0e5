"""What the library has to say on its own account: dropped columns, a resume, a choice made for the user."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from trainwright.config.arguments import TrainingArguments

logger = logging.getLogger("trainwright")


class NotesHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is at the time, so that a progress bar can keep its place."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("trainwright: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up_notes(args: TrainingArguments) -> None:
    """Follow ``log_level``; "passive" leaves logging to the application and, where that set nothing up, shows notes."""
    if args.log_level != "passive":
        logger.setLevel(args.get_process_log_level())
    elif not logger.handlers and not logging.getLogger().handlers and args.should_log:
        logger.addHandler(NotesHandler())
        logger.setLevel(logging.INFO)
