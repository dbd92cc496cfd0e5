"""PyMarlin's ``utils``, by the paths that scripts import from."""
