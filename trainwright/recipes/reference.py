"""``python -m trainwright.recipes.reference > docs/modifiers.md``: every modifier with its arguments."""

from __future__ import annotations

import inspect

from trainwright.config.shipped import SHIPPED
from trainwright.recipes.building import arguments_of, modifier_class

_HEADINGS = {
    "scheduling": "Schedule",
    "pruning": "Pruning",
    "quantization": "Quantization",
    "distillation": "Distillation",
}
_INTRODUCTION = """\
# Every modifier

What a recipe may name, with arguments and defaults. Generated from the classes by
`python -m trainwright.recipes.reference`; [Recipes](recipes.md) says how they are used. `start_epoch` and `end_epoch`
are epochs, whole or not; -1 is the beginning, or no end. `log_types` and `constant_logging` are taken for old recipes'
sake: every number goes to every tracker. The newer spelling `start`, `end`, `update`, `targets` works too.
"""


def reference() -> str:
    """The page."""
    parts = [_INTRODUCTION]
    heading = None
    for name, home in SHIPPED["modifier"].items():
        group = _HEADINGS[home.split(".")[2]]
        if group != heading:
            parts.append(f"## {group}\n")
            heading = group
        parts.append(_entry(name))
    return "\n".join(parts)


def _entry(name: str) -> str:
    cls = modifier_class(name)
    arguments = [
        f"`{parameter.name}`" if parameter.default is parameter.empty else f"`{parameter.name}={parameter.default!r}`"
        for parameter in arguments_of(cls).values()
        if parameter.name not in ("log_types", "constant_logging")
    ]
    words = inspect.cleandoc(cls.__doc__ or "").split("\n\n>>>")[0].strip().replace("``", "`")
    return f"### {name}\n\n{words}\n\n{', '.join(arguments)}\n"


if __name__ == "__main__":
    print(reference(), end="")
