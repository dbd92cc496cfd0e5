"""TensorBoard event files, through tensorboard's own writer (torch is not needed for it)."""

from __future__ import annotations

import importlib
import itertools
import json
import time
from pathlib import Path
from typing import Any

from trainwright.config.secrets import redacted
from trainwright.core.tracker import Histogram, TrackedRun
from trainwright.trackers.files import copy
from trainwright.trackers.naming import tagged
from trainwright.trackers.packages import package
from trainwright.trackers.pictures import picture_bytes


class TensorBoardTracker:
    """Writes into ``folder`` (a folder in it, where the run has a name); look at it with ``tensorboard --logdir``.

    Its own default is ``<run directory>/runs``. Artifacts are copied beside the event files.
    """

    def __init__(self, *, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._place = Path()
        self._writer: Any = None

    def start(self, run: TrackedRun) -> None:
        writer = package("tensorboard.summary.writer.event_file_writer", "tensorboard").EventFileWriter
        folder = self.folder or run.folder / "runs"
        self._place = folder / redacted(run.name) if run.name else folder
        self._place.mkdir(parents=True, exist_ok=True)
        _wait_for_a_later_name(self._place)
        self._writer = writer(str(self._place))
        if run.step:
            # TensorBoard leaves out what an earlier process wrote of the steps that come now.
            session = _proto("event").SessionLog(status=_proto("event").SessionLog.START)
            event = _proto("event").Event(wall_time=time.time(), step=run.step + 1, session_log=session)
            self._writer.add_event(event)
        self._text("args", {**run.config, "tags": list(run.tags)} if run.tags else run.config)
        self._text("env", run.facts)

    def log(self, values: dict[str, float], step: int) -> None:
        summary = _proto("summary").Summary
        points = [summary.Value(tag=tag, simple_value=float(value)) for tag, value in tagged(values).items()]
        self._add(summary(value=points), step)
        self._writer.flush()

    def log_artifact(self, path: Path, name: str | None = None) -> None:
        copy(path, self._place / "artifacts" / (name or path.name))

    def log_image(self, name: str, image: object, step: int) -> None:
        summary = _proto("summary").Summary
        picture = summary.Image(encoded_image_string=picture_bytes(image))
        self._add(summary(value=[summary.Value(tag=name, image=picture)]), step)
        self._writer.flush()

    def log_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        edges, counts = histogram.edges(), histogram.counts
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        found = _proto("histogram").HistogramProto(
            min=histogram.low,
            max=histogram.high,
            num=sum(counts),
            sum=sum(count * middle for count, middle in zip(counts, middles, strict=True)),
            sum_squares=sum(count * middle * middle for count, middle in zip(counts, middles, strict=True)),
            bucket_limit=edges[1:],
            bucket=counts,
        )
        summary = _proto("summary").Summary
        self._add(summary(value=[summary.Value(tag=name, histo=found)]), step)

    def log_text(self, name: str, text: str, step: int) -> None:
        self._text(name, text, step)
        self._writer.flush()

    def finish(self, status: str) -> None:
        if self._writer is not None:
            self._text("status", {"status": status})
            self._writer.close()
            self._writer = None

    def _text(self, tag: str, content: dict[str, Any] | str, step: int = 0) -> None:
        text = content if isinstance(content, str) else json.dumps(content, indent=2, default=str)
        shape, summary = _proto("tensor_shape").TensorShapeProto, _proto("summary")
        tensor = _proto("tensor").TensorProto(
            dtype="DT_STRING",
            string_val=[f"```\n{text}\n```".encode()],
            tensor_shape=shape(dim=[shape.Dim(size=1)]),
        )
        plugin = summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = summary.SummaryMetadata(plugin_data=plugin)
        self._add(summary.Summary(value=[summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]), step)

    def _add(self, summary: object, step: int) -> None:
        self._writer.add_event(_proto("event").Event(wall_time=time.time(), step=step, summary=summary))


def _wait_for_a_later_name(folder: Path) -> None:
    """Files are read in the order of their names, which begin with the second: two of one second have no order."""
    seconds = [file.name.split(".")[3] for file in folder.glob("events.out.tfevents.*")]
    newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
    # A name from the future (another machine's clock) is not waited for.
    while newest - 1 <= time.time() < newest + 1:
        time.sleep(0.02)


def _proto(name: str) -> Any:
    """tensorboard's messages are made at import time, where no type checker sees them."""
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")
