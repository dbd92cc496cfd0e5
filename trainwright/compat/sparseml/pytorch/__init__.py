"""Names of ``sparseml.pytorch``."""
