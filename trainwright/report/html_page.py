"""A report as one HTML file: everything is in it, nothing is fetched, and nothing in it runs.

All words come from files that anybody may have changed: every one of them is escaped, and pictures are shown as images,
in which no script runs. The page says so to the browser as well (its Content-Security-Policy).
"""

from __future__ import annotations

import base64
import html
from itertools import count

from trainwright.plots.drawing import as_address
from trainwright.report.blocks import (
    Beside,
    Block,
    Cards,
    Code,
    Folded,
    Gallery,
    Live,
    Page,
    Picture,
    Section,
    Table,
    Text,
)

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_POLICY_WITH_SCRIPTS = f"{_POLICY}; script-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --quiet: #6b7280; --line: #d9dde3; --card: #f6f7f9; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --quiet: #9aa3ad; --line: #343a41; --card: #1d2126; --page: #14171a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
header { display: flex; gap: .8rem; align-items: baseline; flex-wrap: wrap; }
.state { border-radius: 1rem; padding: .1rem .7rem; font-size: .85rem; color: #fff; background: #6b7280; }
.state.finished { background: #228833; } .state.training { background: #4477aa; } .state.failed { background: #cc3344; }
.state.stopped, .state.interrupted { background: #b7791f; }
.said { color: var(--quiet); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.25rem; font-weight: 600; overflow-wrap: anywhere; }
.card span { color: var(--quiet); font-size: .85rem; overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
th { text-align: left; color: var(--quiet); font-weight: 500; }
th, td { padding: .25rem .9rem .25rem 0; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; max-width: 34rem; }
pre { background: var(--card); border-radius: .5rem; padding: .7rem .9rem; overflow-x: auto; font-size: .85rem; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--quiet); }
.gallery { display: flex; flex-wrap: wrap; gap: .8rem; }
.gallery figure { margin: 0; width: 8.5rem; font-size: .8rem; }
.gallery figcaption { white-space: pre-line; overflow-wrap: anywhere; }
.gallery img { width: 8rem; height: 8rem; object-fit: contain; image-rendering: pixelated; background: var(--card); }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: .4rem 1rem; }
.tabs input { position: absolute; opacity: 0; pointer-events: none; }
.tabs label { cursor: pointer; color: var(--quiet); margin-right: .8rem; font-size: .85rem; }
.tabs input:checked + label { color: var(--ink); border-bottom: 2px solid #4477aa; }
.tabs input:focus-visible + label { outline: 2px solid #4477aa; }
.tabs .tab { display: none; overflow-x: auto; }
@media (max-width: 34rem) {
  body { padding: 1rem; } .card b { font-size: 1.05rem; } .cards { grid-template-columns: 1fr 1fr; }
  .tabs .tab img, section > p > img { max-width: none; width: 34rem; } section > p:has(> img) { overflow-x: auto; } }
.tabs input:nth-of-type(1):checked ~ .tab:nth-of-type(1), .tabs input:nth-of-type(2):checked ~ .tab:nth-of-type(2),
.tabs input:nth-of-type(3):checked ~ .tab:nth-of-type(3), .tabs input:nth-of-type(4):checked ~ .tab:nth-of-type(4) {
  display: block; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .8rem; }
@media print { body { max-width: none; } details { display: block; } }
"""


def html_of(page: Page, footer: str = "") -> str:
    """The whole file.

    >>> "<script>" in html_of(Page("<script>", ("finished", "")))
    False
    """
    numbers = count()
    policy = _POLICY_WITH_SCRIPTS if page.scripts else _POLICY
    word, sentence = page.state
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Otherwise browsers ask for /favicon.ico.
        '<link rel="icon" href="data:,">',
        f"<title>{_said(page.title)}</title><style>{_STYLE}</style></head><body>",
        f"<header><h1>{_said(page.title)}</h1>{_state(word)}</header>",
        f'<p class="said">{_said(sentence)}</p>',
        *(_section(section, numbers) for section in page.sections),
        page.scripts,
        f"<footer>{_said(footer)}</footer></body></html>\n",
    ]
    return "\n".join(parts)


def _state(word: str) -> str:
    return f'<span class="state {_said(word)}">{_said(word)}</span>' if word else ""


def _said(text: object) -> str:
    """Text as HTML; lone surrogates and control characters have no place in a file of UTF-8."""
    plain = "".join(c if c in "\n\t" or c.isprintable() else "�" for c in str(text))
    return html.escape(plain.encode("utf-8", "replace").decode("utf-8"))


def _section(section: Section, numbers: count[int]) -> str:
    return (
        f"<section><h2>{_said(section.title)}</h2>{''.join(_block(one, numbers) for one in section.blocks)}</section>"
    )


def _block(block: Block, numbers: count[int]) -> str:
    match block:
        case Text(text):
            return f"<p>{_said(text)}</p>"
        case Code(text):
            return f"<pre>{_said(text)}</pre>"
        case Table():
            return _table(block)
        case Cards(cards):
            each = (
                f'<div class="card"><span>{_said(name)}</span><b>{_said(value)}</b><span>{_said(note)}</span></div>'
                for name, value, note in cards
            )
            return f'<div class="cards">{"".join(each)}</div>'
        case Picture():
            return _picture(block, numbers)
        case Beside(pictures):
            return f'<div class="beside">{"".join(_picture(one, numbers) for one in pictures)}</div>'
        case Live(place):
            return f'<div class="live" id="{_said(place)}"></div>'
        case Gallery(items):
            each = (
                f"<figure>{_photograph(data)}<figcaption>{_said(words)}</figcaption></figure>" for data, words in items
            )
            return f'<div class="gallery">{"".join(each)}</div>'
        case Folded(title, blocks):
            inner = "".join(_block(one, numbers) for one in blocks)
            return f"<details><summary>{_said(title)}</summary>{inner}</details>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{_said(name)}</th>" for name in table.head)
    rows = ("".join(f"<td>{_said(value)}</td>" for value in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _picture(picture: Picture, numbers: count[int]) -> str:
    """The drawing; of several one, chosen by its label without any script."""
    alt = _said(picture.alt)
    images = [(label, f'<img alt="{alt}" src="{as_address(svg)}">') for label, svg in picture.svgs if svg]
    if len(images) < 2:
        return "".join(f"<p>{image}</p>" for _, image in images)
    group = f"tabs{next(numbers)}"
    choices = "".join(
        f'<input type="radio" name="{group}" id="{group}-{number}"{" checked" if not number else ""}>'
        f'<label for="{group}-{number}">{_said(label)}</label>'
        for number, (label, _) in enumerate(images)
    )
    # Divs count by their kind: the labels are none.
    shown = "".join(f'<div class="tab">{image}</div>' for _, image in images)
    return f'<div class="tabs">{choices}{shown}</div>'


def _photograph(data: str) -> str:
    """A PNG file in base64 as an image; nothing for anything else."""
    try:
        is_png = base64.b64decode(data, validate=True).startswith(b"\x89PNG")
    except ValueError:
        return ""
    return f'<img alt="" src="data:image/png;base64,{data}">' if is_png else ""
