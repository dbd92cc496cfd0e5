"""Arguments built with transformers' class."""

import dataclasses
import pickle
from typing import Any

import pytest
import transformers

from trainwright.config import IntervalStrategy, Seq2SeqTrainingArguments, TrainingArguments, adopt_arguments


@dataclasses.dataclass
class TheirSubclass(transformers.TrainingArguments):
    beta: float = 0.5


@dataclasses.dataclass
class Base(transformers.TrainingArguments):
    scale: float = 2.0

    @property
    def scaled_rate(self) -> float:
        return self.learning_rate * self.scale

    def get_warmup_steps(self, num_training_steps: int) -> int:
        return 7


@dataclasses.dataclass
class Config(Base):
    scale: float = 3.0
    beta: float = 0.5

    def describe(self) -> str:
        return f"{self.beta} over {self.scaled_rate}"


def test_ours_and_none() -> None:
    args = TrainingArguments("x")
    assert adopt_arguments(args) is args
    assert adopt_arguments().output_dir == "tmp_trainer"


def test_theirs() -> None:
    their_class: Any = TheirSubclass
    theirs = their_class("x", eval_strategy="steps", eval_steps=5, learning_rate=1e-3, hub_token="t", beta=0.7)
    args = adopt_arguments(theirs)
    assert isinstance(args, TrainingArguments)
    assert args.eval_strategy is IntervalStrategy.STEPS
    assert (args.eval_steps, args.learning_rate, args.hub_token, vars(args)["beta"]) == (5, 1e-3, "t", 0.7)
    expected, given = theirs.to_dict(), args.to_dict()
    for name in ("accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs"):
        expected.pop(name, None)
    assert {name: given[name] for name in expected} == expected


def test_a_subclass_keeps_its_class_its_properties_and_its_methods() -> None:
    theirs: Any = Config("x", learning_rate=1.0)
    args: Any = adopt_arguments(theirs)
    assert isinstance(args, Config)
    assert isinstance(args, TrainingArguments)
    assert type(args).__name__ == "Config"
    assert (args.scaled_rate, args.describe(), args.get_warmup_steps(100)) == (3.0, "0.5 over 3.0", 7)
    args.learning_rate = 2.0
    assert args.scaled_rate == 6.0
    assert args.to_dict()["beta"] == 0.5
    copy = dataclasses.replace(args, beta=0.25)
    assert (copy.beta, copy.scaled_rate, isinstance(copy, Config)) == (0.25, 6.0, True)
    assert pickle.loads(pickle.dumps(args)).describe() == "0.5 over 6.0"  # noqa: S301


def test_seq2seq() -> None:
    theirs = transformers.Seq2SeqTrainingArguments("x", predict_with_generate=True, generation_num_beams=2)
    args = adopt_arguments(theirs)
    assert isinstance(args, Seq2SeqTrainingArguments)
    assert (args.predict_with_generate, args.generation_num_beams) == (True, 2)


def test_old_release_does_not_warn_about_its_defaults() -> None:
    @dataclasses.dataclass
    class V4:
        output_dir: str = "x"
        per_device_train_batch_size: int = 4
        learning_rate: float = 1e-3
        overwrite_output_dir: bool = False
        warmup_ratio: float = 0.0
        logging_dir: str = "x/runs"
        report_to: tuple[str, ...] = ()
        fsdp: tuple[str, ...] = ()
        fsdp_config: dict[str, Any] = dataclasses.field(default_factory=lambda: {"min_num_params": 0})

    args = adopt_arguments(V4())
    assert (args.per_device_train_batch_size, args.report_to, args.logging_dir) == (4, [], None)
    with pytest.warns(FutureWarning):
        assert adopt_arguments(V4(warmup_ratio=0.1)).warmup_steps == 0.1


@pytest.mark.parametrize("other", [{}, "out", TrainingArguments, object()])
def test_anything_else_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="TrainingArguments"):
        adopt_arguments(other)
