"""docs/engines.md is true where its frameworks are installed: its blocks run, its numbers are those of the tables."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()


def run_blocks(framework: str, folder: Path) -> None:
    """The page's blocks that need ``framework``, as a reader would run them: as one file."""
    found = re.findall(rf"^```py\n(# with {framework}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    script = folder / "blocks.py"
    script.write_text("\n".join(found))
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.mindspore
def test_with_mindspore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mindspore")
    from trainwright.engines.mindspore import operations

    assert f"MindSpore's table has {len(operations.OPERATIONS)} operations" in PAGE
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(operations, "OPERATIONS", dict(operations.OPERATIONS))
    run_blocks("MindSpore", tmp_path)


@pytest.mark.jax
def test_with_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    from trainwright.engines.jax import operations

    assert f"JAX's {len(operations.OPERATIONS)}." in PAGE
    monkeypatch.setattr(operations, "OPERATIONS", dict(operations.OPERATIONS))
    run_blocks("JAX", tmp_path)
