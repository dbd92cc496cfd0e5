"""A run's report: what is in it, in which order, and how it gets into the run directory."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainwright.config.errors import ConfigError
from trainwright.core.files import replace_text
from trainwright.report.blocks import Block, Cards, Code, Page, Section, Table, Text
from trainwright.report.html_page import html_of
from trainwright.report.markdown_page import markdown_of
from trainwright.report.sections.course import acceleration_section, events_section, profile_section, time_section
from trainwright.report.sections.curves import curve_section
from trainwright.report.sections.parts import children_section, tables_section
from trainwright.report.sections.phases import phases_section
from trainwright.report.sections.predictions import evaluation_section, samples_section
from trainwright.report.sections.recipe import recipe_section
from trainwright.report.sections.result import result
from trainwright.report.sections.settings import environment_section, reproduce_section, settings_section
from trainwright.report.sections.spread import spread_section
from trainwright.report.state import state_of
from trainwright.report.stored_run import StoredRun, is_run
from trainwright.report.words import when
from trainwright.version import __version__

HTML, MARKDOWN = "report.html", "report.md"
_MISSING = "A part that is missing"
logger = logging.getLogger("trainwright")
_SECTIONS = (
    result,
    tables_section,
    children_section,
    curve_section,
    phases_section,
    evaluation_section,
    samples_section,
    recipe_section,
    spread_section,
    time_section,
    profile_section,
    acceleration_section,
    events_section,
    settings_section,
    environment_section,
    reproduce_section,
)
#: What a reader of the model wants to know; samples of the data are not for everybody.
_FOR_A_CARD = (
    result,
    partial(evaluation_section, with_samples=False),
    recipe_section,
    settings_section,
    environment_section,
    reproduce_section,
)
#: Folders of an absolute path: of POSIX, but not those of an address on the web, and of Windows.
_PLACES = re.compile(
    r"(?<![\w./\\~])(?:file://)?~?/(?:[^\s/|`'\"]+/)+"
    r"|(?<![\w\\])(?:[A-Za-z]:\\|\\\\)(?:[^\s\\|`'\"]+\\)+"
)


class Written(NamedTuple):
    """The two files of a report."""

    html: Path
    markdown: Path


def page_of(run: StoredRun, *, is_over: bool = False) -> Page:
    """The whole report of a run."""
    state = state_of(run.folder, last_checkpoint=run.last_checkpoint_step, is_over=is_over)
    sections = [section for make in _SECTIONS if (section := _made(make, run)).blocks]
    return Page(run.name, state, sections)


def _made(make: Callable[[StoredRun], Section], run: StoredRun) -> Section:
    """What nobody thought of in one part costs nobody the others."""
    try:
        return make(run)
    except Exception as error:
        logger.debug("A part of the report could not be made", exc_info=True)
        return Section(_MISSING, [Text(f"It could not be made from these files: {type(error).__name__}.")])


def sections_for_card(folder: Path) -> str:
    """The same facts as Markdown for a model's README, without folders of this machine; empty where there is no run."""
    if not is_run(folder):
        return ""
    run = StoredRun(folder)
    sections = [section for make in _FOR_A_CARD if (section := _made(make, run)).blocks]
    named = [Section(section.title, [_without_folders(block) for block in section.blocks]) for section in sections]
    text = markdown_of(Page(run.name, ("", ""), named))
    return text[text.index("## ") :] if "## " in text else ""


def _without_folders(block: Block) -> Block:
    match block:
        case Text(text):
            return Text(_nameless(text))
        case Code(text):
            return Code(_nameless(text))
        case Table(head, rows):
            return Table(head, [[_nameless(cell) for cell in row] for row in rows])
        case Cards(cards):
            return Cards([(name, _nameless(value), note) for name, value, note in cards])
    # The others are not in Markdown, or hold no words of this machine's.
    return block


def _nameless(text: str) -> str:
    """Paths without their folders, which tell of somebody's machine.

    >>> _nameless("--data /home/alice/set/a.csv ~/b/c.csv C:\\\\x\\\\d.csv https://example.org/e/f +/- </s>")
    '--data a.csv c.csv d.csv https://example.org/e/f +/- </s>'
    """
    # One's home, where it is all of a path, has one's name in it.
    return _PLACES.sub("", text.replace(str(Path.home()), "~"))


def write_report(folder: Path, *, interactive: bool = False, is_over: bool = False) -> Written:
    """Write ``report.html`` and ``report.md`` into the directory of a run.

    ``interactive`` makes curves that can be zoomed, with the whole of plotly in the file (some megabytes). ``is_over``
    says that no training goes on there, whoever still keeps the folder.
    """
    refuse_what_is_no_run(folder)
    run = StoredRun(folder)
    page = page_of(run, is_over=is_over)
    if interactive:
        from trainwright.report.interactive import with_interactive_curves

        page = with_interactive_curves(page, run)
    written = Written(folder / HTML, folder / MARKDOWN)
    # The page first: what is made of it is more.
    replace_text(written.html, html_of(page, footer()), by_several=True)
    replace_text(written.markdown, markdown_of(page), by_several=True)
    return written


def refuse_what_is_no_run(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.")
    if not is_run(folder):
        raise ConfigError(f"{folder} is not the folder of a run: it has no config.yaml, run.json or metrics.jsonl.")


def footer(command: str = "report") -> str:
    return f"Made by trainwright {__version__}, {when(time.time())}. Again with: trainwright {command}"
