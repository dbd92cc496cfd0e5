"""``mindnlp.engine.utils`` of MindNLP 0.4, as far as scripts use it."""

from trainwright import (
    BestRun,
    EvalLoopOutput,
    EvalPrediction,
    HubStrategy,
    IntervalStrategy,
    PredictionOutput,
    SchedulerType,
    TrainOutput,
    enable_full_determinism,
    get_last_checkpoint,
    set_seed,
)

__all__ = [
    "BestRun",
    "EvalLoopOutput",
    "EvalPrediction",
    "HubStrategy",
    "IntervalStrategy",
    "PredictionOutput",
    "SchedulerType",
    "TrainOutput",
    "enable_full_determinism",
    "get_last_checkpoint",
    "set_seed",
]
