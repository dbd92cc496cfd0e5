"""An installed package made on the spot: modules, and a dist-info with entry points."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainwright.config import entry_points


@contextmanager
def installed(
    folder: Path, name: str, modules: Mapping[str, str], points: Mapping[str, Mapping[str, str]]
) -> Iterator[None]:
    """Within it a package ``name`` is installed: ``points`` are group -> name -> "module:attribute"."""
    folder.mkdir(parents=True, exist_ok=True)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(text))
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = ["\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in named.items())]) for group, named in points.items()]
    (facts / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
    sys.path.insert(0, str(folder))
    entry_points.offered.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        entry_points.offered.cache_clear()
        for module in modules:
            sys.modules.pop(module, None)
