"""Names of ``sparseml.sparsification``."""

from trainwright.compat.sparseml.sparsification.types import SparsificationTypes

__all__ = ["SparsificationTypes"]
