"""Batches, models and rates as HTML for notebooks; everything that comes from data or code is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.util import find_spec
from typing import Any

from trainwright.looking.words import shown

_TRAINED = "background: rgba(255, 200, 0, 0.35)"


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A plain table; cells are escaped."""
    head = "".join(f"<th style='text-align:left'>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(shown(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def batch_page(view: Any) -> str:
    """``BatchView._repr_html_``."""
    parts = [table(["the first batch", ""], [field.line().split(None, 1) for field in view.fields])]
    if view.images and find_spec("matplotlib") is not None:
        parts.append(image_grid(view.images, [row.label for row in view.rows]))
    lines = []
    for number, row in enumerate(view.rows):
        words = "".join(
            f"<mark style='{_TRAINED}'>{escape(shown(part.text))}</mark>"
            if part.is_trained
            else escape(shown(part.text))
            for part in row.text
        )
        for name, numbers in row.values.items():
            words += escape(f" {shown(name, 40)} [{', '.join(f'{one:.4g}' for one in numbers)}]")
        label = "" if row.label is None else escape(shown(row.label))
        lines.append(f"<tr><td>{number}</td><td style='text-align:left'>{words}</td><td>{label}</td></tr>")
    parts.append(f"<table><tr><th></th><th>sample</th><th>label</th></tr>{''.join(lines)}</table>")
    parts += [f"<p>{escape(shown(note))}</p>" for note in view.notes]
    return "\n".join(parts)


def image_grid(images: Sequence[Any], titles: Sequence[str | None]) -> str:
    """Pictures side by side, as one image."""
    from trainwright.plots.drawing import as_address, drawing, plain, svg_of

    columns = min(len(images), 8)
    rows = math.ceil(len(images) / columns)
    with drawing(1.1 * columns, 1.3 * rows) as figure:
        for number, image in enumerate(images):
            axes = figure.add_subplot(rows, columns, number + 1)
            axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
            title = titles[number] if number < len(titles) else None
            if title is not None:
                axes.set_title(plain(title, 16), fontsize=7)
        return f'<img alt="{len(images)} images of the batch" src="{as_address(svg_of(figure))}">'
