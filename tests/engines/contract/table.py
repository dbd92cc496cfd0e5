"""The table of features and engines in docs/engines.md, written from the tests of the contract.

``python -m tests.engines.contract.table`` prints it. A row that works is a test that every engine runs; a row that is
refused is one of ``FEATURES``, which a test asks each engine for.
"""

from __future__ import annotations

import importlib
import inspect

from trainwright.training.engine_choice import FEATURES

_MODULES = ("test_training", "test_evaluation", "test_going_on", "test_listening")


def rows() -> list[str]:
    lines = ["| | torch | mindspore | jax | shown by |", "|---|---|---|---|---|"]
    for module in _MODULES:
        found = importlib.import_module(f"tests.engines.contract.{module}")
        tests = [test for name, test in vars(found).items() if name.startswith("test_") and inspect.isfunction(test)]
        for test in tests:
            words = test.__dict__["feature"]
            lines.append(f"| {words} | works | works | works | `{module}.py::{test.__name__}` |")
    for feature in FEATURES.values():
        lines.append(f"| {feature.words} | works | refused | refused | {feature.reason} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
