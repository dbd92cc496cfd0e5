"""What becomes of every argument of transformers (v5, v4, Seq2Seq) and of our own.

* ``acts``: does what its name says, on one device.
* ``alias``: another spelling of a name that acts.
* ``no effect``: accepted; the note says why nothing changes. A value other than the default warns once.
* ``refused``: a value that asks for something raises ``ValueError``; the note says why.

A test compares the table with the installed transformers, so that a new release shows.
"""

from dataclasses import dataclass
from typing import Literal

from trainwright.config.removal import RULES

Status = Literal["acts", "alias", "no effect", "refused"]


@dataclass(frozen=True)
class Field:
    """One row."""

    status: Status
    note: str


def _all(status: Status, note: str, names: str) -> dict[str, Field]:
    return {name: Field(status, note) for name in names.split()}


TRACKIO = ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")
_SCRIPT = "a flag for scripts, as in transformers; the Trainer does not read it"

HF: dict[str, Field] = {
    **_all(
        "acts",
        "size and number of steps",
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs max_steps",
    ),
    "auto_find_batch_size": Field("alias", 'micro_batch="auto"'),
    "average_tokens_across_devices": Field("no effect", "targets are always counted over everything that trains"),
    **_all(
        "acts",
        "the optimizer and what surrounds it",
        "learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm optim optim_args "
        "optim_target_modules label_smoothing_factor neftune_noise_alpha",
    ),
    **_all("acts", "the learning rate", "lr_scheduler_type lr_scheduler_kwargs warmup_steps"),
    **_all(
        "acts",
        "number formats and kernels; refused on a device without them",
        "bf16 fp16 bf16_full_eval fp16_full_eval tf32 torch_compile torch_compile_backend torch_compile_mode "
        "use_liger_kernel liger_kernel_config",
    ),
    **_all(
        "acts",
        "evaluation",
        "eval_strategy eval_steps eval_delay eval_on_start prediction_loss_only "
        "eval_do_concat_batches batch_eval_metrics include_for_metrics label_names",
    ),
    "eval_accumulation_steps": Field("no effect", "predictions leave the device after every batch"),
    "eval_use_gather_object": Field("no effect", "outputs of any kind are gathered without it"),
    **_all(
        "acts",
        "the best model; save and evaluation intervals need not match",
        "load_best_model_at_end metric_for_best_model greater_is_better",
    ),
    **_all(
        "acts",
        "checkpoints",
        "output_dir save_strategy save_steps save_total_limit save_only_model ignore_data_skip "
        "restore_callback_states_from_checkpoint",
    ),
    "save_on_each_node": Field("acts", "the first process of every machine saves, not only that of the first"),
    "enable_jit_checkpoint": Field(
        "acts", "saving on preemption is on by default; this also saves when save_strategy is 'no'"
    ),
    "resume_from_checkpoint": Field("acts", "a path for scripts to hand to train(), as in transformers"),
    **_all(
        "acts",
        "logging",
        "logging_strategy logging_steps logging_first_step logging_nan_inf_filter log_level disable_tqdm run_name "
        "include_num_input_tokens_seen skip_memory_metrics",
    ),
    "report_to": Field("acts", "nine trackers are built in; others go through transformers' callbacks"),
    "project": Field("acts", "the project in trackers"),
    **_all("acts", "what other processes and machines log", "log_level_replica log_on_each_node"),
    "trackio_space_id": Field("acts", 'the Space that report_to="trackio" writes to'),
    "trackio_bucket_id": Field("acts", "the bucket with the data of Trackio's Space"),
    "trackio_static_space_id": Field("acts", "what Trackio shows becomes this public Space when training is done"),
    **_all(
        "acts",
        "reading data",
        "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_drop_last dataloader_multiprocessing_context dataloader_in_order remove_unused_columns "
        "train_sampling_strategy length_column_name",
    ),
    **_all("acts", "several processes, as torchrun starts them", "ddp_backend ddp_timeout"),
    **_all("acts", "DistributedDataParallel", "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_static_graph"),
    "ddp_broadcast_buffers": Field("no effect", "buffers that steps change are those of the first process after each"),
    "local_rank": Field("no effect", "read the property local_process_index instead"),
    "use_cpu": Field("acts", "keeps everything on the CPU"),
    "accelerator_config": Field("acts", "accumulation steps are taken over; the rest has no meaning here"),
    **_all("acts", "parameters sharded over processes by FSDP2", "fsdp fsdp_config"),
    "deepspeed": Field("acts", "DeepSpeed's ZeRO, stages 1 to 3"),
    "parallelism_config": Field("acts", "tp_size and dp_shard_size; other ways of splitting are refused"),
    **_all(
        "acts",
        "memory",
        "gradient_checkpointing gradient_checkpointing_kwargs torch_empty_cache_steps use_cache",
    ),
    **_all(
        "acts",
        "pushing through huggingface_hub",
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
    ),
    **_all("acts", "randomness", "seed data_seed full_determinism"),
    "debug": Field("acts", '"underflow_overflow"; "tpu_metrics_debug" is refused'),
    **_all("acts", _SCRIPT, "do_train do_eval do_predict"),
    **{name: Field(rule.status, rule.advice) for name, rule in RULES.items() if not rule.is_removed},
}
"""The 114 arguments of transformers 5.23."""

REMOVED: dict[str, Field] = {
    "logging_dir": Field("acts", "where trackers write; switches TensorBoard on when report_to is not given"),
    **{name: Field(rule.status, rule.advice) for name, rule in RULES.items() if rule.is_removed},
}
"""Names dropped since transformers 4.57 and earlier."""

SEQ2SEQ: dict[str, Field] = {
    "sortish_sampler": Field("no effect", 'as in transformers today; train_sampling_strategy="group_by_length" sorts'),
    **_all(
        "acts",
        "generation while evaluating",
        "predict_with_generate generation_max_length generation_num_beams generation_config",
    ),
}
"""What Seq2SeqTrainingArguments adds."""

NATIVE: dict[str, Field] = {
    "micro_batch": Field("acts", "batches run in pieces of this many samples, or of as many as fit"),
    "acceleration": Field("acts", "compiled blocks, losses without logits, clipping in the update; docs/speed.md"),
    "memory_budget": Field("acts", "how much compiled blocks keep for backward; docs/speed.md"),
    "backend": Field("acts", "one process, or those that torchrun starts; and the precision"),
    "tensor_parallel_size": Field("acts", "layers cut over processes, for models that carry a plan"),
    "max_tokens_per_batch": Field("acts", "batches by token budget"),
    **_all("acts", "rare classes more often", "sampling_column sampling_temperature"),
    "set_grads_to_none": Field("acts", "gradients after a step: none, or zeros"),
    **_all("acts", "trackers", "tracker_options tags"),
    "write_report": Field("acts", "report.html and report.md at the end; docs/reports.md"),
    "log_loss_per": Field("acts", "the training loss of each class, or of each source of samples"),
    "log_histograms": Field("acts", "histograms of weights and gradients at every so many logs"),
    **_all(
        "acts",
        "how many batches are used",
        "limit_train_batches limit_eval_batches limit_predict_batches overfit_batches",
    ),
    "fast_dev_run": Field("acts", "a few batches of everything, of which nothing is kept"),
    "profile": Field("acts", "a profiler trace of the given steps in output_dir"),
    "best_model_after_epoch": Field("acts", "evaluations before this epoch are not the best"),
    "engine": Field("acts", "the framework: torch, mindspore or jax"),
    "engine_jit": Field("acts", "compile the step into one graph, or run it op by op; engines other than torch"),
    "engine_check": Field("acts", "compare the first batch with torch's; engines other than torch"),
    "engine_devices": Field("acts", 'devices that share a batch; engine="jax"'),
    **_all("acts", "when to save, evaluate and log", "checkpoint_every evaluate_every log_every save_best keep_every"),
    "eval_on_end": Field("acts", "an evaluation after the last step"),
    "rescue_on": Field("acts", "errors that save even where checkpoints are off"),
    **_all(
        "acts",
        "checkpoints, preemption and going on afterwards",
        "resume take_over exact checkpoint_format save_in_background handle_signals preempted_exit_code max_hours "
        "preemption_deadline",
    ),
    **_all(
        "acts",
        "runs that diverge or get stuck",
        "max_nonfinite_steps rewind_on_nonfinite check_weights_every watchdog_seconds watchdog_exit",
    ),
}
"""Arguments transformers does not have."""

FIELDS: dict[str, Field] = {**HF, **REMOVED, **SEQ2SEQ, **NATIVE}
