"""How long reading a recipe takes, and refusing a hostile one.

    python bench/recipe_language.py [--rounds 50]

Each is done ``rounds`` times; the median and the worst. What an expression may cost is bounded by counts (parts, depth,
exponents), which tests/recipes/language/test_expressions.py asserts; here is what that comes to in time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.recipes.language.composing import compose_staged
from trainwright.recipes.language.reading import read_recipe
from trainwright.recipes.language.timeline import draw
from trainwright.recipes.language.writing import write_recipe

RECIPE = """\
version: 1.1.0
num_epochs: 30
init_lr: 1e-4
prune_end: eval(num_epochs * 0.8)
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: eval(num_epochs)}
  - !LearningRateFunctionModifier
    start_epoch: 0
    end_epoch: eval(num_epochs)
    lr_func: cosine
    init_lr: eval(init_lr)
    final_lr: eval(init_lr * 0.01)
distillation_modifiers:
  - !DistillationModifier {hardness: 0.5, temperature: 2.0}
pruning_modifiers:
  - !MagnitudePruningModifier
      params: __ALL_PRUNABLE__
      init_sparsity: 0.05
      final_sparsity: 0.9
      start_epoch: 2
      end_epoch: eval(prune_end)
      update_frequency: 0.5
quantization_modifiers:
  - !QuantizationModifier {start_epoch: eval(num_epochs - 4), freeze_bn_stats_epoch: eval(num_epochs - 1)}
"""

HOSTILE = {
    "9**9**7": "9**9**7",
    "9**9**9**9": "9**9**9**9",
    "(2**64)**64": "(2**64)**64",
    "round(5, -999999999)": "round(5, -999999999)",
    "'a' * 10**9": "'a' * 1000000000",
    "500 brackets": "(" * 500 + "1" + ")" * 500,
    "100,000 brackets": "(" * 100_000,
    "900 signs": "-" * 900 + "1",
    "sum of 300": "1" + "+1" * 300,
    "sum of 100,000": "1" + "+1" * 100_000,
    "text of 1 MB": "'" + "a" * 1_000_000 + "'",
    "attributes": "().__class__.__bases__[0].__subclasses__()",
    "a shell command": "__import__('os').system('echo')",
    "without brackets": "[x for x in [1]]",
}


def refused(text: str) -> None:
    """Read a recipe with a hostile expression in it; anything but an error is a failure."""
    try:
        read_recipe({"a": f"eval({text})", "modifiers": []})
    except ConfigError:
        return
    raise SystemExit(f"not refused: {text[:60]}")


def milliseconds(call: Callable[[], Any], rounds: int) -> list[float]:
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    recipe = read_recipe(RECIPE)
    work: dict[str, Callable[[], Any]] = {
        "read a recipe": lambda: read_recipe(RECIPE),
        "write it": lambda: write_recipe(recipe),
        "compose two": lambda: compose_staged(recipe, recipe),
        "draw it": lambda: draw(recipe, 80),
        **{f"refuse {name}": lambda text=text: refused(text) for name, text in HOSTILE.items()},
    }
    print(f"{'':32}{'median':>10}{'worst':>10}  (ms)")
    for name, call in work.items():
        times = milliseconds(call, rounds)
        print(f"{name:32}{statistics.median(times):10.2f}{max(times):10.2f}")


if __name__ == "__main__":
    main()
