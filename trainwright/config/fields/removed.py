"""Names of transformers v4 that v5 dropped. They are real fields so that v4 command lines and attribute reads work.

Types are v4's without ``None``: argument parsers offer a bare ``--flag`` only for a plain ``bool``. What each does is
in ``removal.RULES``.
"""

from dataclasses import dataclass

from trainwright.config.removal import removed


@dataclass(kw_only=True)
class RemovedFields:
    evaluation_strategy: str = removed()
    """Removed: use eval_strategy."""

    warmup_ratio: float = removed()
    """Removed: use warmup_steps with a number below 1."""

    # Still acts, so it is an ordinary field and not a dropped name.
    logging_dir: str | None = None
    """Trackers write here, or to the server that this names; switches TensorBoard on when report_to is not given."""

    overwrite_output_dir: bool = removed()
    """Removed: an existing output_dir is never emptied."""

    group_by_length: bool = removed()
    """Removed: use train_sampling_strategy."""

    no_cuda: bool = removed()
    """Removed: use use_cpu."""

    per_gpu_train_batch_size: int = removed()
    """Removed: use per_device_train_batch_size."""

    per_gpu_eval_batch_size: int = removed()
    """Removed: use per_device_eval_batch_size."""

    save_safetensors: bool = removed()
    """Removed: weights are always saved as safetensors."""

    include_inputs_for_metrics: bool = removed()
    """Removed: use include_for_metrics."""

    include_tokens_per_second: bool = removed()
    """Removed: use include_num_input_tokens_seen."""

    push_to_hub_token: str = removed()
    """Removed: use hub_token."""

    push_to_hub_model_id: str = removed()
    """Removed: use hub_model_id."""

    push_to_hub_organization: str = removed()
    """Removed: use hub_model_id."""

    fp16_backend: str = removed()
    """Removed: use fp16 or bf16."""

    half_precision_backend: str = removed()
    """Removed: use fp16 or bf16."""

    fp16_opt_level: str = removed()
    """Removed: belonged to apex."""

    adafactor: bool = removed()
    """Removed: use optim."""

    torchdynamo: str = removed()
    """Removed: use torch_compile_backend."""

    use_mps_device: bool = removed()
    """Removed: an Apple GPU is found by itself."""

    jit_mode_eval: bool = removed()
    """Removed: use torch_compile."""

    use_legacy_prediction_loop: bool = removed()
    """Removed: there is one prediction loop."""

    past_index: int = removed()
    """Removed: memory passed between batches is not supported."""

    mp_parameters: str = removed()
    """Removed: belonged to SageMaker."""

    ray_scope: str = removed()
    """Removed: belonged to Ray Tune."""

    tpu_num_cores: int = removed()
    """Removed: TPUs are not supported."""

    tpu_metrics_debug: bool = removed()
    """Removed: TPUs are not supported."""

    fsdp_min_num_params: int = removed()
    """Removed: belonged to FSDP."""

    fsdp_transformer_layer_cls_to_wrap: str = removed()
    """Removed: belonged to FSDP."""
