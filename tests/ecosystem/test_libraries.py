"""Libraries on top of transformers' Trainer, with ours underneath: the same numbers, and runs that survive.

`make test-ecosystem` runs these in an environment of their own, and writes the table in docs/libraries.md.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.ecosystem.running import Case, run, stop

pytestmark = pytest.mark.ecosystem

TRL = [
    Case("trl", name)
    for name in ("sft", "sft-lora", "sft-packing", "sft-assistant", "dpo", "kto", "reward", "grpo", "rloo")
]
SENTENCES = [Case("sentence", name) for name in ("embeddings", "several-datasets", "cross-encoder", "sparse-encoder")]
PEFT = [Case("peft", name) for name in ("one-adapter", "two-adapters", "second-of-two")]
CASES = [*TRL, *SENTENCES, *PEFT]
AXOLOTL = [
    Case("axolotl", name) for name in ("sft", "sft-packing", "sft-schedules", "dpo", "kto", "orpo", "cpo", "reward")
]
LLAMA_FACTORY = [Case("llamafactory", name) for name in ("pt", "sft", "sft-lora", "dpo", "dpo-orpo", "kto", "rm")]
#: Code that is not on PyPI: only where `make test-ecosystem REPOSITORIES=` says where it lies.
HAS_REPOSITORIES = bool(os.environ.get("REPOSITORIES"))
ALPACA = [Case("alpaca", "train")] if HAS_REPOSITORIES else []
LLAVA = [Case("llava", "whole")] if HAS_REPOSITORIES else []
#: Writes nothing but the projector, and says so: there is no resume.
PROJECTOR = [Case("llava", "projector")] if HAS_REPOSITORIES else []
BUILT_ON_IT = [*AXOLOTL, *LLAMA_FACTORY, *ALPACA, *LLAVA]
#: docs/libraries.md says why the others are not compared: transformers' loop fails, or weighs batches otherwise.
IN_TWO_PROCESSES = [*TRL, *SENTENCES, *PEFT, AXOLOTL[3], LLAMA_FACTORY[1], LLAMA_FACTORY[3], *ALPACA]
IN_TWO_PROCESSES.remove(Case("sentence", "cross-encoder"))
#: Has no resume of its own.
SETFIT = Case("setfit", "few-examples")
#: Training that draws its own samples is exact too, with no help from a callback.
UNSEEDED = [Case("trl", "grpo-unseeded"), Case("trl", "rloo-unseeded")]
if HAS_REPOSITORIES:
    UNSEEDED.append(Case("llava", "whole-unseeded"))


def identity(case: Case) -> str:
    return case.id


@pytest.mark.parametrize(
    ("case", "processes"),
    [
        *((case, 1) for case in [*CASES, SETFIT, *BUILT_ON_IT, *PROJECTOR]),
        *((case, 2) for case in IN_TWO_PROCESSES),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else str(value),
)
def test_the_numbers_are_those_of_transformers_loop(case: Case, processes: int, tmp_path: Path) -> None:
    theirs = run(case, tmp_path / "theirs", underneath=False, processes=processes)
    ours = run(case, tmp_path / "ours", processes=processes)
    assert "trainwright.trainer.trainer.Trainer" in ours.kinds
    assert "trainwright.trainer.trainer.Trainer" not in theirs.kinds
    assert ours.differences(theirs) == []


@pytest.mark.parametrize("case", [*CASES, *BUILT_ON_IT, *UNSEEDED], ids=identity)
def test_a_resumed_run_equals_one_that_was_not_interrupted(case: Case, tmp_path: Path) -> None:
    whole = run(case, tmp_path / "whole")
    (tmp_path / "resumed").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    resumed = run(case, tmp_path / "resumed", resume=tmp_path / "resumed" / "checkpoint-3")
    assert resumed.weights == whole.weights
    assert resumed.log == whole.log


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("case", [TRL[0], TRL[4], TRL[7], SENTENCES[0], LLAMA_FACTORY[1], *ALPACA], ids=identity)
def test_a_run_survives(case: Case, name: str, tmp_path: Path) -> None:
    longer = Case(case.script, case.name, (("max_steps", 40), ("save_steps", 2), ("eval_strategy", "no")))
    whole = run(longer, tmp_path / "whole")
    folder = tmp_path / "stopped"
    code = stop(longer, folder, signal.Signals[name], after="checkpoint-6")
    assert code == (75 if name == "SIGTERM" else -9)
    resumed = run(longer, folder, resume=Path("True"))
    assert resumed.weights == whole.weights
    assert resumed.log == whole.log
