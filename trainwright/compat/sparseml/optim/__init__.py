"""Names of ``sparseml.optim``."""

from typing import Any

from trainwright.compat.sparseml.classes.acting import ModifierYAML
from trainwright.compat.sparseml.classes.bases import BaseModifier, BaseObject, BaseScheduled, BaseUpdate
from trainwright.compat.sparseml.classes.properties import BaseProp, ModifierProp
from trainwright.compat.sparseml.listing import BaseManager
from trainwright.compat.sparseml.missing import refuse
from trainwright.compat.sparseml.recipe_texts import (
    add_framework_metadata,
    check_if_staged_recipe,
    evaluate_recipe_yaml_str_equations,
    load_recipe_yaml_str,
    load_recipe_yaml_str_no_classes,
    parse_recipe_variables,
    update_recipe_variables,
    validate_metadata,
)

__all__ = [
    "BaseManager",
    "BaseModifier",
    "BaseObject",
    "BaseProp",
    "BaseScheduled",
    "BaseUpdate",
    "ModifierProp",
    "ModifierYAML",
    "add_framework_metadata",
    "check_if_staged_recipe",
    "evaluate_recipe_yaml_str_equations",
    "load_recipe_yaml_str",
    "load_recipe_yaml_str_no_classes",
    "parse_recipe_variables",
    "update_recipe_variables",
    "validate_metadata",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
