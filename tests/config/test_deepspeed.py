"""DeepSpeed's configuration against our arguments; needs no DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import TrainingArguments
from trainwright.config.deepspeed import AUTO, check_deepspeed, resolved, schedule_of, stage_of, with_width
from trainwright.config.warnings import TrainwrightWarning

#: As it stands in Hugging Face's documentation.
COPIED: dict[str, Any] = {
    "bf16": {"enabled": AUTO},
    "fp16": {"enabled": AUTO, "loss_scale": 0, "initial_scale_power": 16},
    "optimizer": {"type": "AdamW", "params": {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": AUTO, "warmup_min_lr": AUTO, "warmup_max_lr": AUTO, "warmup_num_steps": AUTO},
    },
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": AUTO,
        "stage3_prefetch_bucket_size": AUTO,
        "stage3_param_persistence_threshold": AUTO,
        "overlap_comm": True,
    },
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "steps_per_print": 2000,
}


def made(config: Any, **more: Any) -> TrainingArguments:
    return TrainingArguments("out", deepspeed=config, use_cpu=True, **more)


@given(
    size=st.integers(1, 64),
    pieces=st.integers(1, 16),
    norm=st.floats(0, 10),
    rate=st.floats(1e-8, 1.0),
    beta=st.floats(0, 0.99),
)
def test_every_auto_is_what_the_arguments_say(size: int, pieces: int, norm: float, rate: float, beta: float) -> None:
    args = made(
        COPIED,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=pieces,
        max_grad_norm=norm,
        learning_rate=rate,
        adam_beta1=beta,
        warmup_steps=5,
    )
    found = resolved(args)
    assert found["train_batch_size"] == size * pieces
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (size, pieces)
    assert found["gradient_clipping"] == norm
    params = found["optimizer"]["params"]
    assert params == {"lr": rate, "betas": [beta, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    assert found["bf16"]["enabled"] is False
    wide = with_width(found, 8)["zero_optimization"]
    assert (wide["reduce_bucket_size"], wide["stage3_prefetch_bucket_size"]) == (64, 57)
    assert wide["stage3_param_persistence_threshold"] == 80
    assert schedule_of(found, args, 50) == (
        "WarmupDecayLR",
        {"total_num_steps": 50, "warmup_min_lr": 0.0, "warmup_max_lr": rate, "warmup_num_steps": 5},
    )
    # What was given stays as it was, and says the same the second time.
    assert COPIED["train_batch_size"] == AUTO
    assert resolved(made(found, **{k: getattr(args, k) for k in _DECIDING}, warmup_steps=5)) == found


_DECIDING = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "learning_rate",
    "adam_beta1",
)


def test_a_model_that_does_not_tell_its_width_leaves_sizes_to_deepspeed() -> None:
    assert with_width(resolved(made(COPIED)), None)["zero_optimization"] == {"stage": 3, "overlap_comm": True}


def test_all_contradictions_are_named_at_once() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": 2},
    }
    with pytest.raises(ValueError, match="contradict") as caught:
        made(config, per_device_train_batch_size=4)
    said = str(caught.value)
    for name in ("per_device_train_batch_size is 4", "max_grad_norm", "bf16.enabled", "learning_rate", "optim is"):
        assert name in said


def test_a_file_and_a_backend_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    assert stage_of(resolved(made(str(file)))) == 1
    named = TrainingArguments("out", backend="deepspeed-bf16", use_cpu=True)
    assert stage_of(resolved(named)) == 2
    assert resolved(named)["bf16"] == {"enabled": True}
    check_deepspeed(named)


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        ({"zero_optimization": {"stage": 0}}, {}, "use 1, 2 or 3"),
        ({}, {"micro_batch": "auto", "backend": "deepspeed"}, "give it a number"),
        ({"zero_optimization": {"stage": 2}}, {"micro_batch": "auto"}, "give it a number"),
        ({"zero_optimization": {"stage": 2}}, {"bf16_full_eval": True}, "a copy of the model"),
        ({"zero_optimization": {"stage": 2}}, {"torch_compile": True}, "unset it"),
        ({"zero_optimization": {"stage": 2}, "elasticity": {"enabled": True}}, {}, "any number of processes"),
        ({"zero_optimization": {"stage": 2}, "optimizer": {"type": "OneBitAdam"}}, {}, "optim="),
        ({"zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupLr"}}, {}, "WarmupLR"),
        ({"zero_optimization": {"stage": 2, "overlap_comm": AUTO}}, {}, "zero_optimization.overlap_comm"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, {}, "use 'cpu'"),
        ({"zero_optimization": {"stage": 2}}, {"backend": "fsdp"}, "contradict"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(config: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(config or None, **more)


def test_a_name_that_deepspeed_would_pass_over_is_said() -> None:
    with pytest.warns(TrainwrightWarning, match="gradient_clipping"):
        made({"zero_optimization": {"stage": 2}, "gradient_cliping": 1.0})
