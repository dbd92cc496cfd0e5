"""Trackers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.config.secrets import redacted
from trainwright.core.tracker import Tracker


def build_trackers(args: Any) -> list[Tracker]:
    """The trackers that ``args.report_to`` names; ``metrics.jsonl`` is written in any case."""
    names = args.report_to if isinstance(args.report_to, list) else [args.report_to]
    if "tensorboard" in names:
        from trainwright.trackers.tensorboard import TensorBoardTracker

        folder = Path(args.logging_dir or Path(args.output_dir) / "runs")
        return [TensorBoardTracker(folder / redacted(args.run_name) if args.run_name else folder)]
    return []
