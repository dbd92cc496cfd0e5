"""What the commands about runs print with ``--json``; ``docs/run-commands.md`` is made from it."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from trainwright.config.run_files import keys_of


class ListedRun(TypedDict):
    """One run of `trainwright runs --json`, which prints a list of them."""

    folder: Annotated[str, "Below the folder that was asked for."]
    state: Annotated[str, "training, finished, stopped, failed or interrupted."]
    step: Annotated[int | None, "The newest logged step."]
    max_steps: Annotated[int | None, "Of a finished run."]
    metric: Annotated[str | None, "Name of the last number that says most."]
    last: Annotated[float | None, "Its value; NaN and infinity are null."]
    best_metric: Annotated[str | None, "Name of metric_for_best_model."]
    best: float | None
    began: Annotated[float | None, "Seconds since 1970."]
    active: Annotated[float | None, "When it last wrote, in seconds since 1970."]
    bytes: Annotated[int, "Size of all its files, checkpoints included."]
    report: Annotated[str | None, "Path of its report.html, if there is one."]


class ShownRun(TypedDict):
    """What `trainwright show --json` prints."""

    folder: str
    id: str | None
    began: Annotated[float | None, "Seconds since 1970."]
    state: Annotated[str, "A sentence; state_word is one of those of runs."]
    state_word: str
    finished: Annotated[dict[str, Any] | None, "As in finished.json."]
    metrics: Annotated[dict[str, float | None], "The newest value of each logged number."]
    best: Annotated[dict[str, Any] | None, "metric, value and step."]
    checkpoints: list[str]
    bytes: int
    report: str | None
    settings: Annotated[dict[str, Any], "Those that are not the defaults."]
    history: Annotated[list[dict[str, Any]], "As in config.history.jsonl."]


class ComparedRun(TypedDict):
    """One run in a comparison."""

    folder: str
    state: str
    step: int | None
    seconds: Annotated[float | None, "Of all its processes, from performance.jsonl."]
    metrics: Annotated[dict[str, float | None], "The newest value of each logged number."]
    best: dict[str, Any] | None


class Comparison(TypedDict):
    """What `trainwright compare --json` prints."""

    runs: list[ComparedRun]
    settings: Annotated[dict[str, list[Any]], "Settings that differ, by name: one value for each run, in order."]
    html: Annotated[str | None, "The page, where --html asked for one."]


class ReportFiles(TypedDict):
    """What `trainwright report --json` prints."""

    html: str
    markdown: str


FORMS = {
    "trainwright runs --json": ListedRun,
    "trainwright show --json": ShownRun,
    "trainwright compare --json": Comparison,
    "a run in trainwright compare --json": ComparedRun,
    "trainwright report --json": ReportFiles,
}

_HEAD = """# Commands about runs

They read the files of a run's folder, never its process, and start no framework: a second at most.

    trainwright runs                     # all runs below ./runs: state, last and best metric, age, size
    trainwright runs elsewhere --state failed
    trainwright show runs/digits         # one run: state, numbers, checkpoints, settings and their history
    trainwright compare runs/a runs/b    # settings that differ, numbers; --html writes a page with curves
    trainwright report runs/digits       # report.html and report.md, anew; docs/reports.md

Each prints JSON with `--json`, in the forms below. Names, keys and their types stay within a major version; keys may
be added. NaN and infinity are null. Made by `python -m trainwright.report.json_forms`; a test holds the commands
against it.
"""


def page() -> str:
    """docs/run-commands.md."""
    parts = [_HEAD]
    for command, form in FORMS.items():
        parts.append(f"## {command}\n\n{form.__doc__}\n\n{keys_of(form)}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
