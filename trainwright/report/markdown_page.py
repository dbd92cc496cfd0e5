"""The same report as Markdown: tables and words, for a terminal, a pull request or a model's page."""

from __future__ import annotations

import re

from trainwright.report.blocks import Beside, Block, Cards, Code, Folded, Gallery, Live, Page, Picture, Table, Text

_MEANING = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&@-])")
#: Between letters it has none.
_IN_A_NAME = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")


def markdown_of(page: Page) -> str:
    """The whole file.

    >>> print(markdown_of(Page("a|b", ("finished", "at step 3"))))
    # a\\|b
    <BLANKLINE>
    finished: at step 3
    <BLANKLINE>
    """
    word, sentence = page.state
    if not sentence.startswith(word):
        sentence = f"{word}: {sentence}"
    parts = [f"# {_said(page.title)}", *([_said(sentence)] if sentence else [])]
    for section in page.sections:
        blocks = [text for block in section.blocks if (text := _block(block))]
        if blocks:
            parts += [f"## {_said(section.title)}", *blocks]
    return "\n\n".join(parts) + "\n"


def _said(text: object) -> str:
    """Text that means nothing to Markdown, on one line.

    >>> print(_said("eval_loss of *all* _sets_"))
    eval_loss of \\*all\\* \\_sets\\_
    """
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    escaped = _MEANING.sub(r"\\\1", plain).replace("\\-", "-").replace("\\(", "(").replace("\\)", ")")
    return _IN_A_NAME.sub("_", escaped)


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return _said(text)
        case Code(text):
            text = "".join(c if c == "\n" or c.isprintable() else " " for c in text)
            # No line of it can end the block.
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return f"{fence}\n{text}\n{fence}"
        case Table(head, rows):
            return _table(head, rows)
        case Cards(cards):
            return _table(("", "", ""), cards)
        case Gallery(items):
            return "\n".join(f"- {_said(words)}" for _, words in items)
        case Picture() | Beside() | Folded() | Live():
            # report.html has them.
            return ""


def _table(head: object, rows: object) -> str:
    def line(values: object) -> str:
        assert isinstance(values, (list, tuple))
        return f"| {' | '.join(_said(value) for value in values)} |"

    assert isinstance(head, (list, tuple))
    assert isinstance(rows, (list, tuple))
    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])
