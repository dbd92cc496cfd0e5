"""The pictures in docs/architecture.md are those of the code as it is."""

from __future__ import annotations

import pytest

from tests.architecture.pictures import PAGE, PICTURES, batch_way, imports, in_page, layers, without_detours


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_current(name: str) -> None:
    drawn = in_page(name, PAGE.read_text(encoding="utf-8")).group()
    assert drawn == PICTURES[name](), "run: python -m tests.architecture.pictures"


@pytest.mark.slow
def test_every_import_leads_down() -> None:
    level = {part: number for number, layer in enumerate(layers()) for part in layer}
    assert {(start, end) for start, end in imports() if level[start] >= level[end]} == set()


def test_a_detour_is_left_out() -> None:
    assert without_detours({("a", "b"), ("b", "c"), ("a", "c")}) == [("a", "b"), ("b", "c")]


def test_the_way_is_the_same_every_time() -> None:
    first, second = batch_way(), batch_way()
    assert list(first.order) == list(second.order)
    assert list(first.order).index(("trainer/trainer.py", "Trainer.train")) < len(first.order) // 10
