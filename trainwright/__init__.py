"""trainwright: one exact, fast training loop behind the front doors you already know.

Names are loaded when first used, so that ``import trainwright`` and ``trainwright --help`` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainwright.version import __version__

if TYPE_CHECKING:
    from transformers import DataCollator as DataCollator
    from transformers import HfArgumentParser as HfArgumentParser
    from transformers import get_scheduler as get_scheduler

    from trainwright.callbacks.early_stopping import EarlyStoppingCallback as EarlyStoppingCallback
    from trainwright.callbacks.flow import DefaultFlowCallback as DefaultFlowCallback
    from trainwright.callbacks.monitor import Monitor as Monitor
    from trainwright.callbacks.progress import PrinterCallback as PrinterCallback
    from trainwright.callbacks.progress import ProgressCallback as ProgressCallback
    from trainwright.checkpoint.directory import get_last_checkpoint as get_last_checkpoint
    from trainwright.config import IntervalStrategy as IntervalStrategy
    from trainwright.config import SaveStrategy as SaveStrategy
    from trainwright.config import SchedulerType as SchedulerType
    from trainwright.config import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from trainwright.config import TrainingArguments as TrainingArguments
    from trainwright.config.cadence import Every as Every
    from trainwright.config.loading import load_experiment as load_experiment
    from trainwright.config.registry import register as register
    from trainwright.config.registry import registered as registered
    from trainwright.core.callback import TrainerCallback as TrainerCallback
    from trainwright.core.checkpointer import Checkpoint as Checkpoint
    from trainwright.core.checkpointer import Checkpointer as Checkpointer
    from trainwright.core.data_words import DataWords as DataWords
    from trainwright.core.errors import NonFiniteError as NonFiniteError
    from trainwright.core.errors import NotSavedError as NotSavedError
    from trainwright.core.errors import Preempted as Preempted
    from trainwright.core.modifier import Modifier as Modifier
    from trainwright.core.module import StepPlan as StepPlan
    from trainwright.core.phases import Phase as Phase
    from trainwright.core.results import EvalPrediction as EvalPrediction
    from trainwright.core.results import PredictionOutput as PredictionOutput
    from trainwright.core.results import TrainOutput as TrainOutput
    from trainwright.core.state import TrainerControl as TrainerControl
    from trainwright.core.state import TrainerState as TrainerState
    from trainwright.core.tracker import TrackedRun as TrackedRun
    from trainwright.core.tracker import Tracker as Tracker
    from trainwright.data.collators import default_data_collator as default_data_collator
    from trainwright.data.collators_text import DataCollatorWithPadding as DataCollatorWithPadding
    from trainwright.data.curriculum import RangeCurriculum as RangeCurriculum
    from trainwright.data.curriculum import RatioCurriculum as RatioCurriculum
    from trainwright.data.curriculum import StepsCurriculum as StepsCurriculum
    from trainwright.data.numbered import numbered as numbered
    from trainwright.engines.torch.ema import EMACallback as EMACallback
    from trainwright.engines.torch.ensembles.ensemble import Ensemble as Ensemble
    from trainwright.engines.torch.loss_functions.base import Loss as Loss
    from trainwright.engines.torch.loss_functions.classification import CrossEntropyLoss as CrossEntropyLoss
    from trainwright.engines.torch.loss_functions.classification import FocalLoss as FocalLoss
    from trainwright.engines.torch.loss_functions.embeddings import ContrastiveLoss as ContrastiveLoss
    from trainwright.engines.torch.loss_functions.embeddings import InfoNCELoss as InfoNCELoss
    from trainwright.engines.torch.loss_functions.embeddings import SupConLoss as SupConLoss
    from trainwright.engines.torch.loss_functions.ordinal import OrdinalLoss as OrdinalLoss
    from trainwright.engines.torch.loss_functions.overlap import DiceCrossEntropyLoss as DiceCrossEntropyLoss
    from trainwright.engines.torch.loss_functions.overlap import DiceLoss as DiceLoss
    from trainwright.engines.torch.loss_functions.several_classes import (
        BinaryCrossEntropyLoss as BinaryCrossEntropyLoss,
    )
    from trainwright.engines.torch.loss_functions.triplets import TripletLoss as TripletLoss
    from trainwright.engines.torch.module import Module as Module
    from trainwright.engines.torch.randomness import set_seed as set_seed
    from trainwright.engines.torch.regularisers.mixing import CutMix as CutMix
    from trainwright.engines.torch.regularisers.mixing import Mixup as Mixup
    from trainwright.engines.torch.regularisers.noise import GradientNoise as GradientNoise
    from trainwright.engines.torch.regularisers.perturbing import FGM as FGM
    from trainwright.engines.torch.regularisers.perturbing import SAM as SAM
    from trainwright.engines.torch.regularisers.two_passes import RDrop as RDrop
    from trainwright.experiment.souping import soup as soup
    from trainwright.search.sweep import sweep as sweep
    from trainwright.trainer import Seq2SeqTrainer as Seq2SeqTrainer
    from trainwright.trainer import Trainer as Trainer
    from trainwright.trainer.calibrating import calibrate as calibrate
    from trainwright.training.keep_best import KeepBest as KeepBest
    from trainwright.training.sample_predictions import SamplePredictions as SamplePredictions

#: Public name -> module that defines it.
_HOMES = {
    "SAM": "engines.torch.regularisers.perturbing",
    "RDrop": "engines.torch.regularisers.two_passes",
    "Mixup": "engines.torch.regularisers.mixing",
    "GradientNoise": "engines.torch.regularisers.noise",
    "FGM": "engines.torch.regularisers.perturbing",
    "CutMix": "engines.torch.regularisers.mixing",
    "TripletLoss": "engines.torch.loss_functions.triplets",
    "SupConLoss": "engines.torch.loss_functions.embeddings",
    "OrdinalLoss": "engines.torch.loss_functions.ordinal",
    "Loss": "engines.torch.loss_functions.base",
    "InfoNCELoss": "engines.torch.loss_functions.embeddings",
    "FocalLoss": "engines.torch.loss_functions.classification",
    "DiceLoss": "engines.torch.loss_functions.overlap",
    "DiceCrossEntropyLoss": "engines.torch.loss_functions.overlap",
    "CrossEntropyLoss": "engines.torch.loss_functions.classification",
    "ContrastiveLoss": "engines.torch.loss_functions.embeddings",
    "BinaryCrossEntropyLoss": "engines.torch.loss_functions.several_classes",
    "BestRun": "core.results",
    "Checkpoint": "core.checkpointer",
    "Checkpointer": "core.checkpointer",
    "DataCollatorForMultipleChoice": "data.collators_text",
    "DataCollatorForPermutationLanguageModeling": "data.collators_lm",
    "DataCollatorForLanguageModeling": "data.collators_lm",
    "DataCollatorForSeq2Seq": "data.collators_text",
    "DataCollatorForTokenClassification": "data.collators_text",
    "DataCollatorForWholeWordMask": "data.collators_lm",
    "DataCollatorWithFlattening": "data.collators",
    "DataCollatorWithPadding": "data.collators_text",
    "DefaultDataCollator": "data.collators",
    "DefaultFlowCallback": "callbacks.flow",
    "EMACallback": "engines.torch.ema",
    "EarlyStoppingCallback": "callbacks.early_stopping",
    "Ensemble": "engines.torch.ensembles.ensemble",
    "EvalLoopOutput": "core.results",
    "EvalPrediction": "core.results",
    "Every": "config.cadence",
    "ExportableState": "core.state",
    "HubStrategy": "config",
    "IntervalStrategy": "config",
    "KeepBest": "training.keep_best",
    "Modifier": "core.modifier",
    "Module": "engines.torch.module",
    "Monitor": "callbacks.monitor",
    "NonFiniteError": "core.errors",
    "NotSavedError": "core.errors",
    "OptimizerNames": "config",
    "Phase": "core.phases",
    "PredictionOutput": "core.results",
    "Preempted": "core.errors",
    "PrinterCallback": "callbacks.progress",
    "ProgressCallback": "callbacks.progress",
    "RangeCurriculum": "data.curriculum",
    "RatioCurriculum": "data.curriculum",
    "SamplePredictions": "training.sample_predictions",
    "SaveStrategy": "config",
    "SchedulerType": "config",
    "Seq2SeqTrainer": "trainer",
    "Seq2SeqTrainingArguments": "config",
    "StepPlan": "core.module",
    "StepsCurriculum": "data.curriculum",
    "DataWords": "core.data_words",
    "TrackedRun": "core.tracker",
    "Tracker": "core.tracker",
    "TrainOutput": "core.results",
    "Trainer": "trainer",
    "TrainerCallback": "core.callback",
    "TrainerControl": "core.state",
    "TrainerState": "core.state",
    "TrainingArguments": "config",
    "calibrate": "trainer.calibrating",
    "default_data_collator": "data.collators",
    "enable_full_determinism": "engines.torch.randomness",
    "get_last_checkpoint": "checkpoint.directory",
    "load_experiment": "config.loading",
    "numbered": "data.numbered",
    "register": "config.registry",
    "registered": "config.registry",
    "set_seed": "engines.torch.randomness",
    "soup": "experiment.souping",
    "sweep": "search.sweep",
}

#: What else a script imports beside transformers' Trainer, and is handed on from there: one import line is enough.
_OF_TRANSFORMERS = frozenset(
    {
        "DataCollator",
        "HfArgumentParser",
        "get_constant_schedule",
        "get_constant_schedule_with_warmup",
        "get_cosine_schedule_with_warmup",
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        "get_inverse_sqrt_schedule",
        "get_linear_schedule_with_warmup",
        "get_polynomial_decay_schedule_with_warmup",
        "get_scheduler",
        "get_wsd_schedule",
    }
)

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _OF_TRANSFORMERS:
        return _handed_on(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'trainwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"trainwright.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def _handed_on(name: str) -> Any:
    try:
        return getattr(importlib.import_module("transformers"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"trainwright.{name} is that of transformers: pip install 'trainwright[hf]'.") from error


def __dir__() -> list[str]:
    return __all__
