"""``trainwright init``: an experiment with comments, made of what somebody wants to learn from which data."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.registry import suggestion
from trainwright.experiment.library import HOME, SCHEMA
from trainwright.experiment.sources import BUILT_IN, IMAGE_FILES, ONE_FOLDER_EACH, separator_of
from trainwright.experiment.tables import Table, read_table

#: What may be learned -> the task, a model to begin with, and what it is in words.
KINDS = {
    "table": ("tabular", "mlp", "predict one column of a table from the others"),
    "texts": ("text-classification", "distilbert-base-uncased", "label texts"),
    "language-model": ("causal-lm", "char-lm", "continue texts"),
    "images": ("image-classification", "cnn", "tell images apart"),
    "chat": ("chat", "HuggingFaceTB/SmolLM2-135M-Instruct", "answer as in these conversations"),
}
_READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
#: What lies beside data.
_NO_DATA = ("", ".txt", ".md", ".yaml", ".yml", ".py", ".html", ".pdf")
_TARGETS = ("target", "label", "labels", "class", "y", "price", "score")
#: Words of this many characters on average are texts and not names of something.
_LONG = 25
_NOTES = {
    "mlp": "a small network; its sizes: options: {width: 64, layers: 2}",
    "cnn": "learns from nothing; a name on the Hugging Face Hub, such as google/vit-base-patch16-224-in21k, knows more",
    "char-lm": "a small network that reads characters; gpt2 and other names on the Hugging Face Hub know more",
}


_ADAPTER = (
    "# adapter: {kind: lora, r: 16}            # train a small adapter and leave the model's weights as they are",
    "",
)


@dataclass(frozen=True)
class Wanted:
    """What is to be learned."""

    kind: str
    data: str
    model: str
    target: str | None = None
    text: str | None = None
    columns: tuple[str, ...] = ()
    #: Between the columns, where it is no comma.
    sep: str | None = None


def wanted(data: str, kind: str | None = None, model: str | None = None, target: str | None = None) -> Wanted:
    """What ``data`` may be used for, where the rest was not said."""
    sep, table = _table(data)
    _refuse_folder_without_classes(data, kind)
    kind = kind or guess(data, table)
    if kind not in KINDS:
        raise ConfigError(f"--task {kind!r} is not known{suggestion(kind, KINDS)}; there are {', '.join(KINDS)}.")
    columns = tuple(table.column_names) if table is not None and kind in ("table", "texts") else ()
    if target is not None and columns and target not in columns:
        near = suggestion(target, columns)
        raise ConfigError(f"--target: {data} has no column {target!r}{near}; there are {', '.join(columns)}.")
    text = _text_column(table) if kind == "texts" else None
    if target is None and columns:
        rest = [name for name in columns if name != text]
        target = next((name for name in _TARGETS if name in rest), rest[-1] if rest else None)
    return Wanted(kind, data, model or KINDS[kind][1], target, text, columns, sep)


def guess(data: str, table: Table | None) -> str:
    """What such data is usually for."""
    path = Path(data)
    if data == "digits" or (path.is_dir() and any(file.suffix.lower() in IMAGE_FILES for file in path.rglob("*"))):
        return "images"
    if data == "characters" or path.suffix.lower() in (".txt", ".text", ".md"):
        return "language-model"
    if table is not None and _holds_conversations(table):
        return "chat"
    return "texts" if table is not None and _text_column(table) is not None else "table"


def read_for_init(data: str) -> str:
    """What the first question may be answered with; refused where it is nothing."""
    if data not in BUILT_IN and Path(data).suffix and not Path(data).exists():
        beside = [file.name for file in Path(data).parent.iterdir()] if Path(data).parent.is_dir() else []
        raise ConfigError(f"--data: there is no {data}{suggestion(Path(data).name, beside)}.")
    return data


def write_experiment(what: Wanted, file: Path) -> list[Path]:
    """Write the experiment, and beside it the schema by which editors complete keys; never over a file."""
    if file.exists():
        raise ConfigError(f"{file} is there already: it is not overwritten. Choose another with --output.")
    written, schema = [file], file.parent / SCHEMA
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text_of(what, file), encoding="utf-8")
        if not schema.exists():
            shutil.copyfile(HOME / SCHEMA, schema)
            written.append(schema)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None
    return written


def text_of(what: Wanted, file: Path) -> str:
    """The experiment, as a file."""
    task, _, words = KINDS[what.kind]
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        f"# Learns to {words}. Written by `trainwright init`.",
        f"#   trainwright check {file}      # one step of everything in seconds; nothing is kept",
        f"#   trainwright train {file}      # the same command again resumes a run that was stopped",
        "# Anything here can be overridden behind the command: trainwright train ... training.learning_rate=1e-4",
        "model:",
        _line("name", what.model, _NOTES.get(what.model, "a name on the Hugging Face Hub, or a folder")),
        _line("task", task, "what is learned"),
        "",
        "data:",
        _line("train", _written_from(what.data, file), "a file, a folder, or a name on the Hugging Face Hub"),
    ]
    if what.sep is not None:
        shown = what.sep.replace("\t", "\\t")
        lines.append(_option("options", f'{{sep: "{shown}"}}', "what stands between the columns"))
    if what.text is not None:
        lines.append(_line("text", what.text, "the column with the texts"))
    if what.target is not None:
        lines.append(_line("target", what.target, f"the column to predict; there are {', '.join(what.columns)}"))
    if what.data not in BUILT_IN:
        lines.append(_line("holdout", 0.2, "share of the data to evaluate on; or eval: another file"))
    lines += [
        "",
        "training:",
        _line("num_train_epochs", 3 if what.kind in ("texts", "chat") else 10, "times through the data"),
        _line("per_device_train_batch_size", 8 if what.kind == "chat" else 16, "samples per step, on each GPU or CPU"),
        "  # learning_rate: 1e-3                 # left out: what suits the task",
        "  # bf16: true                          # on a GPU that has it: twice as fast",
        "",
        *_ADAPTER * (what.kind == "chat"),
        "# callbacks:",
        "#   early_stopping: {patience: 3}       # stop after three evaluations that are no better",
        "",
    ]
    return "\n".join(lines)


def _line(key: str, value: Any, comment: str) -> str:
    return _option(key, value if not isinstance(value, str) or _is_plain(value) else f'"{value}"', comment)


def _option(key: str, shown: Any, comment: str) -> str:
    return f"{f'  {key}: {shown}':<40}# {comment}"


def _is_plain(text: str) -> bool:
    """Whether YAML reads it as text without quotes."""
    return text.replace("-", "a").replace("_", "a").replace("/", "a").replace(".", "a").isalnum() and text[0].isalpha()


def _written_from(data: str, file: Path) -> str:
    """Paths in an experiment count from its folder."""
    path = Path(data)
    if data in BUILT_IN or not path.exists():
        return data
    folder = file.parent.resolve()
    return str(path.resolve().relative_to(folder)) if path.resolve().is_relative_to(folder) else str(path.resolve())


def _table(data: str) -> tuple[str | None, Table | None]:
    """What separates the columns, where it has to be said, and the table."""
    reader = _READERS.get(Path(data).suffix.lower())
    if reader is None or not Path(data).is_file():
        return None, None
    if data.lower().endswith(".tsv"):
        return None, read_table([data], reader, {"delimiter": "\t"})
    with Path(data).open(encoding="utf-8-sig", errors="replace") as file:
        sep = separator_of([first]) if reader == "csv" and "," not in (first := file.readline().strip("\r\n")) else None
    return sep, read_table([data], reader, {} if sep is None else {"delimiter": sep})


def _refuse_folder_without_classes(data: str, kind: str | None) -> None:
    """A folder that holds nothing to read, or images of one class alone."""
    path = Path(data)
    if data in BUILT_IN or not path.is_dir():
        return
    files = [file for file in path.rglob("*") if file.is_file()]
    images = [file for file in files if file.suffix.lower() in IMAGE_FILES]
    if not images and all(file.suffix.lower() in _NO_DATA for file in files) and kind in (None, "images"):
        raise ConfigError(f"--data: the folder {data} holds no images and no tables.")
    # Labels may also stand in a file beside the images.
    is_listed = any(file.stem == "metadata" for file in files)
    if images and kind in (None, "images") and not is_listed and len({file.parent.name for file in images}) < 2:
        raise ConfigError(f"--data: the images in {data} are of one class. {ONE_FOLDER_EACH}")


def _holds_conversations(table: Table) -> bool:
    names = set(table.column_names)
    return bool(names & {"messages", "conversations"}) or names >= {"instruction", "output"}


def _text_column(table: Table | None) -> str | None:
    """The column with the longest words, if these are texts."""
    if table is None:
        return None
    lengths = {}
    for name in table.column_names:
        values = [value for value in table[name] if value is not None]
        if values and all(isinstance(value, str) for value in values):
            lengths[name] = sum(map(len, values)) / len(values)
    longest = max(lengths, key=lengths.__getitem__, default=None)
    return longest if longest is not None and (lengths[longest] >= _LONG or longest == "text") else None
