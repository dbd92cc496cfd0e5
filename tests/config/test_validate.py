"""Every wrong value is refused at construction, and the message names the fix."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from trainwright.config import TrainingArguments, TrainwrightWarning, check_device
from trainwright.config import validate as rules
from trainwright.config.parallel import Sharding, sharding_of, way_of


def _with(**values: Any) -> TrainingArguments:
    return TrainingArguments("x", **values)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"load_best_model_at_end": True}, "eval_strategy"),
    ({"save_strategy": "best"}, "eval_strategy"),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "eval_strategy"),
    ({"lr_scheduler_type": "greedy"}, "eval_strategy"),
    ({"lr_scheduler_type": "cosin"}, "choose one of"),
    ({"optim": "adamw"}, "choose one of"),
    ({"eval_strategy": "step"}, "eval_strategy.*choose one of"),
    ({"eval_strategy": "steps", "eval_steps": 0}, "positive"),
    ({"eval_strategy": "steps", "eval_steps": -5}, "positive"),
    ({"eval_strategy": "steps", "eval_steps": 1.5}, "whole"),
    ({"logging_steps": 0}, 'logging_strategy="no"'),
    ({"save_steps": 0}, 'save_strategy="no"'),
    ({"fp16": True, "bf16": True}, "keep one"),
    ({"fp16_full_eval": True, "bf16_full_eval": True}, "keep one"),
    ({"per_device_train_batch_size": 0}, "at least 1"),
    ({"per_device_eval_batch_size": 0}, "at least 1"),
    ({"gradient_accumulation_steps": 0}, "at least 1"),
    ({"eval_accumulation_steps": 0}, "at least 1"),
    ({"torch_empty_cache_steps": 0}, "at least 1"),
    ({"max_grad_norm": -1}, "at least 0"),
    ({"learning_rate": -1e-3}, "at least 0"),
    ({"learning_rate": float("nan")}, "finite"),
    ({"learning_rate": "fast"}, "number"),
    ({"learning_rate": True}, "number"),
    ({"max_steps": 2.5}, "whole"),
    ({"bf16": "maybe"}, "true or false"),
    ({"label_smoothing_factor": 1.0}, r"\[0, 1\)"),
    ({"adam_beta1": 1.0}, r"\[0, 1\)"),
    ({"warmup_steps": -1}, "at least 0"),
    ({"neftune_noise_alpha": -1.0}, "at least 0"),
    ({"seed": -1}, r"2\*\*32"),
    ({"data_seed": 2**32}, r"2\*\*32"),
    ({"num_train_epochs": 0}, "max_steps"),
    ({"dataloader_persistent_workers": True}, "dataloader_num_workers"),
    ({"dataloader_prefetch_factor": 2}, "dataloader_num_workers"),
    ({"dataloader_multiprocessing_context": "spawn"}, "dataloader_num_workers"),
    ({"dataloader_multiprocessing_context": "thread", "dataloader_num_workers": 1}, "choose one of"),
    ({"train_sampling_strategy": "sorted"}, "choose one of"),
    ({"include_num_input_tokens_seen": "some"}, "choose one of"),
    ({"include_for_metrics": ["input"]}, "inputs"),
    ({"log_level": "loud"}, "choose one of"),
    ({"lr_scheduler_kwargs": "power=2"}, "dict or JSON"),
    ({"lr_scheduler_kwargs": "{power: 2}"}, "JSON"),
    ({"debug": "tpu_metrics_debug"}, "torch_xla"),
    ({"debug": "everything"}, "debug.*choose one of"),
    ({"engine": "tensorflow"}, "torch"),
    ({"micro_batch": 0}, "at least 1"),
    ({"micro_batch": "automatic"}, "number"),
    ({"max_tokens_per_batch": 0}, "at least 1"),
    ({"fsdp": "full_shart"}, "full_shard"),
    ({"fsdp": "full_shard", "deepspeed": {}}, "keep one"),
    ({"fsdp": True, "backend": "ddp"}, "contradict"),
    ({"fsdp": True, "fsdp_config": {"transformer_layer_class_to_wrap": "Block"}}, "transformer_layer_cls_to_wrap"),
    ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SOME"}}, "TRANSFORMER_BASED_WRAP"),
    ({"fsdp": True, "fsdp_config": {"xla": True}}, "TPU"),
    ({"deepspeed": "ds.json"}, "readable file"),
    ({"parallelism_config": SimpleNamespace(cp_size=2)}, "splits sequences"),
    ({"tensor_parallel_size": 0}, "at least 1"),
    ({"tensor_parallel_size": 2}, "does not divide the 1 processes"),
    ({"tensor_parallel_size": 2, "backend": "ddp"}, "backend='fsdp'"),
    ({"accelerator_config": {"split": True}}, "split_batches"),
    ({"accelerator_config": {"use_configured_state": True}}, "remove it"),
    ({"accelerator_config": "missing.json"}, "readable file"),
    (
        {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}, "gradient_accumulation_steps": 4},
        "keep",
    ),
]


@pytest.mark.parametrize(("values", "fix"), REFUSED, ids=[",".join(values) for values, _ in REFUSED])
def test_refused(values: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        TrainingArguments("x", **values)


@pytest.mark.parametrize(
    "values",
    [
        # transformers demands that these match; there is no need to
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "steps"},
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "no"},
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 30, "save_steps": 100},
        {"num_train_epochs": 0, "max_steps": 5},
        {"eval_steps": 0},
        {"fsdp": "", "deepspeed": None},
        {"accelerator_config": {"split_batches": False, "even_batches": True, "use_seedable_sampler": True}},
        {"local_rank": 0},
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2, "dataloader_persistent_workers": True},
    ],
)
def test_accepted(values: dict[str, Any]) -> None:
    TrainingArguments("x", **values)


def test_accelerate_spelling_of_accumulation() -> None:
    args = TrainingArguments("x", accelerator_config='{"gradient_accumulation_kwargs": {"num_steps": 4}}')
    assert args.gradient_accumulation_steps == 4


def test_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert TrainingArguments("x").world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun"):
        TrainingArguments("x").world_size  # noqa: B018
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    args = TrainingArguments("x", use_cpu=True)
    assert (args.world_size, args.process_index, args.local_process_index) == (2, 1, 1)
    assert args.parallel_mode == "distributed"
    assert not args.should_save
    with pytest.raises(ValueError, match="use 'ddp-amp', or start the script with plain `python`"):
        TrainingArguments("x", backend="sp-amp")


def test_backends_by_name() -> None:
    with pytest.raises(ValueError, match=r"perhaps with -amp, -bf16 or -fp16.*choose one of sp, ddp, fsdp, deepspeed"):
        TrainingArguments("x", backend="horovod")
    assert TrainingArguments("x", use_cpu=True, backend="sp-amp").bf16
    assert TrainingArguments("x", use_cpu=True, backend="sp-fp16").fp16
    assert not TrainingArguments("x", use_cpu=True, backend="ddp").bf16
    with pytest.raises(ValueError, match="contradict"):
        TrainingArguments("x", use_cpu=True, backend="sp-fp16", bf16=True)


@pytest.mark.parametrize(
    "values",
    [
        {"ddp_broadcast_buffers": False},
        {"average_tokens_across_devices": False},
        {"trackio_space_id": "me/it"},
        {"trackio_bucket_id": "me/data", "trackio_static_space_id": "me/done"},
        {"fsdp_config": {}},
    ],
)
def test_without_effect_warns_once(values: dict[str, Any]) -> None:
    with pytest.warns(TrainwrightWarning, match="no effect") as caught:
        TrainingArguments("x", **values)
    assert len(caught) == 1


def test_what_trackio_reads_acts_where_it_is_chosen() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrainingArguments("x", report_to="trackio", trackio_space_id="me/it", trackio_static_space_id=False)
        TrainingArguments("x", trackio_static_space_id=False)


def test_auto_find_batch_size_is_an_alias() -> None:
    assert TrainingArguments("x", auto_find_batch_size=True).micro_batch == "auto"
    assert TrainingArguments("x", auto_find_batch_size=True, micro_batch=4).micro_batch == 4


def test_compiling_is_not_for_torch() -> None:
    with pytest.warns(TrainwrightWarning, match="`engine_jit` has no effect"):
        TrainingArguments("x", engine_jit=False)
    with pytest.warns(TrainwrightWarning, match="`engine_check` has no effect"):
        TrainingArguments("x", engine_check=False)
    assert TrainingArguments("x", engine="jax", engine_jit=False).engine_jit is False


def test_devices_are_shared_by_jax_only() -> None:
    assert TrainingArguments("x", engine="jax", engine_devices=4, per_device_eval_batch_size=2).eval_batch_size == 8
    with pytest.raises(ValueError, match=r"engine_devices=2 is for engine='jax'; .*one process for each GPU"):
        TrainingArguments("x", engine_devices=2)
    with pytest.raises(ValueError, match=r"engine_devices=2 is for engine='jax'; .*it trains on one device"):
        TrainingArguments("x", engine="mindspore", engine_devices=2)
    with pytest.raises(ValueError, match="engine_devices=0"):
        TrainingArguments("x", engine="jax", engine_devices=0)


def test_device_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(
        device=lambda use_cpu, index=0: "abacus",
        supports_bf16=lambda device: False,
        supports_fp16=lambda device: True,
        supports_tf32=lambda device: False,
    )
    monkeypatch.setattr(rules, "probe_for", lambda args: bare)
    check_device(TrainingArguments("x", fp16=True))
    for name in ("bf16", "bf16_full_eval", "tf32"):
        with pytest.raises(ValueError, match=f"{name}=True is not available on abacus"):
            check_device(_with(**{name: True}))


def test_cpu_has_half_precision_but_no_tf32() -> None:
    for name in ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval"):
        check_device(_with(use_cpu=True, **{name: True}))
    check_device(TrainingArguments("x", use_cpu=True, tf32=False))
    with pytest.raises(ValueError, match="tf32"):
        check_device(TrainingArguments("x", use_cpu=True, tf32=True))


def test_words_of_fsdp() -> None:
    args = TrainingArguments("x", fsdp="shard_grad_op auto_wrap offload", use_cpu=True)
    assert sharding_of(args) == Sharding(reshard_after_forward=False, offload=True)
    config = {
        "fsdp_transformer_layer_cls_to_wrap": "Block,Other",
        "activation_checkpointing": "true",
        "cpu_ram_efficient_loading": True,
        "fsdp_version": 2,
    }
    args = TrainingArguments("x", backend="fsdp", fsdp_config=config, use_cpu=True)
    assert sharding_of(args) == Sharding(blocks=("Block", "Other"), activation_checkpointing=True)
    assert way_of(TrainingArguments("x", fsdp="false")) is None
    assert way_of(TrainingArguments("x", parallelism_config=SimpleNamespace(dp_shard_size=2))) == "fsdp"
