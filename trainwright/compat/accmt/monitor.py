"""Monitor: what is logged, in ACCMT's names."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.callbacks.monitor import Monitor as NativeMonitor
from trainwright.compat.accmt.hyperparameters import read_config, truth
from trainwright.config.registry import suggestion
from trainwright.config.warnings import TrainwrightWarning


@dataclass
class Monitor:
    """Switches for what trackers and ``metrics.jsonl`` get.

    ``gpu_utilization`` and ``cpu_utilization`` are memory in GB, of the first process, in training only.

    >>> Monitor.of({"learning_rate": True}).learning_rate
    True
    """

    learning_rate: bool = False
    epoch: bool = True
    train_loss: bool = True
    validation_loss: bool = True
    additional_metrics: bool = True
    gpu_utilization: bool = False
    cpu_utilization: bool = False
    grad_norm: bool = False
    checkpoint: bool = False
    val_equal_train: bool = True

    @classmethod
    def of(cls, given: Any) -> Monitor:
        """``given``: a Monitor, its switches in a dict, the path of a file with them, or None for the usual ones."""
        if given is None or isinstance(given, Monitor):
            return given or cls()
        return cls.from_config(given)

    @classmethod
    def from_config(cls, config: str | Path | Mapping[str, Any]) -> Monitor:
        """Switches from a dict, or from a YAML or JSON file, which may have them below ``monitor``."""
        if not isinstance(config, (str, Path, Mapping)):
            raise ValueError(f"monitor must be a Monitor, a dict or a path, not a {type(config).__name__}.")
        values = config if isinstance(config, Mapping) else read_config(Path(config))
        values = values.get("monitor", values) if isinstance(values, Mapping) else values
        if not isinstance(values, Mapping):
            raise ValueError(f"monitor must hold switches, such as {{'learning_rate': True}}, not {values!r}.")
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise ValueError(f"monitor has no {name!r}{suggestion(name, names)}; it has {', '.join(names)}.")
        return cls(**{name: truth(f"monitor: {name}", value) for name, value in values.items()})

    def native(self) -> NativeMonitor:
        """The callback that does it."""
        if not self.val_equal_train:
            warnings.warn(
                "val_equal_train=False: validation values stand at the training step here, so that one axis serves.",
                TrainwrightWarning,
                stacklevel=4,
            )
        return NativeMonitor(
            learning_rate=self.learning_rate,
            epoch=self.epoch,
            train_loss=self.train_loss,
            validation_loss=self.validation_loss,
            additional_metrics=self.additional_metrics,
            grad_norm=self.grad_norm,
            gpu_memory=self.gpu_utilization,
            cpu_memory=self.cpu_utilization,
            checkpoints=self.checkpoint,
        )
