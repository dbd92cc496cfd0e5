"""Names of ``sparseml.utils``: words of recipes."""

from typing import Any

from trainwright.compat.sparseml.classes.texts import PYTORCH_FRAMEWORK
from trainwright.compat.sparseml.missing import refuse
from trainwright.recipes.language.metadata import FRAMEWORK as FRAMEWORK_METADATA_KEY
from trainwright.recipes.language.records import METADATA as RECIPE_METADATA_KEY
from trainwright.recipes.pruning.gradual import FROM_PARAM as FROM_PARAM_TOKEN
from trainwright.recipes.selecting import ALL as ALL_TOKEN
from trainwright.recipes.selecting import ALL_PRUNABLE as ALL_PRUNABLE_TOKEN

__all__ = [
    "ALL_PRUNABLE_TOKEN",
    "ALL_TOKEN",
    "FRAMEWORK_METADATA_KEY",
    "FROM_PARAM_TOKEN",
    "PYTORCH_FRAMEWORK",
    "RECIPE_METADATA_KEY",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
