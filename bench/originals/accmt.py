"""ghanvert/AcceleratorModule: its examples and tests; MLflow writes to a local store.

They need their own packages too: ``pip install mlflow optuna evaluate python-dotenv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.originals.cases import Case, Change, Door

#: A metric of the hub's, which would be a download.
_ACCURACY = """
import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


def prepare(copy: Path, data: Path) -> Mapping[str, str]:
    """The accuracy of the hub as a folder, and a place for MLflow."""
    (copy / "examples/accuracy").mkdir()
    (copy / "examples/accuracy/accuracy.py").write_text(_ACCURACY)
    root = Path(__file__).parents[2]
    return {
        # One example imports its neighbours in two ways at once.
        "PYTHONPATH": f"{root}:{copy / 'examples'}",
        "HF_HOME": str(data / "cache"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{data / 'mlflow.db'}",
    }


def _module(file: str, **more: object) -> Case:
    """A script that imports its neighbours by dots, so that it runs as ``python -m``."""
    name = file.removesuffix(".py").replace("/", ".")
    return Case(file, command=("-m", name), **more)  # type: ignore[arg-type]


NO_SERVER = (Change('logging_dir="localhost:5075"', 'logging_dir="logs"', "`logging_dir` is a folder: no server runs"),)
CASES = (
    Case("src/tests/trainer.py"),
    Case("src/tests/curriculum.py"),
    Case("src/tests/utils.py"),
    Case(
        "examples/train.py",
        command=("train.py",),
        folder="examples",
        changes=NO_SERVER,
    ),
    Case(
        "examples/train.py",
        command=(
            *("-m", "trainwright.compat.accmt", "launch", "--cpu", "-N=2"),
            *("--strat=ddp-bf16", "train.py"),
        ),
        folder="examples",
        note="with `launch --cpu -N=2 --strat=ddp-bf16`",
        changes=NO_SERVER,
    ),
    Case(
        "examples/train.py",
        command=("-m", "trainwright.compat.accmt", "debug", "--cpu", "-N=1", "--level=5", "train.py"),
        folder="examples",
        note="with `debug --level=5`",
        changes=NO_SERVER,
    ),
    _module("examples/specific_scheduler.py", note="as `python -m`: it imports its neighbour by a dot"),
    _module("src/tests/legacy/train.py"),
    _module("src/tests/legacy/train_extended.py"),
    _module("src/tests/legacy/evaluator.py"),
    _module("src/tests/legacy/hp_search.py"),
)

DOOR = Door(
    name="accmt",
    page="docs/from-accmt.md",
    imports=((r"^(\s*)from (src\.)?accmt\b", r"\1from trainwright.compat.accmt"),),
    cases=CASES,
    prepare=prepare,
    unneeded=("docs",),
)
