"""Arguments that nobody takes: what was meant is said, and signatures stay what they are."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from typing import Any

import pytest

from trainwright import Trainer, TrainingArguments
from trainwright.config.keywords import USUAL_WORDS
from trainwright.config.seq2seq import Seq2SeqTrainingArguments


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (TrainingArguments, "learing_rate", "did you mean 'learning_rate'?"),
        (TrainingArguments, "lr", "here it is learning_rate"),
        (TrainingArguments, "device", "CUDA_VISIBLE_DEVICES"),
        (TrainingArguments, "train_dataset", "it is the Trainer's"),
        (Seq2SeqTrainingArguments, "predict_with_generat", "did you mean 'predict_with_generate'?"),
        (Trainer, "train_datset", "did you mean 'train_dataset'?"),
        (Trainer, "learning_rate", "TrainingArguments(learning_rate=...)"),
    ],
)
def test_an_unknown_keyword_is_a_type_error_that_says_what_was_meant(kind: type, name: str, hint: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument") as error:
        kind(**{name: 1})
    assert hint in str(error.value)
    assert name in str(error.value)


def test_the_constructor_looks_as_before() -> None:
    assert "learning_rate" in inspect.signature(TrainingArguments).parameters
    assert "train_dataset" in inspect.signature(Trainer).parameters
    args = TrainingArguments("out", learning_rate=1e-4)
    assert copy.deepcopy(replace(args, seed=1)).learning_rate == 1e-4


def test_a_subclass_may_take_more() -> None:
    @dataclass
    class Mine(TrainingArguments):
        lr: float = 1.0

    assert Mine("out", lr=2.0).lr == 2.0


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"optim": "adamx"}, "did you mean 'adamw_torch'?"),
        ({"optim": "sdg"}, "did you mean 'sgd'?"),
        ({"lr_scheduler_type": "cosin"}, "did you mean 'cosine'?"),
        ({"report_to": "tensorbord"}, "did you mean 'tensorboard'?"),
        ({"eval_strategy": "epochs"}, "did you mean 'epoch'?"),
        ({"log_level": "warn"}, "did you mean 'warning'?"),
        ({"max_steps": 0}, "give a positive number of steps"),
        ({"max_steps": -5}, "give a positive number of steps"),
    ],
)
def test_a_value_that_cannot_be_meant_is_a_value_error(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=next(iter(given))) as error:
        TrainingArguments("out", **given)
    assert hint in str(error.value)


def test_what_words_of_others_lead_to_exists() -> None:
    known = inspect.signature(Seq2SeqTrainingArguments).parameters
    assert [name for name in USUAL_WORDS.values() if " " not in name and name not in known] == []
    assert set(USUAL_WORDS) & set(known) == set()
