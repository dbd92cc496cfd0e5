"""The table, our dataclass and the installed transformers agree."""

import dataclasses
import typing
from types import NoneType
from typing import Any

import pytest
import transformers

from trainwright.config import Seq2SeqTrainingArguments, TrainingArguments, enums
from trainwright.config.hf_fields import FIELDS, HF, NATIVE, REMOVED, SEQ2SEQ


def _defaults(cls: Any) -> dict[str, Any]:
    found = {}
    for spec in dataclasses.fields(cls):
        factory = spec.default_factory
        found[spec.name] = spec.default if isinstance(factory, type(dataclasses.MISSING)) else factory()
    return found


def _members(hint: Any) -> set[str]:
    """Names of the types in a union; classes of other packages count as ``object``."""
    members = typing.get_args(hint) if typing.get_origin(hint) not in (list, dict, typing.Literal) else ()
    return {_type_name(member) for member in (members or (hint,))}


def _type_name(hint: Any) -> str:
    if hint is NoneType:
        return "None"
    text = str(hint) if typing.get_origin(hint) else hint.__name__
    for word in ("DebugOption",):
        text = word if word in text else text
    return "object" if text in ("ParallelismConfig", "GenerationConfig") else text.replace("typing.", "")


def test_names() -> None:
    theirs = {spec.name for spec in dataclasses.fields(transformers.TrainingArguments)}
    assert set(HF) == theirs
    assert len(HF) == 114
    seq2seq = {spec.name for spec in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    assert set(SEQ2SEQ) == seq2seq - theirs
    ours = {spec.name for spec in dataclasses.fields(Seq2SeqTrainingArguments)} - {"_resolution"}
    assert ours == set(FIELDS)
    assert len(FIELDS) == len(HF) + len(REMOVED) + len(SEQ2SEQ) + len(NATIVE)


#: Two names for one value from transformers 5.23 on, which leaves both open until it has decided.
TWICE = ("gradient_checkpointing", "activation_checkpointing")


def test_defaults() -> None:
    ours = _defaults(Seq2SeqTrainingArguments)
    theirs = _defaults(transformers.Seq2SeqTrainingArguments)
    assert {name: ours[name] for name in theirs if name not in TWICE} == {
        name: value for name, value in theirs.items() if name not in TWICE
    }


def test_checkpointing_has_two_names_for_one_value() -> None:
    assert TrainingArguments("out", activation_checkpointing=True).gradient_checkpointing is True
    args = TrainingArguments("out", gradient_checkpointing=True)
    assert args.activation_checkpointing is True
    args.activation_checkpointing = False
    assert args.gradient_checkpointing is False
    assert TrainingArguments("out").activation_checkpointing is False
    assert dataclasses.replace(args, gradient_checkpointing=True).activation_checkpointing is True
    with pytest.raises(ValueError, match="keep only `gradient_checkpointing`"):
        TrainingArguments("out", gradient_checkpointing=True, activation_checkpointing=False)


def test_types() -> None:
    ours = typing.get_type_hints(Seq2SeqTrainingArguments)
    theirs = typing.get_type_hints(transformers.Seq2SeqTrainingArguments)
    for name in {**HF, **SEQ2SEQ}.keys() - TWICE:
        # HfArgumentParser would make the enum's members the only choices, and registered names have to pass.
        extra = {"OptimizerNames", "SchedulerType"} if name in ("optim", "lr_scheduler_type") else set()
        # Theirs and a word: "auto".
        more = {"str"} if name == "dataloader_num_workers" else set()
        assert _members(ours[name]) == (_members(theirs[name]) - extra) | more, name


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("IntervalStrategy", set()),
        ("SaveStrategy", set()),
        ("HubStrategy", set()),
        ("SchedulerType", set()),
        ("OptimizerNames", {"auto", "muon", "adafactor_torch"}),
    ],
)
def test_enums(name: str, extra: set[str]) -> None:
    from transformers import trainer_utils, training_args

    theirs = getattr(trainer_utils, name, None) or getattr(training_args, name)
    ours = getattr(enums, name)
    assert {member.value for member in ours} == {member.value for member in theirs} | extra
    for member in theirs:
        assert ours(member) == member
        assert ours[member.name] == member == member.value


def test_every_row_says_something() -> None:
    for name, row in FIELDS.items():
        assert row.note, name
        assert row.status in ("acts", "alias", "no effect", "refused"), name


def test_derived_values_match() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"eval_strategy": "epoch"},
        {"eval_strategy": "steps", "logging_steps": 20},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        {"torch_compile_backend": "eager"},
        {"metric_for_best_model": "eval_f1"},
        {"use_cpu": True, "debug": "underflow_overflow", "include_num_input_tokens_seen": True},
        {"lr_scheduler_kwargs": '{"a": "1", "b": "0.5", "c": "true"}'},
    ]
    for values in cases:
        ours = TrainingArguments("x", **values).to_dict()
        theirs = transformers.TrainingArguments("x", **values).to_dict()
        for name in ("accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs"):
            theirs.pop(name, None)  # accelerate's object, spelled out; and what has two names is written once
        assert {name: ours[name] for name in theirs} == theirs


def test_methods_and_properties_exist() -> None:
    for name, member in vars(transformers.TrainingArguments).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            assert hasattr(TrainingArguments, name), name
