"""What a recipe did to each layer, and the recipe over time."""

from __future__ import annotations

from pathlib import Path

from trainwright.core.json_files import read_text
from trainwright.plots.charts import bars
from trainwright.report.blocks import Block, Picture, Section, Table, Text
from trainwright.report.lines import number
from trainwright.report.stored_run import StoredRun
from trainwright.report.words import shortened, value_of

_MOST_LAYERS = 200
_LARGEST_PICTURE = 200_000


def recipe_section(run: StoredRun) -> Section:
    """Sparsity and bit width of each layer, from ``layers.json``."""
    blocks: list[Block] = []
    if drawn := _timeline(run.folder / "recipe.svg"):
        blocks.append(Picture("The recipe's modifiers over the epochs", [("", drawn)]))
    layers = run.layers[:_MOST_LAYERS]
    sparse = {str(one.get("name")): share for one in layers if (share := number(one.get("sparsity"))) is not None}
    weights = sum(number(one.get("weights")) or 0 for one in layers)
    zeros = sum((number(one.get("weights")) or 0) * (number(one.get("sparsity")) or 0) for one in layers)
    if weights and zeros:
        blocks.append(Text(f"{zeros / weights:.1%} of the {weights:,.0f} weights in these layers are zero."))
    if any(sparse.values()) and len(sparse) <= 60:
        shares = {name: share * 100 for name, share in sparse.items()}
        blocks.append(Picture("Sparsity of each layer", [("", bars(shares, x_label="zeros in %", most=100))]))
    if layers:
        rows = [
            (
                shortened(str(one.get("name")), 120),
                value_of(one.get("weights")),
                "" if (share := number(one.get("sparsity"))) is None else f"{share:.1%}",
                "" if one.get("bits") is None else value_of(one.get("bits")),
            )
            for one in layers
        ]
        blocks.append(Table(("layer", "weights", "zeros", "bits"), rows))
    return Section("Recipe", blocks)


def _timeline(path: Path) -> str:
    try:
        found = read_text(path, _LARGEST_PICTURE)
    except (OSError, ValueError):
        return ""
    return found[found.index("<svg") :] if "<svg" in found else ""
