"""The files of a run directory, for whoever reads them: names, contents and since when.

``docs/run-directory.md`` is made from this table by ``python -m trainwright.config.run_files``; a test holds real runs
against it.
"""

from __future__ import annotations

import re
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


class RunRecord(TypedDict):
    """Whose the folder is."""

    id: Annotated[str, "Eight hexadecimal digits; also in the manifest of each of its checkpoints."]
    began: Annotated[float, "Seconds since 1970."]
    owns_unnamed: Annotated[bool, "Whether checkpoints without an id, of a release before 0.2, are its own."]


class FinishedRecord(TypedDict):
    """That the training came to its end."""

    step: int
    max_steps: int
    reason: Annotated[str | None, "Why it ended before max_steps, if it did."]
    by: Annotated[str | None, "The class of the callback that ended it."]
    has_model: Annotated[bool, "Whether `trainwright train` has written the finished model too."]
    time: float


class PreemptedRecord(TypedDict):
    """That the training was asked to stop and waits to be started again; gone once it goes on."""

    reason: str
    step: int
    checkpoint: Annotated[str | None, "Name of the folder that holds everything."]
    code: Annotated[int, "Exit code of the process."]
    time: float


class HistoryLine(TypedDict):
    """A setting that was changed while the run went on."""

    step: int
    what: str
    to: Any
    effect: Annotated[str, "free, course or no effect: docs/changing-a-run.md."]
    when: float
    command: list[str]


class MetricsLine(TypedDict):
    """What was logged at a step, under its own names beside these two."""

    step: int
    time: NotRequired[float]


class EventLine(TypedDict):
    """Something that happened to the run: a save, a signal, a full disk; each kind has further keys of its own."""

    time: float
    kind: str
    step: int | None
    message: str


class PerformanceLine(TypedDict):
    """Where the time went since the line before; of long runs, a thousandth of the time so far at least.

    The file is only ever added to: steps that were done again after a kill stand there twice. Rates are of training
    alone, without evaluations and saves.
    """

    step: int
    max_steps: Annotated[int, "Where the run ends."]
    time: float
    start: Annotated[float, "When this process began to train: processes of a run are told apart by it."]
    steps: Annotated[int, "Trained since the line before."]
    seconds: Annotated[dict[str, float], "By what they were spent on: begin, train, evaluate, save; data is in train."]
    steps_per_second: NotRequired[float]
    samples_per_second: NotRequired[float]
    tokens_per_second: NotRequired[float]
    flops_per_second: NotRequired[float]
    mfu: NotRequired[Annotated[float, "Share of what the GPU can do."]]
    data_wait: NotRequired[Annotated[float, "Share of the time of training that went into waiting for data."]]
    memory: NotRequired[Annotated[int, "Bytes."]]
    memory_total: NotRequired[Annotated[int, "Bytes."]]


class LayersRecord(TypedDict):
    """What a recipe has made of the model's layers."""

    layers: Annotated[list[dict[str, Any]], "Each with name, weights, sparsity and bits."]


class TablesRecord(TypedDict):
    """Tables of one's own for the report."""

    tables: Annotated[list[dict[str, Any]], "Each with title, head and rows of text."]


class HistogramsLine(TypedDict):
    """How the numbers of each weight and each gradient were spread at a log (`log_histograms`)."""

    step: int
    time: float
    gradients_of_step: int | None
    weights: Annotated[dict[str, Any], "By name: size, mean, std, and counts of equal bins between low and high."]
    gradients: dict[str, Any]


class SamplesLine(TypedDict):
    """What the model made of one of a few fixed samples at an evaluation (`SamplePredictions`)."""

    step: int
    sample: Annotated[int, "Its number, from 0."]
    kind: Annotated[str, "text, class, number or image."]
    input: Annotated[Any, "Text; of a picture a small PNG as base64."]
    label: Any
    prediction: Any
    probability: Annotated[float | None, "How sure it was of its class."]


class EnvironmentRecord(TypedDict):
    """What the last start of the run ran on."""

    command: list[str]
    python: str
    platform: str
    packages: dict[str, str]
    git: dict[str, Any] | None
    hardware: dict[str, Any]
    model: dict[str, Any] | None
    dataset: dict[str, Any] | None


class StateRecord(TypedDict):
    """transformers' record of a training; the whole log in the run directory, the newest entries in a checkpoint."""

    global_step: int
    max_steps: int
    epoch: float
    log_history: list[dict[str, Any]]
    best_metric: float | None
    best_global_step: int | None
    best_model_checkpoint: str | None


class PreprocessingRecord(TypedDict):
    """What an experiment found out about its data."""

    task: str
    facts: dict[str, Any]
    samples: int | None
    files: Annotated[dict[str, list[Any]], "By path: size, time of change, SHA-256."]
    parts: Annotated[dict[str, list[str]], "Which of them are for training and for evaluation."]


class ManifestRecord(TypedDict):
    """Every file of the checkpoint with size and SHA-256; written last: a folder without it is no checkpoint."""

    step: int
    files: dict[str, Any]
    run: NotRequired[dict[str, Any] | None]


class LogRecordFile(TypedDict):
    """How much of the run's log there was when the checkpoint was written."""

    entries: int
    lines: int
    first: Annotated[int, "The entry with which trainer_state.json goes on without a gap."]
    evaluations: int
    evaluations_before: int
    files: Annotated[dict[str, Any], "By name: bytes and SHA-256."]


class LeaseRecord(TypedDict):
    """Which process writes into the folder; gone when it has ended."""

    token: str
    host: str
    pid: int
    began: float
    beat: Annotated[int, "Raised every seconds_between_beats seconds."]
    seconds_between_beats: float


class RunFile(NamedTuple):
    """One file."""

    name: str
    #: json, lines (one JSON object a line), yaml, or other.
    form: str
    since: str
    what: str
    schema: type | None = None


RUN = (
    RunFile("config.yaml", "yaml", "0.1", "The arguments as they are now, secrets masked."),
    RunFile("config.history.jsonl", "lines", "0.2", "Settings that were changed since the run began.", HistoryLine),
    RunFile("env.json", "json", "0.1", "What it runs on.", EnvironmentRecord),
    RunFile("metrics.jsonl", "lines", "0.1", "Everything that was logged.", MetricsLine),
    RunFile("log_history.jsonl", "lines", "0.2", "Of logged values that JSON changes, how they were in `log_history`."),
    RunFile("events.jsonl", "lines", "0.1", "What happened besides.", EventLine),
    RunFile("performance.jsonl", "lines", "0.2", "Where the time went.", PerformanceLine),
    RunFile("evaluation.json", "json", "0.2", "By set: what the newest evaluation's predictions look like."),
    RunFile("layers.json", "json", "0.2", "Zeros and bits of each layer, where a recipe ran.", LayersRecord),
    RunFile("tables.json", "json", "0.2", "Tables for the report, by `add_table`.", TablesRecord),
    RunFile("report.html", "other", "0.2", "The report: open it in a browser."),
    RunFile("report.md", "other", "0.2", "The same as text."),
    RunFile("histograms.jsonl", "lines", "0.2", "Spreads of weights and gradients.", HistogramsLine),
    RunFile("samples.jsonl", "lines", "0.2", "Fixed samples with the model's predictions.", SamplesLine),
    RunFile("trainer_state.json", "json", "0.1", "The whole record, once training has ended.", StateRecord),
    RunFile("finished.json", "json", "0.2", "There if the training is over.", FinishedRecord),
    RunFile("preempted.json", "json", "0.1", "There if it was stopped and waits.", PreemptedRecord),
    RunFile("run.json", "json", "0.2", "Whose folder it is.", RunRecord),
    RunFile("run.lock", "other", "0.2", "Locked by the process that writes; nothing to read."),
    RunFile("run.lease.json", "json", "0.2", "Who writes at present.", LeaseRecord),
    RunFile("experiment.yaml", "yaml", "0.1", "The experiment as it is now, of `trainwright train`."),
    RunFile("preprocessing.json", "json", "0.1", "Facts about its data.", PreprocessingRecord),
    RunFile("recipe.yaml", "yaml", "0.1", "The recipe, where there is one; `recipe.svg` is its picture."),
    RunFile("recipe.svg", "other", "0.1", "The recipe over time."),
    RunFile("*_results.json", "json", "0.1", "Metrics of `evaluate`, or what `save_metrics` was given."),
    RunFile("predictions.jsonl", "lines", "0.1", "What `predict` wrote."),
    RunFile("stacks-*.txt", "other", "0.1", "Stacks of all threads, where the watchdog found a hang."),
    RunFile("logs/", "other", "0.1", "The log of each of several processes."),
    RunFile("profile/", "other", "0.1", "Traces of `profile=`."),
    RunFile("checkpoint-*/", "other", "0.1", "Checkpoints."),
    RunFile("previous-*/", "other", "0.2", "Checkpoints of other runs that were in the folder."),
)
CHECKPOINT = (
    RunFile("manifest.json", "json", "0.1", "What makes it a checkpoint.", ManifestRecord),
    RunFile("model.safetensors", "other", "0.1", "Weights, under the names of `state_dict()`."),
    RunFile("model-*.safetensors", "other", "0.1", "The same in parts, with Hugging Face's index."),
    RunFile("model.safetensors.index.json", "json", "0.1", "Which part holds what."),
    RunFile("optimizer.safetensors", "other", "0.1", "Tensors of the optimizer's state."),
    RunFile("random.safetensors", "other", "0.1", "Random states."),
    RunFile("callbacks.safetensors", "other", "0.1", "Tensors that callbacks and modifiers keep."),
    RunFile("training_state.json", "json", "0.1", "The rest of a resume: optimizer, schedule, place in the data."),
    RunFile("trainer_state.json", "json", "0.1", "The record at that step.", StateRecord),
    RunFile("log.json", "json", "0.2", "Where the rest of the log is.", LogRecordFile),
    RunFile("config.yaml", "yaml", "0.1", "The arguments as they were."),
    RunFile("config.history.jsonl", "lines", "0.2", "What had been changed by then.", HistoryLine),
    RunFile("recipe.yaml", "yaml", "0.1", "The recipe."),
)

_HEAD = """# The run directory

`output_dir` (of an experiment: `runs/<name>`) is meant to be read by others: files are written whole or appended by
whole lines, so they can be read at any moment without a lock. Names, keys and their types stay within a major version;
keys may be added. Besides what is listed there are the files of the model itself (`model.safetensors`, `config.json`,
those of a tokenizer), and whatever your own code writes. Names that begin with a dot and end in `.writing` are drafts.

Made by `python -m trainwright.config.run_files`; `pytest tests/experiment/test_run_directory_page.py` holds runs of
every kind against it.
"""


def page() -> str:
    """docs/run-directory.md."""
    parts = [_HEAD, "## In the run directory\n", _table(RUN), "## In a checkpoint\n", _table(CHECKPOINT)]
    parts.append("## Contents\n")
    schemas = {one.schema: one for one in (*RUN, *CHECKPOINT) if one.schema is not None}
    for schema, file in schemas.items():
        each = "Each line" if file.form == "lines" else "It"
        parts.append(f"### {file.name}\n\n{schema.__doc__} {each} has at least:\n\n{keys_of(schema)}")
    return "\n".join(parts)


def _table(files: tuple[RunFile, ...]) -> str:
    rows = [f"| `{one.name}` | {one.form} | {one.since} | {one.what} |" for one in files]
    return "\n".join(["| file | form | since | what |", "|---|---|---|---|", *rows, ""])


def keys_of(schema: type) -> str:
    """The keys of a TypedDict as a list in Markdown."""
    assert is_typeddict(schema)
    hints = get_type_hints(schema, include_extras=True)
    names = [f"- `{name}`: {_words(kind)}" for name, kind in hints.items()]
    if schema is HistoryLine:
        names.insert(2, "- `from`: anything")
    return "\n".join(names) + "\n"


def _words(kind: Any) -> str:
    if get_origin(kind) is NotRequired:
        return f"{_words(get_args(kind)[0])}; may be missing"
    if get_origin(kind) is Annotated:
        inner, text = get_args(kind)
        return f"{_words(inner)}; {text[0].lower()}{text[1:].removesuffix('.')}"
    if kind is Any:
        return "anything"
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"\w+(\.\w+)*\.(?=\w)", "", text).replace(" | None", ", or null")


if __name__ == "__main__":
    print(page(), end="")
