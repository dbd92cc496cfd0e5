"""PyMarlin's ``core``."""
