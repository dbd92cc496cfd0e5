"""What the commands about runs print with ``--json``; ``docs/run-commands.md`` is made from it."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from trainwright.config.run_files import keys_of


class ListedRun(TypedDict):
    """One run of `trainwright runs --json`, which prints a list of them."""

    folder: Annotated[str, "Below the folder that was asked for."]
    state: Annotated[str, "training, finished, stopped, failed or interrupted."]
    step: Annotated[int | None, "The newest that is known."]
    max_steps: Annotated[int | None, "Where it ends, or was to end."]
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
    settings: Annotated[
        dict[str, list[Any]],
        "Settings that differ, by name (model.options.width and the like too): one value for each run, in order.",
    ]
    html: Annotated[str | None, "The page, where --html asked for one."]


class ReportFiles(TypedDict):
    """What `trainwright report --json` prints."""

    html: str
    markdown: str


class VerifiedCheckpoint(TypedDict):
    """One checkpoint of `trainwright verify --json`, which prints a list of them."""

    checkpoint: Annotated[str, "Name of its folder."]
    problems: Annotated[list[str], "Empty where every file is what was written."]


class PackagedExperiment(TypedDict):
    """One experiment of `trainwright ls --json`, which prints a list of them."""

    name: str
    what: str
    needs: Annotated[list[str], "Packages beyond trainwright's own."]
    install: Annotated[str | None, "The command that installs what is missing."]


class CheckedExperiment(TypedDict):
    """What `trainwright check --json` prints."""

    found: Annotated[list[dict[str, str]], "Each with name and text, in the order of the lines without --json."]
    train: Annotated[list[str], "The command that trains it, word by word."]


class ShownRecipe(TypedDict):
    """What `trainwright recipe show --json` prints."""

    file: str
    epochs: Annotated[float, "When its last modifier ends."]
    modifiers: Annotated[
        list[dict[str, Any]], "Each with label, detail, start, end and stage; epochs, end may be null."
    ]


class TailedLine(TypedDict):
    """One line of `trainwright tail --json`, which prints an object a line."""

    kind: Annotated[str, "log, event, or at the end of --follow state."]
    time: NotRequired[Annotated[float | None, "Seconds since 1970."]]
    step: NotRequired[int | None]
    values: NotRequired[
        Annotated[dict[str, Any], "Of a log its numbers, NaN and infinity as text; of an event all else."]
    ]
    event: NotRequired[Annotated[str, "Of an event: its kind, such as saved."]]
    message: NotRequired[Annotated[str, "Of an event or state: a sentence."]]
    state: NotRequired[Annotated[str, "One of those of runs."]]


class LookedAt(TypedDict):
    """What `trainwright look --json` prints."""

    batch: Annotated[
        dict[str, Any],
        "samples; fields (name, shape, dtype, least, greatest, ignored); rows (text, label, values); notes.",
    ]
    model: Annotated[
        dict[str, Any],
        "model, layers, parameters, trained, weights (bytes), flops_per_sample, flops_per_step, memory (bytes by what "
        "it is for), notes.",
    ]


class FoundRates(TypedDict):
    """What `trainwright lr-find --json` prints."""

    rates: Annotated[list[float], "Those that were tried."]
    losses: Annotated[list[float | None], "The loss at each."]
    smoothed: Annotated[list[float], "The same as a moving mean."]
    suggestion: Annotated[float | None, "Where it falls fastest."]
    has_diverged: Annotated[bool, "Greater rates were not tried, because the loss had grown too far."]


FORMS = {
    "trainwright runs --json": ListedRun,
    "trainwright show --json": ShownRun,
    "trainwright compare --json": Comparison,
    "a run in trainwright compare --json": ComparedRun,
    "trainwright report --json": ReportFiles,
    "trainwright tail --json": TailedLine,
    "trainwright look --json": LookedAt,
    "trainwright lr-find --json": FoundRates,
    "trainwright verify --json": VerifiedCheckpoint,
    "trainwright ls --json": PackagedExperiment,
    "trainwright check --json": CheckedExperiment,
    "trainwright recipe show --json": ShownRecipe,
}

_HEAD = """# Commands that look, and their JSON

Those about runs read the files of a run's folder, never its process, and start no framework.

    trainwright runs                     # all runs below ./runs: state, last and best metric, age, size
    trainwright runs elsewhere --state failed
    trainwright show runs/digits         # one run: state, numbers, checkpoints, settings and their history
    trainwright compare runs/a runs/b    # settings that differ, numbers; --html writes a page with curves
    trainwright report runs/digits       # report.html and report.md, anew; docs/reports.md
    trainwright tail runs/digits -f      # the newest of log and events, and what comes

These, and `look`, `lr-find`, `verify`, `ls`, `check` and `recipe show`, print JSON with `--json`, in the forms below.
(Of `prove`: [docs/proving.md](proving.md), of `try`: [docs/try.md](try.md); `env` prints nothing else, `evaluate`
metrics by name, `estimate` sizes in bytes by the names of its table.) Names, keys and their types stay
within a major version; keys may be added. NaN and infinity are null where nothing else is said. Made by
`python -m trainwright.report.json_forms`; tests hold the commands against it.
"""


def page() -> str:
    """docs/run-commands.md."""
    parts = [_HEAD]
    for command, form in FORMS.items():
        parts.append(f"## {command}\n\n{form.__doc__}\n\n{keys_of(form)}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
