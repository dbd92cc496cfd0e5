"""The names of MindNLP 0.4: ``from trainwright.compat.mindnlp.engine import Trainer, TrainingArguments``."""

from trainwright.compat.mindnlp.engine.callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    EarlyStoppingCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from trainwright.compat.mindnlp.engine.train_args import TrainingArguments
from trainwright.compat.mindnlp.engine.trainer import Trainer
from trainwright.compat.mindnlp.engine.utils import (
    EvalPrediction,
    IntervalStrategy,
    PredictionOutput,
    SchedulerType,
    TrainOutput,
    get_last_checkpoint,
    set_seed,
)

__all__ = [
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "EvalPrediction",
    "IntervalStrategy",
    "PredictionOutput",
    "PrinterCallback",
    "ProgressCallback",
    "SchedulerType",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "get_last_checkpoint",
    "set_seed",
]
