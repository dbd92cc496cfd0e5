"""What a report is made of, before it is a web page or a text: sections of paragraphs, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """What one may type, or what was in a file."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of words under a heading."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cards:
    """A few numbers that one sees first: what it is, the number, and a word about it."""

    cards: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Picture:
    """A drawing, and what is in it for those who do not see it. With several, each has a label to choose it by."""

    alt: str
    svgs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Gallery:
    """Small photographs with words below: PNG files in base64."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Folded:
    """What one opens if one wants it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Beside:
    """Small pictures next to each other, where the page is wide enough."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Live:
    """The place of a drawing that the page's scripts make."""

    #: One of ours: letters and digits.
    id: str


Block = Text | Code | Table | Cards | Picture | Gallery | Folded | Beside | Live


@dataclass
class Section:
    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Page:
    """A whole report."""

    title: str
    #: A word and a sentence: how the run stands.
    state: tuple[str, str]
    sections: list[Section] = field(default_factory=list)
    #: Ready-made HTML for the head and the curves, of ``--interactive`` alone.
    scripts: str = ""
