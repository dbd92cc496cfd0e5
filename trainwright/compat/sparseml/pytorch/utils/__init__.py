"""Names of ``sparseml.pytorch.utils``."""

from typing import Any

from trainwright.compat.sparseml.exporting import ModuleExporter
from trainwright.compat.sparseml.missing import refuse

__all__ = ["ModuleExporter"]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
