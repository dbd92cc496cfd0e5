"""ACCMT's interface before trainwright's loop: write ``trainwright.compat.accmt`` where a script says ``accmt``."""

from typing import TYPE_CHECKING, Any

import torch

from trainwright.compat.accmt.callbacks import Callback
from trainwright.compat.accmt.casting import autocast, autocast_
from trainwright.compat.accmt.casting import precision as _precision
from trainwright.compat.accmt.collate_fns import (
    DataCollatorForLanguageModeling,
    DataCollatorForLongestSequence,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorForWholeWordMask,
    DataCollatorWithPadding,
)
from trainwright.compat.accmt.decorators import (
    accelerator,
    on_last_process,
    on_local_main_process,
    on_local_process,
    on_main_process,
    on_process,
)
from trainwright.compat.accmt.evaluator import Evaluator
from trainwright.compat.accmt.handlers import Handler
from trainwright.compat.accmt.hp_search import HyperParameterSearch
from trainwright.compat.accmt.hyperparameters import HyperParameters, Optimizer, Scheduler
from trainwright.compat.accmt.metrics import Metric, MetricBatch, MetricParallel
from trainwright.compat.accmt.modules import AcceleratorModule, ExtendedAcceleratorModule
from trainwright.compat.accmt.monitor import Monitor
from trainwright.compat.accmt.samplers import TemperatureSampler
from trainwright.compat.accmt.tracker import Aim, ClearML, CometML, DVCLive, MLFlow, TensorBoard, WandB
from trainwright.compat.accmt.trainer import Trainer
from trainwright.data.curriculum import RangeCurriculum, RatioCurriculum, StepsCurriculum
from trainwright.engines.torch.randomness import set_seed

if TYPE_CHECKING:
    from trainwright.compat.accmt.progress import tqdm as tqdm

    precision: torch.dtype

__all__ = [
    "AcceleratorModule",
    "Aim",
    "Callback",
    "ClearML",
    "CometML",
    "DVCLive",
    "DataCollatorForLanguageModeling",
    "DataCollatorForLongestSequence",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorForWholeWordMask",
    "DataCollatorWithPadding",
    "Evaluator",
    "ExtendedAcceleratorModule",
    "Handler",
    "HyperParameterSearch",
    "HyperParameters",
    "MLFlow",
    "Metric",
    "MetricBatch",
    "MetricParallel",
    "Monitor",
    "Optimizer",
    "RangeCurriculum",
    "RatioCurriculum",
    "Scheduler",
    "StepsCurriculum",
    "TemperatureSampler",
    "TensorBoard",
    "Trainer",
    "WandB",
    "accelerator",
    "allow_tf32",
    "autocast",
    "autocast_",
    "on_last_process",
    "on_local_main_process",
    "on_local_process",
    "on_main_process",
    "on_process",
    "precision",
    "set_seed",
    "tqdm",
]


def allow_tf32(flag: bool = True) -> None:
    """Let matrix products use TensorFloat-32 on GPUs that have it."""
    torch.set_float32_matmul_precision("high" if flag else "highest")


def __getattr__(name: str) -> Any:
    # Its package is needed by nothing else.
    if name == "tqdm":
        from trainwright.compat.accmt.progress import tqdm

        return tqdm
    if name == "precision":
        return _precision()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
