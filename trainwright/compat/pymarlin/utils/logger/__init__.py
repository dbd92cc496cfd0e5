"""PyMarlin's path for what is in this folder."""
