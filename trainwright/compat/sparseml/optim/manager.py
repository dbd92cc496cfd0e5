"""Names of ``sparseml.optim.manager``."""

from trainwright.compat.sparseml.listing import BaseManager

__all__ = ["BaseManager"]
