"""Checkpoints as PyMarlin names them, each one file: tensors and JSON with a checksum, never a pickle."""

from __future__ import annotations

import logging
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.checkpoint.interchange.reading import read_pickle
from trainwright.checkpoint.manifest import DamagedCheckpoint
from trainwright.checkpoint.states import read_state, write_state
from trainwright.compat.pymarlin.utils.checkpointer.contents import check_parts
from trainwright.compat.pymarlin.utils.distributed import ranks_from_environment
from trainwright.config.warnings import warn

EXTENSION = "safetensors"
logger = logging.getLogger("trainwright")
_WAY_OUT = (
    "Usually that is a scheduler's function (OneCycleLR of torch before 2.0) or a state of your own. Open it where it "
    "was made, keep what is tensors and numbers (module_interface_state, and of trainer_state last_epoch and "
    "optimizers), torch.save that, and set reset_optimizers_schedulers=True."
)


@dataclass
class Checkpoint:
    """The states of a run's three parts: nested dicts and lists of tensors and of what JSON holds.

    >>> bool(Checkpoint())
    False
    """

    module_interface_state: dict[str, Any] | None = None
    trainer_state: dict[str, Any] | None = None
    trainer_backend_state: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return any((self.module_interface_state, self.trainer_state, self.trainer_backend_state))


def _default_folder() -> str:
    return os.path.join(os.getcwd(), "checkpoints")


@dataclass
class DefaultCheckpointerArguments:
    """Where and when :class:`DefaultCheckpointer` saves, and what it loads."""

    #: False saves nothing, not even when a run is interrupted.
    checkpoint: bool = True
    #: Delete this prefix's checkpoints in ``save_dir`` at the start.
    delete_existing_checkpoints: bool = False
    #: Save epochs whose number, from 0, divides by this; the last one always.
    period: int = 1
    save_dir: str = field(default_factory=_default_folder)
    model_state_save_dir: str | None = field(default_factory=_default_folder)
    #: Where to look for a checkpoint to go on from; None starts anew.
    load_dir: str | None = None
    #: This file of ``load_dir`` instead of the newest.
    load_filename: str | None = None
    file_prefix: str = "model"
    file_ext: str = EXTENSION
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period must be at least 1, got {self.period}; checkpoint=False saves nothing.")
        #: What PyMarlin called its files.
        self.original_ext = self.file_ext.lstrip(".")
        if self.original_ext != EXTENSION:
            warn(
                f"file_ext={self.file_ext!r}: checkpoints are safetensors files here and are called .{EXTENSION}, so "
                "that nobody takes them for pickles."
            )
            self.file_ext = EXTENSION
        # Absolute: somebody's code may change the working directory.
        self.save_dir = os.path.abspath(self.save_dir)
        if self.model_state_save_dir:
            self.model_state_save_dir = os.path.abspath(self.model_state_save_dir)


class AbstractCheckpointer(ABC):
    """Keeps checkpoints. What ``save`` is given must come back from ``load`` for a run to go on exactly."""

    @abstractmethod
    def save(self, checkpoint_state: Checkpoint, index: int, force: bool = False) -> Any:
        """Keep ``checkpoint_state``; ``index`` is the epoch, ``force`` asks to keep it whatever the period."""

    def save_model(self, checkpoint_state: dict[str, Any], index: int) -> Any:  # noqa: B027 - optional
        """Keep the module's state at the end of the training; optional."""

    @abstractmethod
    def load(self) -> Checkpoint:
        """The checkpoint to go on from; an empty one to start anew."""


class DefaultCheckpointer(AbstractCheckpointer):
    """Files ``{prefix}_{epoch}.safetensors``, and ``{prefix}_model_{epoch}.safetensors`` for the finished model."""

    #: The file that ``load`` has read.
    loaded_from: Path | None = None

    def __init__(self, args: DefaultCheckpointerArguments | None = None) -> None:
        self.args = args or DefaultCheckpointerArguments()
        self.logger = logging.getLogger("trainwright.pymarlin.checkpointer")
        self.logger.setLevel(self.args.log_level)
        self._make_folders()
        if self.args.delete_existing_checkpoints and ranks_from_environment().global_rank == 0:
            for path in _numbered(Path(self.args.save_dir), self.args.file_prefix, deep=False):
                self.logger.warning("Deleting %s (delete_existing_checkpoints=True).", path)
                path.unlink(missing_ok=True)

    def _make_folders(self) -> None:
        """At once, so that a place that cannot be written to is found out before the first epoch."""
        if ranks_from_environment().global_rank != 0:
            return
        for folder in filter(None, (self.args.save_dir, self.args.model_state_save_dir)):
            # The ordinary folder only where something will be in it.
            if self.args.checkpoint or folder != _default_folder():
                Path(folder).mkdir(parents=True, exist_ok=True)

    def save(self, checkpoint_state: Checkpoint, index: int, force: bool = False) -> str | None:
        """Write a checkpoint where it is due; returns its path."""
        if not self.args.checkpoint or (index % self.args.period and not force):
            return None
        path = Path(self.args.save_dir) / f"{self.args.file_prefix}_{index}.{EXTENSION}"
        return str(write_state(path, vars(checkpoint_state), "checkpoint"))

    def save_model(self, checkpoint_state: dict[str, Any], index: int) -> str | None:
        """Write the module's state; returns its path."""
        if not self.args.checkpoint or not self.args.model_state_save_dir:
            return None
        path = Path(self.args.model_state_save_dir) / f"{self.args.file_prefix}_model_{index}.{EXTENSION}"
        return str(write_state(path, dict(checkpoint_state), "model state"))

    def load(self) -> Checkpoint:
        """The file named, or the newest checkpoint of this prefix that is whole."""
        if not self.args.load_dir:
            return Checkpoint()
        folder = Path(self.args.load_dir)
        if self.args.load_filename:
            return self._load_named(folder)
        if not folder.is_dir():
            self.logger.error("load_dir=%s does not exist: training starts from the beginning.", folder)
            return Checkpoint()
        found = _numbered(folder, self.args.file_prefix) or self._originals(folder)[:1]
        if not found:
            self.logger.error(
                "load_dir=%s holds no checkpoint called %s_<epoch>.%s: training starts from the beginning.",
                folder,
                self.args.file_prefix,
                EXTENSION,
            )
            return Checkpoint()
        for path in found:
            try:
                return self._read(path)
            except DamagedCheckpoint as error:
                self.logger.error("%s Trying the one before it.", error)
        raise ValueError(
            f"Every checkpoint in {folder} is damaged ({', '.join(path.name for path in found)}). Move them away, or "
            "set load_dir=None, to start anew."
        )

    def _load_named(self, folder: Path) -> Checkpoint:
        path = folder / str(self.args.load_filename)
        if not path.is_file():
            there = ", ".join(sorted(p.name for p in folder.glob(f"*.{EXTENSION}"))) or "no checkpoint"
            raise ValueError(f"load_filename={self.args.load_filename!r} is not in {folder}, which holds {there}.")
        return self._read(path)

    def _read(self, path: Path) -> Checkpoint:
        found = _full(path)
        self.loaded_from = path
        return found

    def _originals(self, folder: Path) -> list[Path]:
        """Checkpoints that PyMarlin wrote, newest epoch first."""
        found = (_numbered(folder, self.args.file_prefix, ending) for ending in self._original_endings())
        return next((paths for paths in found if paths), [])

    def _original_endings(self) -> list[str]:
        endings = dict.fromkeys((self.args.original_ext, "pt", "tar", "bin"))
        return [ending for ending in endings if ending != EXTENSION]

    @staticmethod
    def get_latest_file(
        load_dir: str, file_prefix: str, file_ext: str = EXTENSION, logger: logging.Logger | None = None
    ) -> str:
        """Path of the checkpoint with the highest epoch under ``load_dir``, not looked into; "" if there is none."""
        found = _numbered(Path(load_dir), file_prefix, file_ext.lstrip("."))
        if not found:
            (logger or logging.getLogger("trainwright")).info("There is no checkpoint in %s.", load_dir)
        return str(found[0]) if found else ""


@dataclass
class BestCheckpointerArguments(DefaultCheckpointerArguments):
    """What :class:`BestCheckpointer` compares, and which of its files it loads."""

    #: Name of a registered buffer of the module, or of a number in its ``get_state()``.
    metric_name: str = "val_perplexity"
    init_metric_val: float | None = None
    #: "min", "max", or a function (new, old) -> whether new is better.
    criteria: str | Callable[[float, float], bool] = "min"
    #: Also keep a file for each epoch.
    save_every_epoch: bool = False
    #: Go on from the best instead of the latest.
    load_best: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.criteria, str) and self.criteria not in ("min", "max"):
            raise ValueError(f"criteria={self.criteria!r} must be 'min', 'max' or a function (new, old) -> bool.")
        if callable(self.criteria) and self.init_metric_val is None:
            raise ValueError("criteria as a function needs init_metric_val, the value to beat first.")


class BestCheckpointer(DefaultCheckpointer):
    """Keeps the latest checkpoint, and the one whose metric is best."""

    def __init__(self, args: BestCheckpointerArguments) -> None:
        super().__init__(args)
        self.best_args = args
        self.best_checkpoint_name = f"{args.file_prefix}_best_checkpoint.{EXTENSION}"
        self.latest_checkpoint_name = f"{args.file_prefix}_latest_checkpoint.{EXTENSION}"
        first = math.inf if args.criteria == "min" else -math.inf
        self.best_metric = first if args.init_metric_val is None else args.init_metric_val

    def save(self, checkpoint_state: Checkpoint, index: int, force: bool = False) -> Any:
        """Write the latest, and the best if this is it; returns the paths."""
        args = self.best_args
        paths = [super().save(checkpoint_state, index, force)] if args.save_every_epoch else []
        if not args.checkpoint or (index % args.period and not force):
            return paths
        metric = self._metric(checkpoint_state)
        names = [self.latest_checkpoint_name]
        if self._is_better(metric):
            self.best_metric = metric
            names.insert(0, self.best_checkpoint_name)
        folder = Path(args.save_dir)
        return paths + [str(write_state(folder / name, vars(checkpoint_state), "checkpoint")) for name in names]

    def _metric(self, checkpoint: Checkpoint) -> float:
        state = checkpoint.module_interface_state or {}
        name = self.best_args.metric_name
        if name not in state:
            raise ValueError(f"metric_name={name!r} is not in the module's state: register it as a buffer.")
        return float(state[name])

    def _is_better(self, metric: float) -> bool:
        criteria = self.best_args.criteria
        if callable(criteria):
            return criteria(metric, self.best_metric)
        return metric < self.best_metric if criteria == "min" else metric > self.best_metric

    def load(self) -> Checkpoint:
        """The latest, or the best; a new process goes on comparing with the best there is."""
        args = self.best_args
        if not args.load_dir or args.load_filename:
            return super().load()
        best, latest = map(self._ours_or_original, (self.best_checkpoint_name, self.latest_checkpoint_name))
        if best is not None:
            found = self._read(best)
            self.best_metric = self._metric(found)
            if args.load_best:
                return found
        # Without a latest those of each epoch, and those that PyMarlin's DefaultCheckpointer wrote.
        return super().load() if latest is None else self._read(latest)

    def _ours_or_original(self, name: str) -> Path | None:
        path = Path(self.best_args.load_dir or "") / name
        places = [path, *(path.with_suffix(f".{ending}") for ending in self._original_endings())]
        return next((place for place in places if place.is_file()), None)


def _numbered(folder: Path, prefix: str, extension: str = EXTENSION, *, deep: bool = True) -> list[Path]:
    """Full checkpoints of ``prefix``, newest epoch first; a finished model's file has another name."""
    pattern = re.compile(rf"{re.escape(prefix)}_(-?\d+)\.{re.escape(extension)}")
    paths = folder.rglob("*") if deep else folder.glob("*")
    matches = [(match, path) for path in paths if path.is_file() and (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(matches, key=lambda pair: (int(pair[0][1]), str(pair[1])), reverse=True)]


def _full(path: Path) -> Checkpoint:
    if is_torch_file(path):
        return read_original(path)
    state = read_state(path)
    if not isinstance(state, dict) or set(state) != set(vars(Checkpoint())):
        raise DamagedCheckpoint(path, ["it holds no full checkpoint (a finished model only?)"])
    return Checkpoint(**state)


def is_torch_file(path: Path) -> bool:
    """Whether ``torch.save`` wrote it, as PyMarlin does."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02")


def read_original(path: Path) -> Checkpoint:
    """A checkpoint that PyMarlin wrote, without running anything in it."""
    state = read_pickle(path, way_out=_WAY_OUT)
    check_parts(state, list(vars(Checkpoint())), path)
    logger.warning("%s was written by PyMarlin (torch.save); checkpoints from here on are safetensors files.", path)
    return Checkpoint(**state)
