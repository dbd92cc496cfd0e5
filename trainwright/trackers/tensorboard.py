"""TensorBoard event files, through tensorboard's own writer (torch is not needed for it)."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any


class TensorBoardTracker:
    """Writes scalars and the configuration into ``folder``; look at it with ``tensorboard --logdir``.

    Train and evaluation values get HF's names: ``train/loss``, ``eval/loss``.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def start(self, config: dict[str, Any], facts: dict[str, Any]) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ValueError(
                "report_to='tensorboard' needs the package tensorboard: pip install tensorboard"
            ) from error
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(self.folder))
        self._text("args", config)
        self._text("env", facts)

    def log(self, values: dict[str, float], step: int) -> None:
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        summary = _proto("summary").Summary
        points = [summary.Value(tag=tag_of(name), simple_value=float(value)) for name, value in numbers.items()]
        self._add(summary(value=points), step)
        self._writer.flush()

    def finish(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _text(self, tag: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=2, default=str)
        shape, summary = _proto("tensor_shape").TensorShapeProto, _proto("summary")
        tensor = _proto("tensor").TensorProto(
            dtype="DT_STRING",
            string_val=[f"```\n{text}\n```".encode()],
            tensor_shape=shape(dim=[shape.Dim(size=1)]),
        )
        plugin = summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = summary.SummaryMetadata(plugin_data=plugin)
        self._add(summary.Summary(value=[summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]), 0)

    def _add(self, summary: Any, step: int) -> None:
        self._writer.add_event(_proto("event").Event(wall_time=time.time(), step=step, summary=summary))


def _proto(name: str) -> Any:
    """tensorboard's messages are made at import time, where no type checker sees them."""
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")


def tag_of(name: str) -> str:
    """``eval_loss`` as ``eval/loss``, ``loss`` as ``train/loss``."""
    for split in ("eval", "test"):
        if name.startswith(f"{split}_"):
            return f"{split}/{name.removeprefix(f'{split}_')}"
    return f"train/{name}"
