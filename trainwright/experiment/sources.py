"""Rows by name: files, folders, Hugging Face datasets, ``my_file.py:dataset``, registered names."""

from __future__ import annotations

import glob
import inspect
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.config.extras import install, is_installed
from trainwright.config.loading import Loaded
from trainwright.config.options import fitting_options
from trainwright.config.origin import class_if_imported
from trainwright.config.registry import find, is_registered, load_object, registered, split_reference, suggestion
from trainwright.config.shipped import SHIPPED
from trainwright.config.warnings import TrainwrightWarning
from trainwright.config.yaml12 import Place
from trainwright.experiment.hub import NotHere, means_missing, not_here, offline_where_unreachable
from trainwright.experiment.tables import NOT_UTF8, OPTIONS, OWN_READERS, Table, read_table

_READERS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
#: How readers say that there is nothing in a file.
_EMPTY = ("corresponds to no data", "EmptyDataError", "at least one example")
BUILT_IN = tuple(SHIPPED["dataset"])
SEPARATORS = (";", "\t", "|")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
ONE_FOLDER_EACH = (
    "Images of each class lie in a folder of their own, named after it: pictures/cat/1.png, pictures/dog/1.png."
)
IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def resolve(loaded: Loaded, place: Place, name: str) -> str:
    """``name`` as an absolute path where it is one; names of other things as they are."""
    path = loaded.base_folder(place) / Path(name).expanduser()
    reference = split_reference(name)
    if reference is not None:
        file = loaded.base_folder(place) / Path(reference[0]).expanduser()
        return f"{file.resolve()}:{reference[1]}"
    if path.exists() or glob.glob(str(path)):
        return str(path.resolve()) if path.exists() else str(path.absolute())
    if name.startswith((".", "/", "~")) or Path(name).suffix.lower() in _READERS:
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise loaded.error(place, f"there is no {path}{suggestion(path.name, beside)}.")
    return name


def is_by_name(loaded: Loaded, kind: str, place: Place, name: str, *, here: bool = False) -> bool:
    """Whether ``name`` is that of something registered; what a package offers gives way to a file of that name."""
    if is_registered(kind, name, installed=False):
        return True
    path = (Path.cwd() if here else loaded.base_folder(place)) / Path(name).expanduser()
    return not path.exists() and not glob.glob(str(path)) and is_registered(kind, name)


def load_rows(
    loaded: Loaded,
    part: str,
    *,
    name: str | None = None,
    split: str | None = None,
    phase: str | None = None,
    as_written: bool = False,
) -> Any:
    """The rows that ``data.<part>`` (or ``name``, or a phase) stands for: a dataset, or what the user's code gives.

    With ``as_written``, words of CSV and JSON files stay what they are in the file.
    """
    place, said = _named(loaded, part, phase)
    wanted = name if name is not None else said
    if not wanted:
        raise ConfigError("command line: --data is empty.")
    options = loaded.experiment.data.options
    if is_by_name(loaded, "dataset", place, wanted, here=name is not None):
        made = find("dataset", wanted, ".".join(map(str, place)))
        # Ours take no options; `unused.py` says so where some are given.
        return _called(made, {} if wanted in BUILT_IN else options)
    found = resolve(loaded, place, wanted) if name is None else named_here(wanted)
    if options.get("streaming"):
        raise loaded.error(
            ("data", "options"), "streaming: an experiment reads its data whole; use a Trainer in Python."
        )
    if split_reference(found) is not None:
        return _called(load_object(found, ".".join(map(str, place))), options)
    try:
        return _read(found, options, split or loaded.experiment.data.train_split, as_written)
    except ConfigError:
        raise
    except NotHere as error:
        near = suggestion(wanted, registered("dataset"))
        raise loaded.error(place, not_here(wanted, "dataset", near)) from error
    except Exception as error:
        # Anything: many readers, each with errors of its own.
        problem = f"{wanted!r} cannot be read: {_reason(error)}{suggestion(wanted, registered('dataset'))}"
        raise ConfigError(f"command line: --data {problem}") if name else loaded.error(place, problem) from error


def _named(loaded: Loaded, part: str, phase: str | None) -> tuple[Place, str | None]:
    """Where the data of a part, or of a phase, is named, and what stands there."""
    if phase is None:
        return ("data", part), getattr(loaded.experiment.data, part)
    return ("phases", phase, "data"), loaded.experiment.phases[phase].data


def folder_of_rows(loaded: Loaded, part: str, *, name: str | None = None, phase: str | None = None) -> Path:
    """The folder of the file that ``load_rows`` reads, by which files that it names are found."""
    place, said = _named(loaded, part, phase)
    found = Path(resolve(loaded, place, str(said)) if name is None else named_here(name))
    return found if found.is_dir() else found.parent


def _reason(error: BaseException) -> str:
    """What a reader says, in one line; what made it fail says more than that it did."""
    if any(words in f"{error} {error.__cause__!r}" for words in _EMPTY):
        return "it has no rows."
    only_says_so = isinstance(error, class_if_imported("datasets.exceptions", "DatasetGenerationError"))
    told = error.__cause__ if error.__cause__ is not None and only_says_so else error
    if isinstance(told, UnicodeDecodeError):
        return NOT_UTF8
    text = str(told).strip().splitlines()
    return text[0] if text and type(told) is not StopIteration else "it has no rows."


def named_here(name: str) -> str:
    """A name that the command line gave: a path from where one is, or the name of something else."""
    if Path(name).exists() or glob.glob(name) or split_reference(name) is not None:
        return name if split_reference(name) is not None else str(Path(name).absolute())
    if name.startswith((".", "/", "~")) or Path(name).suffix.lower() in _READERS:
        raise ConfigError(f"command line: --data {name}: there is no such file.")
    return name


def _called(thing: object, options: dict[str, Any]) -> Any:
    """A function or class is called with ``data.options``; anything else is the data."""
    if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.isbuiltin(thing):
        try:
            options = fitting_options(thing, options)
        except ValueError as error:
            raise ConfigError(f"data.options: {error}") from None
        return thing(**options)
    if options:
        raise ConfigError("data.options is for a function or class; this is an object already.")
    return thing


def as_dataset(rows: Any) -> Any:
    """Rows that somebody's code gave, with columns: a list of dicts with the same keys, or a dict of lists."""
    if isinstance(rows, (list, tuple)) and rows and all(isinstance(row, dict) for row in rows):
        names = rows[0].keys()
        if any(row.keys() != names for row in rows):
            raise ConfigError("The rows of the data do not all have the same columns.")
        rows = {name: [row[name] for row in rows] for name in names}
    if not (isinstance(rows, dict) and rows and all(isinstance(column, (list, tuple)) for column in rows.values())):
        return rows
    columns = {str(name): list(column) for name, column in rows.items()}
    return _library().Dataset.from_dict(columns) if is_installed("datasets") else Table(columns)


def _read(name: str, options: dict[str, Any], split: str, as_written: bool) -> Any:
    path = Path(name)
    if path.is_dir():
        return _folder(_library(), path, options, split)
    files = [name] if path.is_file() else sorted(glob.glob(name))
    if not files:
        return _from_hub(name, split, options)
    kinds = {_READERS.get(Path(file).suffix.lower()) for file in files}
    if len(kinds) != 1 or None in kinds:
        raise ConfigError(f"{name}: the endings of data files may be {', '.join(_READERS)}, one kind at a time.")
    (kind,) = kinds
    if Path(files[0]).suffix.lower() == ".tsv":
        options = {"delimiter": "\t", **options}
    if as_written and ((kind == "json" and not options) or (kind == "csv" and set(options) <= set(OPTIONS))):
        # Readers of datasets take "2024-01-05" for a date, and 007 for a number.
        return read_table(files, kind, options, as_written=True)
    if kind in OWN_READERS and not is_installed("datasets"):
        return read_table(files, kind, options, as_written=as_written)
    return _library().load_dataset(kind, data_files=files, split="train", **options)


def _from_hub(name: str, split: str, options: dict[str, Any]) -> Any:
    datasets = _library()
    with offline_where_unreachable() as is_offline:
        try:
            return datasets.load_dataset(name, split=split, **options)
        except Exception as error:
            if is_offline and means_missing(error):
                raise NotHere(name) from error
            raise


def _folder(datasets: Any, path: Path, options: dict[str, Any], split: str) -> Any:
    if (path / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(path))[split]
    if (path / "dataset_info.json").is_file() or (path / "state.json").is_file():
        return datasets.load_from_disk(str(path))
    if any(file.suffix.lower() in IMAGE_FILES for file in path.rglob("*")):
        options = {"data_dir": str(path), **options}
        return datasets.load_dataset("imagefolder", split=split, **options)
    return datasets.load_dataset(str(path), split=split, **options)


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(f"This data is read by the package datasets: {install('datasets')}") from error
    # It logs what it raises too, with a traceback.
    logging.getLogger("datasets.builder").setLevel(logging.CRITICAL)
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        # A bar never ends up in a log file.
        datasets.disable_progress_bars()
    return datasets


def split_names(loaded: Loaded, name: str) -> list[str]:
    """The parts that a dataset with parts has; empty for a file."""
    path = Path(resolve(loaded, ("data", "train"), name))
    if (path / "dataset_dict.json").is_file():
        return list(_library().load_from_disk(str(path)))
    if path.exists() or glob.glob(str(path)) or split_reference(name) or is_registered("dataset", name):
        return [child.name for child in path.iterdir() if child.is_dir()] if path.is_dir() else []
    datasets = _library()
    try:
        with offline_where_unreachable():
            return list(datasets.get_dataset_split_names(name, **_name_of(loaded.experiment.data.options)))
    except Exception as error:
        # Offline, or a dataset that does not say: a copy that is here may still be read, so this is not the end.
        warnings.warn(
            f"Which parts {name} has could not be found out ({type(error).__name__}): it is not evaluated unless "
            "data.eval_split, data.eval or data.holdout says on what.",
            TrainwrightWarning,
            stacklevel=2,
        )
        return []


def _name_of(options: dict[str, Any]) -> dict[str, Any]:
    return {"config_name": options["name"]} if "name" in options else {}


def eval_split(loaded: Loaded) -> str | None:
    """The part of the training dataset to evaluate on: the one named, or the usual ones."""
    data = loaded.experiment.data
    if data.eval_split is not None or data.train is None:
        return data.eval_split
    names = split_names(loaded, data.train)
    used = re.split(r"\[", data.train_split)[0]
    usual = ("validation", "valid", "val", "dev", "eval", "test")
    return next((name for name in usual if name in names and name != used), None)


def columns_of(rows: Any) -> list[str]:
    """Names of the columns; empty where rows have none."""
    names = getattr(rows, "column_names", None)
    if isinstance(names, list):
        return names
    first = rows[0] if hasattr(rows, "__getitem__") and len(rows) else None
    return list(first) if isinstance(first, dict) else []


def pick_column(loaded: Loaded, key: str, given: str | None, rows: object, usual: tuple[str, ...], what: str) -> str:
    """The column that was named, or the first of the usual names that is there."""
    columns = columns_of(rows)
    if given is not None:
        if given not in columns:
            why = how_else_read(columns)
            near = "" if why else suggestion(given, columns)
            problem = f"there is no column {given!r}{near}; there are {', '.join(columns)}."
            raise loaded.error(("data", key), f"{problem} {why}" if why else problem)
        return given
    for name in usual:
        if name in columns:
            return name
    # Said in place of the column, which is not what is wrong then.
    why = how_else_read(columns) or _no_images(columns, key, what) or f"Set data.{key}."
    raise ConfigError(
        f"{loaded.where(('data',))}: which column is {what}? There are {', '.join(columns) or 'none'}. {why}"
    )


def separator_of(columns: list[str]) -> str | None:
    """What a table is separated by that was read as one column; None where it is one.

    >>> separator_of(["age;kind"]), separator_of(["age", "kind"])
    (';', None)
    """
    return next((sign for sign in SEPARATORS if len(columns) == 1 and sign in columns[0]), None)


def how_else_read(columns: list[str]) -> str:
    """How a file should be read whose columns have names that are none; empty where they may be."""
    sign = separator_of(columns)
    if sign is not None:
        shown = sign.replace("\t", "\\t")
        return f'The columns seem to be separated by "{shown}": set data.options={{sep: "{shown}"}}.'
    if any(_NUMBER.fullmatch(name) for name in columns):
        return "The first line seems to hold values: begin the file with a line of names for the columns."
    return ""


def _no_images(columns: list[str], key: str, what: str) -> str:
    if what == "the image" and columns == ["text"]:
        return f"The folder holds no images ({', '.join(IMAGE_FILES)})."
    return ONE_FOLDER_EACH if key == "target" and columns == ["image"] else ""


def expect_columns(rows: object, names: Iterable[str]) -> None:
    """New rows need the columns that the model was trained with."""
    present = columns_of(rows)
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(
            f"The data lacks the columns {', '.join(missing)}, which the model was trained with; "
            f"there are {', '.join(present) or 'none'}."
        )


def class_numbers(rows: object, facts: dict[str, Any]) -> Callable[[Any], int]:
    """What stands in the target's column -> the class's number in training; other data may number its classes anew."""
    classes: list[str] = facts["classes"] or []
    codes = {name: index for index, name in enumerate(classes)}
    named = getattr(getattr(rows, "features", {}).get(facts["target"]), "names", None)

    def number(value: object) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number and named is None and facts["numbered"] and 0 <= value < len(classes):
            return value
        name = named[value] if is_number and named is not None and 0 <= value < len(named) else str(value)
        if name not in codes:
            raise ValueError(f"The label {name!r} is none of those trained with: {', '.join(classes)}.")
        return codes[name]

    return number


def hold_out(rows: Any, share: float, seed: int) -> tuple[Any, Any]:
    """(train, evaluation), chosen by ``seed`` alone."""
    if math.ceil(len(rows) * share) >= len(rows):
        raise ValueError(f"{share} of {len(rows)} rows leaves none to train on.")
    if hasattr(rows, "train_test_split"):
        parts = rows.train_test_split(test_size=share, seed=seed)
        return parts["train"], parts["test"]
    import torch

    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    count = max(1, round(len(rows) * share))
    return _taken(rows, order[count:]), _taken(rows, order[:count])


def first(rows: Any, limit: int | None) -> Any:
    """At most ``limit`` rows."""
    return rows if limit is None or limit >= len(rows) else _taken(rows, list(range(limit)))


def _taken(rows: Any, indices: list[int]) -> Any:
    if hasattr(rows, "select"):
        return rows.select(indices)
    from torch.utils.data import Subset

    return Subset(rows, indices)


Transform = Callable[[Any], Any]
