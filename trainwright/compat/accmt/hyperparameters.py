"""HyperParameters: epochs, batch sizes, optimizer and schedule, as an object, a dict, or a YAML or JSON file."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler

from trainwright.config.registry import suggestion
from trainwright.config.yaml12 import read_yaml_file
from trainwright.engines.torch.optim_own import Adafactor
from trainwright.engines.torch.schedules import build_scheduler

KEYS = ("epochs", "max_steps", "batch_size", "optim", "optimizer", "scheduler", "step_scheduler_per_epoch")
_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


class FactorSchedule:
    """One of the schedules that count warm-up and training steps: called, it builds it."""

    def __init__(self, name: str, native: str, *options: str) -> None:
        self.__name__, self.native, self.options = name, native, options

    def __call__(
        self,
        optimizer: Any,
        num_warmup_steps: int = 0,
        num_training_steps: int = 1,
        last_epoch: int = -1,
        **kwargs: Any,
    ) -> Any:
        if last_epoch != -1:
            raise ValueError(
                f"{self.__name__}: last_epoch={last_epoch} is not needed, a resumed run goes on by itself."
            )
        return build_scheduler(
            self.native, optimizer, warmup_steps=num_warmup_steps, total_steps=num_training_steps, kwargs=kwargs
        )

    def __repr__(self) -> str:
        return f"Scheduler.{self.__name__}"


class Optimizer:
    """Optimizers by the names that ``optim`` and ``optimizer`` take."""

    Adam = torch.optim.Adam
    Adadelta = torch.optim.Adadelta
    Adagrad = torch.optim.Adagrad
    Adamax = torch.optim.Adamax
    AdamW = torch.optim.AdamW
    Adafactor = Adafactor
    ASGD = torch.optim.ASGD
    LBFGS = torch.optim.LBFGS
    NAdam = torch.optim.NAdam
    RAdam = torch.optim.RAdam
    RMSprop = torch.optim.RMSprop
    Rprop = torch.optim.Rprop
    SGD = torch.optim.SGD
    SparseAdam = torch.optim.SparseAdam


class Scheduler:
    """Schedules by the names that ``scheduler`` takes."""

    StepLR = lr_scheduler.StepLR
    LinearLR = lr_scheduler.LinearLR
    ExponentialLR = lr_scheduler.ExponentialLR
    CosineAnnealingLR = lr_scheduler.CosineAnnealingLR
    CyclicLR = lr_scheduler.CyclicLR
    OneCycleLR = lr_scheduler.OneCycleLR
    CosineAnnealingWarmRestarts = lr_scheduler.CosineAnnealingWarmRestarts
    Constant = FactorSchedule("Constant", "constant")
    ConstantWithWarmup = FactorSchedule("ConstantWithWarmup", "constant_with_warmup")
    CosineWithWarmup = FactorSchedule("CosineWithWarmup", "cosine", "num_cycles")
    CosineWithHardRestartsWithWarmup = FactorSchedule(
        "CosineWithHardRestartsWithWarmup", "cosine_with_restarts", "num_cycles"
    )
    InverseSQRT = FactorSchedule("InverseSQRT", "inverse_sqrt", "timescale")
    LinearWithWarmup = FactorSchedule("LinearWithWarmup", "linear")
    PolynomialDecayWithWarmup = FactorSchedule("PolynomialDecayWithWarmup", "polynomial", "lr_end", "power")


class HyperParameters:
    """How long to train, on how much at once, and with which optimizer and schedule.

    ``batch_size`` is that of one process: a number, or (train, validation), or (train, validation, test).
    ``max_steps`` counts optimizer steps and comes before ``epochs``. Without a scheduler the learning rate is constant.

    >>> hps = HyperParameters(epochs=2, batch_size=[16, 32], optim="AdamW", optim_kwargs={"lr": "1e-3"})
    >>> hps.optim_kwargs, hps.batch_sizes
    ({'lr': 0.001}, (16, 32, 32))
    >>> HyperParameters.from_config({"hps": {"epochs": 1, "optimizer": {"type": "SGD", "lr": 0.1}}}).optim.__name__
    'SGD'
    """

    def __init__(
        self,
        epochs: int = 1,
        batch_size: int | tuple[int, ...] | list[int] = 1,
        optim: Any = "SGD",
        optim_kwargs: dict[str, Any] | None = None,
        scheduler: Any = None,
        scheduler_kwargs: dict[str, Any] | None = None,
        *,
        max_steps: int | None = None,
        optimizer: Any = None,
        step_scheduler_per_epoch: bool = False,
    ) -> None:
        self.epochs = _positive("epochs", epochs)
        self.max_steps = None if max_steps is None else _positive("max_steps", max_steps)
        self.batch_size = batch_size
        self.batch_sizes = _batch_sizes(batch_size)
        self.optim = self.optimizer = _named(Optimizer, "optimizer", optim if optimizer is None else optimizer)
        self.optim_kwargs = _numbers(optim_kwargs or {})
        if self.optim is not Adafactor or self.optim_kwargs.get("lr") is not None:
            # That one is told what to do without.
            _check_rate(self.optim, self.optim_kwargs)
        self.scheduler = None if scheduler is None else _named(Scheduler, "scheduler", scheduler)
        self.scheduler_kwargs = _numbers(scheduler_kwargs or {})
        self.step_scheduler_per_epoch = truth("step_scheduler_per_epoch", step_scheduler_per_epoch)
        _refuse_unknown(self.optim, self.optim_kwargs, ("params",), "optimizer")
        if self.scheduler is not None:
            _refuse_unknown(self.scheduler, self.scheduler_kwargs, ("optimizer",), "scheduler")
        elif self.scheduler_kwargs:
            raise ValueError(
                f"scheduler_kwargs={self.scheduler_kwargs}, but no scheduler: name one, or leave them out."
            )

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, Any] | HyperParameters) -> HyperParameters:
        """Hyperparameters of a YAML or JSON file, or of a dict, whose top key may be ``hps``."""
        if isinstance(config, HyperParameters):
            return config
        if isinstance(config, Mapping):
            return cls._of(config.get("hps", config), "hps_config")
        if not isinstance(config, (str, Path)):
            raise ValueError(f"hps_config must be a path, a dict or HyperParameters, not a {type(config).__name__}.")
        content = read_config(Path(config))
        if not isinstance(content, Mapping) or "hps" not in content:
            raise ValueError(f"{config} has no top key 'hps': put epochs, batch_size, optim, ... below it.")
        return cls._of(content["hps"], str(config))

    @classmethod
    def _of(cls, values: Any, where: str) -> HyperParameters:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: hps must be a mapping with epochs, batch_size, optim, ..., not {values!r}.")
        for key in values:
            if key not in KEYS:
                raise ValueError(f"{where}: hps has no {key!r}{suggestion(key, KEYS)}; it has {', '.join(KEYS)}.")
        if "optim" in values and "optimizer" in values:
            raise ValueError(f"{where}: optim and optimizer are two names of one thing: keep one.")
        optimizer = values.get("optimizer", values.get("optim"))
        if optimizer is None:
            raise ValueError(f"{where}: hps needs an optimizer, for instance optim: {{type: AdamW, lr: 1e-3}}.")
        if "epochs" not in values and "max_steps" not in values:
            raise ValueError(f"{where}: hps needs epochs (or max_steps).")
        name, options = _type_and_options(optimizer, f"{where}: optimizer")
        schedule = values.get("scheduler")
        schedule_name, schedule_options = (
            (None, {}) if schedule is None else _type_and_options(schedule, f"{where}: scheduler")
        )
        try:
            return cls(
                epochs=values.get("epochs", 1),
                batch_size=values.get("batch_size", 1),
                optim=name,
                optim_kwargs=options,
                scheduler=schedule_name,
                scheduler_kwargs=schedule_options,
                max_steps=values.get("max_steps"),
                step_scheduler_per_epoch=values.get("step_scheduler_per_epoch", False),
            )
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`from_config` reads."""
        hps: dict[str, Any] = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "optim": {"type": self.optim.__name__, **self.optim_kwargs},
        }
        if self.max_steps is not None:
            hps["max_steps"] = self.max_steps
        if self.scheduler is not None:
            hps["scheduler"] = {"type": self.scheduler.__name__, **self.scheduler_kwargs}
        if self.step_scheduler_per_epoch:
            hps["step_scheduler_per_epoch"] = True
        return {"hps": hps}

    def get_config(self) -> dict[str, Any]:
        """All values in one flat dict, as trackers show them."""
        hps = self.to_dict()["hps"]
        optim, schedule = hps.pop("optim"), hps.pop("scheduler", {})
        flat = {**hps, **optim, "optimizer": optim["type"], **schedule}
        if schedule:
            flat["scheduler"] = schedule["type"]
        flat.pop("type", None)
        return flat

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


def read_config(path: Path) -> Any:
    """The content of a YAML or JSON file."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    # JSON is YAML.
    return read_yaml_file(path).data


def _type_and_options(value: Any, where: str) -> tuple[Any, dict[str, Any]]:
    if isinstance(value, Mapping):
        if "type" not in value:
            raise ValueError(
                f"{where} needs a type, for instance type: {'AdamW' if 'optim' in where else 'OneCycleLR'}."
            )
        return value["type"], {str(key): option for key, option in value.items() if key != "type"}
    return value, {}


def _named(holder: type, what: str, value: Any) -> Any:
    """What ``value`` names in ``holder``; classes and functions as they are."""
    if not isinstance(value, str):
        if not callable(value):
            raise ValueError(f"{what}={value!r} is neither a name nor a class.")
        return value
    names = [name for name in vars(holder) if not name.startswith("_")]
    if value not in names:
        raise ValueError(f"{what} {value!r} is not known{suggestion(value, names)}; there are {', '.join(names)}.")
    return getattr(holder, value)


def options_of(builder: Callable[..., Any]) -> set[str]:
    """Keyword arguments that an optimizer or schedule takes in a configuration."""
    if isinstance(builder, FactorSchedule):
        return {*builder.options, "num_warmup_steps", "warmup_ratio", "num_training_steps", "last_epoch"}
    return set(inspect.signature(builder).parameters)


def _refuse_unknown(builder: Callable[..., Any], given: Mapping[str, Any], hidden: tuple[str, ...], what: str) -> None:
    known = options_of(builder) - set(hidden)
    if builder is Adafactor:
        known |= {"eps", "relative_step", "warmup_init"}
    for key in given:
        if key not in known:
            name = getattr(builder, "__name__", builder)
            raise ValueError(
                f"{what} {name} takes no {key!r}{suggestion(key, known)}; it takes {', '.join(sorted(known))}."
            )


def truth(name: str, value: Any) -> bool:
    """``value`` as a boolean; ``yes`` and ``no`` are words to YAML 1.2, and were booleans to what read these files.

    >>> truth("resume", "no"), truth("resume", True)
    (False, True)
    """
    found = _WORDS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError(f"{name}={value!r} must be True or False.")
    return found


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with numbers for strings that are numbers (YAML 1.1 reads ``1e-3`` as text), and booleans."""
    return {key: _number(value) for key, value in values.items()}


def _number(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_number(item) for item in value)
    if not isinstance(value, str):
        return value
    if value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _check_rate(optimizer: Any, options: Mapping[str, Any]) -> None:
    """The learning rate, named where it is wrong: an optimizer would take ``True`` for 1."""
    rate = options.get("lr", 0.0)
    is_number = isinstance(rate, (int, float, torch.Tensor)) and not isinstance(rate, bool)
    if not is_number or not 0 <= float(rate) < math.inf:
        name = getattr(optimizer, "__name__", optimizer)
        raise ValueError(f"optimizer {name}: lr={rate!r} must be a number, 0 or more.")


def _positive(name: str, value: Any) -> int:
    number = _number(value)
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
    if not is_number or number != int(number) or number < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1.")
    return int(number)


def _batch_sizes(value: Any) -> tuple[int, int, int]:
    """(train, validation, test); what is left out is the last one given."""
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not 1 <= len(given) <= 3:
        raise ValueError(f"batch_size={value!r} must be a number, [train, val] or [train, val, test].")
    sizes = [_positive("batch_size", size) for size in given]
    sizes += [sizes[-1]] * (3 - len(sizes))
    return sizes[0], sizes[1], sizes[2]
