"""When a recipe does what: as rows, as a picture for a terminal, and as an SVG."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.recipes.language.describing import describe, short_name
from trainwright.recipes.language.records import Recipe

_TO_ASCII = str.maketrans({"→": "->", "…": "...", "█": "#", "▶": ">", "◆": "*", "┬": "+", "─": "-"})


@dataclass(frozen=True)
class Row:
    """One modifier on the timeline."""

    label: str
    #: What it does, in words.
    detail: str
    start: float
    #: None: it goes on to the end of the training.
    end: float | None
    stage: str | None = None


def timeline(recipe: Recipe) -> list[Row]:
    """What happens when, in the order of the recipe.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> timeline(read_recipe({"modifiers": [{"SetLearningRateModifier": {"learning_rate": 0.1, "start_epoch": 2}}]}))
    [Row(label='SetLearningRate', detail='learning rate 0.1', start=2.0, end=None, stage=None)]
    """
    return [
        Row(short_name(spec.kind), describe(spec), spec.start_epoch or 0.0, spec.end_epoch, stage.name)
        for stage in recipe.stages
        for spec in stage.modifiers
    ]


def draw(recipe: Recipe, width: int, *, ascii_only: bool = False) -> str:
    """The timeline as text of at most ``width`` columns: an axis in epochs, and for each modifier a bar and a line.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> print(draw(read_recipe({"modifiers": [
    ...     {"EpochRangeModifier": {"start_epoch": 0, "end_epoch": 4}},
    ...     {"SetWeightDecayModifier": {"start_epoch": 3, "weight_decay": 0.0}},
    ... ]}), 61))
    epoch          0          1          2          3          4
                   ┬──────────┬──────────┬──────────┬──────────┬
    EpochRange     ████████████████████████████████████████████
      the epochs of the training
    SetWeightDecay                                  ████████████▶
      weight decay 0
    """
    rows = timeline(recipe)
    lines = list(_drawn(rows, max(recipe.max_epochs, 1.0), max(width, 1)))
    text = "\n".join(lines)
    if ascii_only:
        text = text.translate(_TO_ASCII).encode("ascii", "replace").decode()
    return "\n".join(_cut(line, max(width, 1), ascii_only) for line in text.split("\n"))


def _drawn(rows: list[Row], length: float, width: int) -> Iterator[str]:
    label_width = min(max([5, *(len(row.label) for row in rows)]), max(width // 3, 5)) + 1
    # One more column for the arrow of what does not end.
    columns = max(width - label_width - 1, 8)
    scale = (columns - 1) / length
    ticks = _ticks(length, columns)
    numbers, marks, free = [" "] * (columns + 1), ["─"] * columns, 0
    for tick in ticks:
        column = round(tick * scale)
        marks[column] = "┬"
        text = f"{tick:g}"
        begin = min(column, columns + 1 - len(text))
        if begin >= free:
            numbers[begin : begin + len(text)] = text
            free = begin + len(text) + 1
    yield f"{'epoch':<{label_width}}{''.join(numbers)}".rstrip()
    yield f"{'':<{label_width}}{''.join(marks)}"
    stage = None
    for row in rows:
        if row.stage != stage:
            stage = row.stage
            yield f"[{_clean(str(stage))}]"
        label = _cut(_clean(row.label), label_width - 1)
        yield f"{label:<{label_width}}{_bar(row, scale, columns)}".rstrip()
        if row.detail:
            yield f"  {_clean(row.detail)}"


def _bar(row: Row, scale: float, columns: int) -> str:
    begin = min(round(row.start * scale), columns - 1)
    if row.end is None:
        return " " * begin + "█" * (columns - begin) + "▶"
    end = min(round(row.end * scale), columns - 1)
    return " " * begin + ("█" * max(end - begin, 1) if row.end > row.start else "◆")


def _ticks(length: float, columns: int) -> list[float]:
    """Round numbers of epochs, far enough from each other to be read."""
    most = max(columns // 6, 1)
    step = 10.0 ** math.floor(math.log10(length))
    for factor in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100):
        if length / (step * factor) <= most:
            step *= factor
            break
    return [index * step for index in range(math.floor(length / step + 1e-9) + 1)]


def _clean(text: str) -> str:
    """No line ends and nothing that a terminal obeys."""
    return "".join(
        character if character == " " or unicodedata.category(character)[0] not in "CZ" else "?" for character in text
    )


def _columns(text: str) -> int:
    return sum(_columns_of(character) for character in text)


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cut(text: str, width: int, ascii_only: bool = False) -> str:
    if _columns(text) <= width:
        return text
    dots = "..." if ascii_only else "…"
    kept, room = [], width - len(dots)
    for character in text:
        room -= _columns_of(character)
        if room < 0:
            break
        kept.append(character)
    return ("".join(kept) + dots)[: max(width, 0)]


def draw_svg(recipe: Recipe) -> str:
    """The same as a picture for a report or a browser; empty where matplotlib is not installed.

    >>> from trainwright.recipes.language.reading import read_recipe
    >>> recipe = read_recipe({"modifiers": [{"EpochRangeModifier": {"start_epoch": 0, "end_epoch": 4}}]})
    >>> draw_svg(recipe).startswith("<svg")
    True
    """
    from trainwright.plots.spans import Span, spans

    rows = [
        Span(row.label if row.stage is None else f"{row.stage}: {row.label}", row.detail, row.start, row.end)
        for row in timeline(recipe)
    ]
    return spans(rows, max(recipe.max_epochs, 1.0), x_label="epoch")
