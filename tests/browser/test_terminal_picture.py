"""The picture of a terminal in the README and the documents, from a training that this test watches."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.terminal_picture import PICTURE, draw

pytestmark = pytest.mark.browser


def test_a_training_in_a_terminal() -> None:
    svg = draw()
    words = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    for part in ("train", "epoch", "loss", "speed", "eval", "best", "saved", "checkpoint-"):
        assert part in words
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")
    PICTURE.write_text(svg + "\n", encoding="utf-8")
