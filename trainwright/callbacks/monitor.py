"""What a run's logs show, switch by switch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.registry import suggestion
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState

logger = logging.getLogger("trainwright")

_GIGABYTE = 1e9
#: Of an evaluation's values, those that are no metric of the user's.
_TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")


class Monitor(TrainerCallback):
    """Takes what is switched off out of the logs, and adds what is switched on, before anybody sees or stores them.

    Losses, metrics, learning rate, gradient norm and epoch are on; what follows is off unless asked for. Values of the
    machine and the learning rate belong to training logs, and come from the first process only: ``gpu_0_memory_gb`` and
    ``gpu_0_reserved_gb``, ``gpu_0_utilization`` (percent), ``cpu_memory_gb`` (of this process), ``cpu_utilization``
    (percent), ``tokens_per_second``, ``data_wait`` (the share of the time that steps waited for data), ``checkpoints``
    (saved since training began or went on).

    >>> Monitor(cpu_memory=True, grad_norm=False).switches["grad_norm"]
    False
    """

    _leaves_model_alone = True

    def __init__(
        self,
        *,
        train_loss: bool = True,
        validation_loss: bool = True,
        additional_metrics: bool = True,
        learning_rate: bool = True,
        grad_norm: bool = True,
        epoch: bool = True,
        gpu_memory: bool = False,
        gpu_utilization: bool = False,
        cpu_memory: bool = False,
        cpu_utilization: bool = False,
        tokens_per_second: bool = False,
        data_wait: bool = False,
        checkpoints: bool = False,
    ) -> None:
        self.switches = {
            "train_loss": train_loss,
            "validation_loss": validation_loss,
            "additional_metrics": additional_metrics,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "epoch": epoch,
            "gpu_memory": gpu_memory,
            "gpu_utilization": gpu_utilization,
            "cpu_memory": cpu_memory,
            "cpu_utilization": cpu_utilization,
            "tokens_per_second": tokens_per_second,
            "data_wait": data_wait,
            "checkpoints": checkpoints,
        }
        self._adders: dict[str, Callable[[Any, TrainerState], dict[str, float]]] = {
            "gpu_memory": _gpu_memory,
            "gpu_utilization": _gpu_utilization,
            "cpu_memory": lambda args, state: {"cpu_memory_gb": _resident_bytes() / _GIGABYTE},
            "cpu_utilization": self._cpu_utilization,
            "tokens_per_second": self._tokens_per_second,
            "data_wait": self._data_wait_share,
            "checkpoints": lambda args, state: {"checkpoints": self._saved},
        }
        self._forget()

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | Path) -> Monitor:
        """From a dict of switches, or a YAML file that holds one.

        >>> Monitor.from_config({"cpu_memory": True}).switches["cpu_memory"]
        True
        """
        if isinstance(config, (str, Path)):
            import yaml

            source, config = str(config), yaml.safe_load(Path(config).read_text(encoding="utf-8")) or {}
        else:
            source = "monitor"
        if not isinstance(config, Mapping):
            raise ValueError(f"{source} must hold names of switches and true or false, like cpu_memory: true.")
        known = cls().switches
        for name, value in config.items():
            if name not in known:
                raise ValueError(
                    f"{source}: there is no {name!r} to monitor{suggestion(name, known)}: {', '.join(known)}."
                )
            if not isinstance(value, bool):
                raise ValueError(f"{source}: {name} is {value!r} and must be true or false.")
        return cls(**{str(name): value for name, value in config.items()})

    # ---- events

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._forget()
        self._tokens = state.num_input_tokens_seen

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._waited += time.perf_counter() - self._heard

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._heard = time.perf_counter()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._heard = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self._saved += 1
        self._heard = time.perf_counter()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs: dict[str, Any] = kwargs["logs"]
        if state.is_world_process_zero and "loss" in logs:
            for switch in [name for name in self._adders if self.switches[name]]:
                self._add(switch, logs, args, state)
            self._began, self._waited = time.perf_counter(), 0.0
        elif state.is_world_process_zero and "train_runtime" in logs and self.switches["checkpoints"]:
            logs["checkpoints"] = self._saved
        for name in [name for name in logs if self._is_off(name)]:
            del logs[name]
        self._heard = time.perf_counter()

    # ---- what is taken out

    def _is_off(self, name: str) -> bool:
        switch = _switch_of(name)
        return switch is not None and not self.switches[switch]

    # ---- what is added

    def _forget(self) -> None:
        now = time.perf_counter()
        self._began = self._heard = now
        self._waited, self._saved, self._tokens = 0.0, 0, 0
        self._processor_time = (now, time.process_time())

    def _add(self, switch: str, logs: dict[str, Any], args: TrainingArguments, state: TrainerState) -> None:
        try:
            logs.update(self._adders[switch](args, state))
        except Exception as error:
            self.switches[switch] = False
            logger.warning("Monitor(%s=True) is switched off: %s", switch, error)

    def _seconds(self) -> float:
        return max(time.perf_counter() - self._began, 1e-9)

    def _data_wait_share(self, args: TrainingArguments, state: TrainerState) -> dict[str, float]:
        return {"data_wait": min(self._waited / self._seconds(), 1.0)}

    def _tokens_per_second(self, args: TrainingArguments, state: TrainerState) -> dict[str, float]:
        if args.include_num_input_tokens_seen == "no":
            raise ValueError('tokens are not counted; set include_num_input_tokens_seen="all" or "non_padding".')
        counted, self._tokens = state.num_input_tokens_seen - self._tokens, state.num_input_tokens_seen
        return {"tokens_per_second": counted / self._seconds()}

    def _cpu_utilization(self, args: TrainingArguments, state: TrainerState) -> dict[str, float]:
        """Of this process, 100 for each core that it kept busy since the last log."""
        wall, used = self._processor_time
        self._processor_time = (time.perf_counter(), time.process_time())
        passed = max(self._processor_time[0] - wall, 1e-9)
        return {"cpu_utilization": 100 * (self._processor_time[1] - used) / passed}


def _switch_of(name: str) -> str | None:
    """The switch that a logged name belongs to; None for what is always shown."""
    fixed = {"loss": "train_loss", "epoch": "epoch", "grad_norm": "grad_norm"}
    if name in fixed:
        return fixed[name]
    if name == "learning_rate" or name.startswith("learning_rate_"):
        return "learning_rate"
    if name.startswith("eval_"):
        if name.endswith("_loss"):
            return "validation_loss"
        return None if name.endswith(_TIMES) else "additional_metrics"
    return None


def _gpus() -> list[int]:
    """Those that this process uses."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError("there is no GPU.")
    used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
    return used or [torch.cuda.current_device()]


def _gpu_memory(args: TrainingArguments, state: TrainerState) -> dict[str, float]:
    import torch

    found: dict[str, float] = {}
    for index in _gpus():
        found[f"gpu_{index}_memory_gb"] = torch.cuda.memory_allocated(index) / _GIGABYTE
        found[f"gpu_{index}_reserved_gb"] = torch.cuda.memory_reserved(index) / _GIGABYTE
    return found


def _gpu_utilization(args: TrainingArguments, state: TrainerState) -> dict[str, float]:
    import torch

    try:
        return {f"gpu_{index}_utilization": float(torch.cuda.utilization(index)) for index in _gpus()}
    except ImportError as error:
        raise ValueError("it needs the package nvidia-ml-py: pip install nvidia-ml-py") from error


def _resident_bytes() -> float:
    """Main memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        try:
            import psutil
        except ImportError as error:
            raise ValueError("on this system it needs the package psutil: pip install psutil") from error
        return psutil.Process().memory_info().rss
