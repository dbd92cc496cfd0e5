"""What recipes reach on handwritten digits, over several seeds: the numbers that tests/recipes holds to thresholds.

python bench/recipes_digits.py [--seeds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import multiprocessing
import statistics
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.recipes.digits import control_recipe, dense, follow, one_shot, pruning_recipe, quantizing_recipe

DISTIL = "distillation_modifiers:\n  - !DistillationModifier {hardness: 0.5, temperature: 2.0}\n"


def measured(seed: int, folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    wide, found["512 wide: dense"] = dense(512, folder, seed)
    found["512 wide: 90 % at once, no training"] = one_shot(wide, 0.9, folder, seed)
    sparse, found["512 wide: 90 %, GMP"] = follow(wide, pruning_recipe(0.9, 20, 30), folder, seed)
    _, found["512 wide: 90 %, GMP, taught by itself"] = follow(
        wide, pruning_recipe(0.9, 20, 30, DISTIL), folder, seed, teacher="self"
    )
    _, found["512 wide: 90 %, then int8 QAT, 4 epochs"] = follow(
        sparse, quantizing_recipe(8, 4, constant=True), folder, seed
    )
    _, found["512 wide: int2 at once"] = follow(wide, quantizing_recipe(2, 0), folder, seed, calibrates=True)
    control, _ = follow(wide, control_recipe(12), folder, seed)
    _, found["512 wide: 12 more epochs, then int2 at once"] = follow(
        control, quantizing_recipe(2, 0), folder, seed, calibrates=True
    )
    _, found["512 wide: int2 QAT, 12 epochs"] = follow(wide, quantizing_recipe(2, 12), folder, seed)
    narrow, found["128 wide: dense"] = dense(128, folder, seed)
    for sparsity in (0.9, 0.95):
        name = f"128 wide: {sparsity:.0%}"
        found[f"{name} at once, no training"] = one_shot(narrow, sparsity, folder, seed)
        _, found[f"{name}, GMP"] = follow(narrow, pruning_recipe(sparsity, 25, 40), folder, seed)
    return found


def one_seed(seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return measured(seed, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, a process and a thread each")
    wanted = parser.parse_args()
    with ProcessPoolExecutor(wanted.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(one_seed, range(wanted.seeds)))
    print(f"Percent of 450 held-out digits read right, {wanted.seeds} seeds (one digit is 0.22).\n")
    print("| | mean | lowest | highest | of dense |\n|---|---|---|---|---|")
    for name in results[0]:
        values = [result[name] for result in results]
        reference = f"{name.split(':')[0]}: dense"
        shares = [100 * result[name] / result[reference] for result in results]
        print(
            f"| {name} | {statistics.mean(values):.2f} | {min(values):.2f} | {max(values):.2f} | "
            f"{statistics.mean(shares):.1f} % |"
        )


if __name__ == "__main__":
    main()
