"""TrainingState under the path that later versions of ACCMT have it."""

from trainwright.compat.accmt.status import TrainingState

__all__ = ["TrainingState"]
