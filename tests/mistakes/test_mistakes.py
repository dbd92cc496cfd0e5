"""What people get wrong: how it ends, what they are told, and that nothing is left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.mistakes.material import write_files
from tests.mistakes.mistake import Mistake
from tests.mistakes.page import page
from tests.mistakes.table import TABLE
from tests.mistakes.tried import tried

PAGE = Path(__file__).parents[2] / "docs/mistakes.md"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes are told on a GPU as elsewhere, but for one that is none there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("mistake", TABLE, ids=lambda mistake: mistake.name)
def test_a_mistake_is_told_and_leaves_nothing(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, mistake.needs)
    there = set(tmp_path.rglob("*"))
    before = {path: path.read_bytes() for path in there if path.is_file()}
    ending = tried(mistake)
    if isinstance(mistake.ends, int):
        assert ending.ends == mistake.ends, ending.said
    else:
        assert isinstance(ending.ends, type), ending.said
        assert issubclass(ending.ends, mistake.ends)
    _expect(mistake.says, ending.said)
    assert "Traceback" not in ending.said
    after = {path for path in tmp_path.rglob("*") if path.is_file() and path not in before}
    if mistake.has_begun:
        # What became of the run is noted in its folder; there is nothing to resume or to mistake for a model.
        assert {path.parent for path in after} <= {tmp_path / "out"}
        assert [path for path in after if path.suffix in (".safetensors", ".bin")] == []
    else:
        assert set(tmp_path.rglob("*")) == there
    assert {path: path.read_bytes() for path in before} == before


def _expect(says: str, told: str) -> None:
    """The whole message, after what a command line begins it with."""
    assert re.search(".*".join(re.escape(part) for part in says.split("...")) + "$", told), told


def test_there_are_sixty_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(TABLE) >= 60
    assert len({mistake.title for mistake in TABLE}) == len(TABLE)
    assert all(len(mistake.says) < 500 for mistake in TABLE)


def test_the_page_of_mistakes_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.mistakes.page > docs/mistakes.md"
