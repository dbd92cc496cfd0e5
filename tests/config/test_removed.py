"""Names of older releases."""

import warnings
from typing import Any

import pytest

from trainwright.config import TrainingArguments
from trainwright.config.removal import RULES

TRANSLATED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch", "do_eval": True}),
    ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
    ({"warmup_ratio": "0.1"}, {"warmup_steps": 0.1}),
    ({"warmup_ratio": 0.0, "warmup_steps": 10}, {"warmup_steps": 10}),
    ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
    ({"group_by_length": False}, {"train_sampling_strategy": "random"}),
    ({"no_cuda": True}, {"use_cpu": True}),
    ({"per_gpu_train_batch_size": 2}, {"per_device_train_batch_size": 2}),
    ({"per_gpu_eval_batch_size": 2}, {"per_device_eval_batch_size": 2}),
    ({"adafactor": True}, {"optim": "adafactor"}),
    ({"torchdynamo": "eager"}, {"torch_compile": True, "torch_compile_backend": "eager"}),
    ({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}),
    ({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}),
    ({"push_to_hub_token": "t"}, {"hub_token": "t"}),
    ({"push_to_hub_model_id": "it"}, {"hub_model_id": "it"}),
    ({"push_to_hub_model_id": "it", "push_to_hub_organization": "us"}, {"hub_model_id": "us/it"}),
    ({"push_to_hub_organization": "us"}, {"hub_model_id": "us/x"}),
]


@pytest.mark.parametrize(("old", "new"), TRANSLATED, ids=[",".join(old) for old, _ in TRANSLATED])
def test_translated(old: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.warns(FutureWarning) as caught:
        args = TrainingArguments("x", **old)
    assert len(caught) == 1
    assert {name: getattr(args, name) for name in new} == new
    for name, value in old.items():
        if name != "push_to_hub_token":
            assert getattr(args, name) == (float(value) if name == "warmup_ratio" else value), name


@pytest.mark.parametrize(
    "old",
    [
        {"overwrite_output_dir": True},
        {"save_safetensors": False},
        {"fp16_backend": "auto"},
        {"half_precision_backend": "cpu_amp"},
        {"fp16_opt_level": "O2"},
        {"use_mps_device": True},
        {"jit_mode_eval": True},
        {"use_legacy_prediction_loop": True},
        {"ray_scope": "all"},
        {"past_index": -1},
        {"mp_parameters": ""},
        {"fsdp_min_num_params": 0},
        {"tpu_metrics_debug": False},
    ],
)
def test_remembered(old: dict[str, Any]) -> None:
    with pytest.warns(FutureWarning):
        args = TrainingArguments("x", **old)
    assert {name: getattr(args, name) for name in old} == old


@pytest.mark.parametrize(
    "old",
    [
        {"past_index": 2},
        {"mp_parameters": "a=b"},
        {"tpu_metrics_debug": True},
        {"fsdp_min_num_params": 100},
        {"fsdp_transformer_layer_cls_to_wrap": "Block"},
        {"half_precision_backend": "apex"},
        {"warmup_ratio": 1.5},
    ],
)
def test_refused(old: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(old))):
        TrainingArguments("x", **old)


@pytest.mark.parametrize(
    "both",
    [
        {"evaluation_strategy": "epoch", "eval_strategy": "steps"},
        {"warmup_ratio": 0.1, "warmup_steps": 5},
        {"group_by_length": True, "train_sampling_strategy": "sequential"},
        {"group_by_length": False, "train_sampling_strategy": "group_by_length"},
        {"no_cuda": False, "use_cpu": True},
        {"adafactor": True, "optim": "sgd"},
        {"per_gpu_train_batch_size": 2, "per_device_train_batch_size": 4},
        {"push_to_hub_token": "s3cret", "hub_token": "other"},
    ],
)
def test_two_spellings_that_disagree(both: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="keep only") as caught:
        TrainingArguments("x", **both)
    assert "s3cret" not in str(caught.value)


def test_two_spellings_that_agree() -> None:
    with pytest.warns(FutureWarning):
        assert TrainingArguments("x", evaluation_strategy="steps", eval_strategy="steps").eval_strategy == "steps"


def test_reading_without_giving() -> None:
    args = TrainingArguments("x", eval_strategy="epoch", warmup_steps=0.25)
    live = {
        "evaluation_strategy": "epoch",
        "warmup_ratio": 0.25,
        "activation_checkpointing": False,
    }
    for name, rule in RULES.items():
        assert getattr(args, name) == live.get(name, rule.v4_default), name
    assert args.logging_dir is None


def test_assigning_later_translates_too() -> None:
    args = TrainingArguments("x", warmup_steps=100)
    with pytest.warns(FutureWarning, match="warmup_steps"):
        args.warmup_ratio = 0.5
    assert args.warmup_steps == 0.5
    args.eval_strategy = "epoch"
    assert args.evaluation_strategy == "epoch"
    with pytest.warns(FutureWarning):
        args.group_by_length = True
    with pytest.warns(FutureWarning):
        args.group_by_length = False
    assert args.train_sampling_strategy == "random"


def test_whole_run_of_warmup() -> None:
    with pytest.warns(FutureWarning):
        args = TrainingArguments("x", warmup_ratio=1.0)
    assert args.get_warmup_steps(12345) == 12345


def test_one_warning_names_every_replacement() -> None:
    with pytest.warns(FutureWarning) as caught:
        TrainingArguments("x", no_cuda=True, evaluation_strategy="epoch", overwrite_output_dir=True)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert all(word in text for word in ("`use_cpu`", "`eval_strategy`", "never emptied"))


def test_logging_dir_acts_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TrainingArguments("x", logging_dir="~/logs").report_to == ["tensorboard"]
