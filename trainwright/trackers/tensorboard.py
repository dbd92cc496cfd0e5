"""TensorBoard event files, through tensorboard's own writer (torch is not needed for it)."""

from __future__ import annotations

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
            raise ValueError("report_to='tensorboard' needs the package tensorboard: pip install tensorboard") from error
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(self.folder))
        self._text("args", config)
        self._text("env", facts)

    def log(self, values: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        points = [Summary.Value(tag=tag_of(name), simple_value=float(value)) for name, value in numbers.items()]
        self._add(Summary(value=points), step)
        self._writer.flush()

    def finish(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _text(self, tag: str, content: dict[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        text = json.dumps(content, indent=2, default=str)
        tensor = TensorProto(
            dtype="DT_STRING",
            string_val=[f"```\n{text}\n```".encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]), 0)

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def tag_of(name: str) -> str:
    """``eval_loss`` as ``eval/loss``, ``loss`` as ``train/loss``."""
    for split in ("eval", "test"):
        if name.startswith(f"{split}_"):
            return f"{split}/{name.removeprefix(f'{split}_')}"
    return f"train/{name}"
