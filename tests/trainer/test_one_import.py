"""What a script for transformers imports beside its Trainer comes with the same line."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trainwright

NAMES = ["DataCollator", "HfArgumentParser", "get_linear_schedule_with_warmup", "get_scheduler", "get_wsd_schedule"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_that_of_transformers(name: str) -> None:
    import transformers

    assert getattr(trainwright, name) is getattr(transformers, name)


def test_our_arguments_are_parsed() -> None:
    parser = trainwright.HfArgumentParser(trainwright.TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(["--output_dir", "x", "--learning_rate", "1e-3", "--use_cpu"])
    assert type(args) is trainwright.TrainingArguments
    assert args.learning_rate == 1e-3


def test_without_transformers_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None\nfrom trainwright import HfArgumentParser"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "trainwright.HfArgumentParser is that of transformers: pip install 'trainwright[hf]'" in done.stderr
