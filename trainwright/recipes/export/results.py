"""What an export gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Exported:
    """Where the model is, and what its owner should know."""

    folder: Path
    #: The file with the weights.
    model: Path
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the weights, in all their files."""
        stem = self.model.name.split(".")[0]
        return sum(path.stat().st_size for path in self.folder.iterdir() if _holds_weights(path, stem))


def _holds_weights(path: Path, stem: str) -> bool:
    return path.name.startswith(stem) and path.suffix in (".safetensors", ".onnx", ".data")
