"""Names of ``sparseml.pytorch.utils``."""

from typing import Any

from trainwright.compat.sparseml.exporting import ModuleExporter
from trainwright.compat.sparseml.loggers import (
    LOGGING_LEVELS,
    BaseLogger,
    LambdaLogger,
    LoggerManager,
    PythonLogger,
    TensorBoardLogger,
    WANDBLogger,
)
from trainwright.compat.sparseml.looking import (
    any_str_or_regex_matches_param_name,
    get_layer,
    get_named_layers_and_params_by_regex,
    get_optim_learning_rate,
    get_prunable_layers,
    set_optim_learning_rate,
    tensor_sparsity,
)
from trainwright.compat.sparseml.missing import refuse

__all__ = [
    "LOGGING_LEVELS",
    "BaseLogger",
    "LambdaLogger",
    "LoggerManager",
    "ModuleExporter",
    "PythonLogger",
    "TensorBoardLogger",
    "WANDBLogger",
    "any_str_or_regex_matches_param_name",
    "get_layer",
    "get_named_layers_and_params_by_regex",
    "get_optim_learning_rate",
    "get_prunable_layers",
    "set_optim_learning_rate",
    "tensor_sparsity",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
