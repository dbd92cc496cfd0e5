"""ACCMT's interface before trainwright's loop: write ``trainwright.compat.accmt`` where a script says ``accmt``."""

import torch

from trainwright.compat.accmt.callbacks import Callback
from trainwright.compat.accmt.handlers import Handler
from trainwright.compat.accmt.hyperparameters import HyperParameters, Optimizer, Scheduler
from trainwright.compat.accmt.metrics import Metric, MetricBatch, MetricParallel
from trainwright.compat.accmt.modules import AcceleratorModule, ExtendedAcceleratorModule
from trainwright.compat.accmt.monitor import Monitor
from trainwright.compat.accmt.tracker import Aim, ClearML, CometML, DVCLive, MLFlow, TensorBoard, WandB
from trainwright.compat.accmt.trainer import Trainer
from trainwright.data.collators_lm import DataCollatorForLanguageModeling
from trainwright.data.collators_text import (
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from trainwright.data.collators_text import DataCollatorWithPadding as DataCollatorForLongestSequence
from trainwright.data.curriculum import RangeCurriculum, RatioCurriculum, StepsCurriculum
from trainwright.engines.torch.randomness import set_seed

__all__ = [
    "AcceleratorModule",
    "Aim",
    "Callback",
    "ClearML",
    "CometML",
    "DVCLive",
    "DataCollatorForLanguageModeling",
    "DataCollatorForLongestSequence",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorWithPadding",
    "ExtendedAcceleratorModule",
    "Handler",
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
    "TensorBoard",
    "Trainer",
    "WandB",
    "allow_tf32",
    "set_seed",
]


def allow_tf32(flag: bool = True) -> None:
    """Let matrix products use TensorFloat-32 on GPUs that have it."""
    torch.set_float32_matmul_precision("high" if flag else "highest")
