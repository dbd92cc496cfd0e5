"""PyMarlin's interface: write ``trainwright.compat.pymarlin`` where a script imports ``pymarlin``."""

from trainwright.compat.pymarlin.core.data_interface import DataInterface, DataProcessor
from trainwright.compat.pymarlin.core.module_interface import CallbackInterface, ModuleInterface, Stage
from trainwright.compat.pymarlin.core.trainer import AbstractTrainer, Trainer, TrainerArguments
from trainwright.compat.pymarlin.core.trainer_backend import (
    DDPTrainerBackend,
    SingleProcess,
    SingleProcessAmp,
    SingleProcessApexAmp,
    TrainerBackend,
)
from trainwright.compat.pymarlin.utils.checkpointer.checkpoint_utils import (
    AbstractCheckpointer,
    Checkpoint,
    DefaultCheckpointer,
    DefaultCheckpointerArguments,
)
from trainwright.compat.pymarlin.utils.config_parser.custom_arg_parser import CustomArgParser
from trainwright.compat.pymarlin.utils.stats.basic_stats import BasicStats, StatInitArguments
from trainwright.compat.pymarlin.utils.writer.base import Writer, WriterInitArguments

__all__ = [
    "AbstractCheckpointer",
    "AbstractTrainer",
    "BasicStats",
    "CallbackInterface",
    "Checkpoint",
    "CustomArgParser",
    "DDPTrainerBackend",
    "DataInterface",
    "DataProcessor",
    "DefaultCheckpointer",
    "DefaultCheckpointerArguments",
    "ModuleInterface",
    "SingleProcess",
    "SingleProcessAmp",
    "SingleProcessApexAmp",
    "Stage",
    "StatInitArguments",
    "Trainer",
    "TrainerArguments",
    "TrainerBackend",
    "Writer",
    "WriterInitArguments",
]
