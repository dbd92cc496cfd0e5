"""Engines by name, and the one of arguments that name none: torch, unless a door to another was opened."""

ENGINES = ("torch", "mindspore", "jax")

_default = "torch"


def default_engine() -> str:
    """What ``TrainingArguments().engine`` is."""
    return _default


def set_default_engine(name: str) -> str:
    """Change it for arguments built from now on; returns what it was."""
    global _default
    before, _default = _default, name
    return before
