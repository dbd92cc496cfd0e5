"""Without JAX, engine="jax" says what to install."""

from __future__ import annotations

import importlib.util

import pytest

from trainwright.engines.jax.framework import JaxFramework
from trainwright.engines.jax.require import require_jax


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is here")
def test_what_to_install_is_named() -> None:
    for ask in (require_jax, JaxFramework):
        with pytest.raises(ValueError, match=r"needs jax, which is not installed: pip install 'trainwright\[jax\]'"):
            ask()
