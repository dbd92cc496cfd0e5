"""What an evaluation outside of training may be told, and where its results go."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.compat.accmt.settings import Settings
from trainwright.compat.accmt.this_process import ThisProcess
from trainwright.config.warnings import TrainwrightWarning
from trainwright.core.files import replace_text


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What differs from the training's; None is as there."""

    metrics: Any = None
    compile: bool | None = None
    batch_size: int | None = None
    device_placement: bool | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    collate_fn: Any = None
    prepare_batch: bool | None = None
    enable_prepare_logging: bool | None = None

    @classmethod
    def taken_from(cls, kwargs: dict[str, Any]) -> EvaluationOptions:
        """Those among ``kwargs``, which loses them."""
        known = {each.name for each in dataclasses.fields(cls)}
        return cls(**{name: kwargs.pop(name) for name in list(kwargs) if name in known})

    def settings(self, of_training: Settings) -> Settings:
        """The training's settings with these."""
        if self.device_placement is False:
            warnings.warn(
                "device_placement=False changes nothing: batches are placed where the model is.",
                TrainwrightWarning,
                stacklevel=3,
            )
        news: dict[str, Any] = {
            "compile": self.compile,
            "dataloader_num_workers": self.num_workers,
            "dataloader_pin_memory": self.pin_memory,
        }
        later = of_training.later
        if self.collate_fn is not None:
            later = dataclasses.replace(later, collate_fn_train=None, collate_fn_val=self.collate_fn)
            news["collate_fn"] = None
        if self.compile is False:
            later = dataclasses.replace(later, compile_kwargs=None)
        given: dict[str, Any] = {
            name: value for name, value in news.items() if value is not None or name == "collate_fn"
        }
        return dataclasses.replace(of_training, **given, later=later)

    def batch_sizes(self, of_training: tuple[int, int, int]) -> tuple[int, int, int]:
        return of_training if self.batch_size is None else (self.batch_size,) * 3


def report(results: dict[str, float], file: str | Path | None, *, prints: bool) -> None:
    """Write results to a JSON file, and print them, in the first process."""
    if not ThisProcess().is_main_process:
        return
    if prints:
        print("Results of the evaluation:", *(f"  {name}: {value}" for name, value in results.items()), sep="\n")
    if file is not None:
        replace_text(Path(file), json.dumps(results, indent=2) + "\n")
