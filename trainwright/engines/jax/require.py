"""Whether JAX and torchax can be used here, and what to install if not."""

from __future__ import annotations

import importlib.metadata

_FIX = "pip install 'trainwright[jax]' (checked together: torch 2.13, jax 0.10.2, torchax 0.0.13)"


def require_jax() -> None:
    """Raise, naming the fix, unless JAX and torchax are installed and meet the installed torch."""
    for package in ("jax", "torchax"):
        if _version(package) is None:
            raise ValueError(f"engine='jax' needs {package}, which is not installed: {_FIX}.")
    try:
        import trainwright.engines.jax.operations  # noqa: F401
    # The table is read from inside torchax, which promises nothing about it: whatever another version does, say so.
    except (ImportError, AttributeError, KeyError, TypeError) as error:
        versions = ", ".join(f"{package} {_version(package)}" for package in ("torch", "jax", "torchax"))
        raise ValueError(f"engine='jax': {versions} do not work together ({error}): {_FIX}.") from error


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
