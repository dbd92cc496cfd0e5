"""Writers of statistics, by name."""

from __future__ import annotations

from trainwright.compat.pymarlin.utils.writer.base import Writer, WriterInitArguments
from trainwright.compat.pymarlin.utils.writer.stdout import Stdout
from trainwright.config.warnings import warn

__all__ = ["Stdout", "Writer", "WriterInitArguments", "build_writer"]

CHOICES = ("stdout", "tensorboard", "aml")


def build_writer(writer: str | Writer, args: WriterInitArguments) -> Writer | None:
    """The writer of that name; None, after a warning, where it cannot write here."""
    if isinstance(writer, Writer):
        return writer
    if writer == "stdout":
        return Stdout(args)
    if writer == "tensorboard":
        from trainwright.compat.pymarlin.utils.writer.tensorboard import Tensorboard

        try:
            return Tensorboard(args)
        except ImportError:
            warn("The 'tensorboard' writer needs tensorboard (pip install tensorboard): it is left out.")
            return None
    if writer == "aml":
        warn(
            "The 'aml' writer is not here: AzureML reads TensorBoard's files and MLflow. Leave it out of writers, or "
            "pass a Writer of your own that calls run.log."
        )
        return None
    raise ValueError(f"There is no writer {writer!r}; there are {', '.join(CHOICES)}, and Writer objects of your own.")
