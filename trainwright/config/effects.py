"""What a changed setting means for a run that goes on: nothing to its course, another course, or another experiment."""

from __future__ import annotations

from enum import StrEnum

from trainwright.config.fields import (
    TOPICS,
    BatchFields,
    DataFields,
    DistributedFields,
    EvaluationFields,
    HubFields,
    LimitFields,
    LogFields,
    MemoryFields,
    MiscFields,
    NativeFields,
    OptimizerFields,
    PrecisionFields,
    RemovedFields,
    SavingFields,
    ScheduleFields,
    SurvivalFields,
)


class Effect(StrEnum):
    """What becomes of a run when a setting has another value at a resume."""

    #: It trains the same weights: the new value holds at once.
    FREE = "free"
    #: It trains on differently: the new value holds from the resumed step on, and that is said and kept.
    COURSE = "course"
    #: Its steps so far belong to something else: refused.
    EXPERIMENT = "another experiment"


#: By topic, and below the arguments that differ from their topic.
_OF_TOPIC = {
    SavingFields: Effect.FREE,
    BatchFields: Effect.COURSE,
    OptimizerFields: Effect.COURSE,
    ScheduleFields: Effect.COURSE,
    PrecisionFields: Effect.COURSE,
    EvaluationFields: Effect.FREE,
    LogFields: Effect.FREE,
    DataFields: Effect.FREE,
    DistributedFields: Effect.FREE,
    MemoryFields: Effect.FREE,
    HubFields: Effect.FREE,
    MiscFields: Effect.FREE,
    NativeFields: Effect.FREE,
    LimitFields: Effect.FREE,
    SurvivalFields: Effect.FREE,
    RemovedFields: Effect.FREE,
}
_OTHERWISE = {
    "per_device_eval_batch_size": Effect.FREE,
    "auto_find_batch_size": Effect.FREE,
    "average_tokens_across_devices": Effect.FREE,
    "bf16_full_eval": Effect.FREE,
    "fp16_full_eval": Effect.FREE,
    "torch_compile": Effect.FREE,
    "torch_compile_backend": Effect.FREE,
    "torch_compile_mode": Effect.FREE,
    "use_liger_kernel": Effect.FREE,
    "liger_kernel_config": Effect.FREE,
    # The same optimizer in another form; another one is refused for its state.
    "optim": Effect.FREE,
    "metric_for_best_model": Effect.COURSE,
    "greater_is_better": Effect.COURSE,
    "best_model_after_epoch": Effect.COURSE,
    "ignore_data_skip": Effect.COURSE,
    "engine_devices": Effect.COURSE,
    "dataloader_drop_last": Effect.COURSE,
    "dataloader_in_order": Effect.COURSE,
    "train_sampling_strategy": Effect.COURSE,
    "max_tokens_per_batch": Effect.COURSE,
    "sampling_column": Effect.COURSE,
    "sampling_temperature": Effect.COURSE,
    "limit_train_batches": Effect.COURSE,
    "overfit_batches": Effect.COURSE,
    "full_determinism": Effect.COURSE,
    "rewind_on_nonfinite": Effect.COURSE,
    "seed": Effect.EXPERIMENT,
    "data_seed": Effect.EXPERIMENT,
}
#: Free only as long as a step has the same samples in all; so is ``engine_devices``, which older runs do not have.
GLOBAL_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
#: Said of this start, of this machine or by a script to itself: nothing that a run's record has to follow.
OF_THIS_START = frozenset(
    {
        "output_dir",
        "resume",
        "resume_from_checkpoint",
        "restore_callback_states_from_checkpoint",
        "local_rank",
        "max_hours",
        "take_over",
        "disable_tqdm",
        "do_train",
        "do_eval",
        "do_predict",
        "fast_dev_run",
    }
)
#: What an optimizer in the middle of its work would keep under transformers.
KEPT_BY_TRANSFORMERS = frozenset(
    {"learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args"}
)
#: Sections and keys of an experiment's file that are no arguments; the longest start that fits decides.
_OF_EXPERIMENT = {
    "model": Effect.EXPERIMENT,
    "model.metrics": Effect.FREE,
    "model.ensemble.predict": Effect.FREE,
    "model.ensemble.calibrate": Effect.FREE,
    "model.ensemble.vectorize": Effect.COURSE,
    "data": Effect.EXPERIMENT,
    "data.eval": Effect.FREE,
    "data.eval_split": Effect.FREE,
    "data.limit_eval": Effect.FREE,
    "data.test": Effect.FREE,
    "adapter": Effect.EXPERIMENT,
    "adapter.dropout": Effect.COURSE,
    "trackers": Effect.FREE,
    "callbacks": Effect.COURSE,
    "callbacks.monitor": Effect.FREE,
    "phases": Effect.COURSE,
    "recipe": Effect.EXPERIMENT,
    "recipe_args": Effect.EXPERIMENT,
    "metadata_args": Effect.FREE,
    "teacher": Effect.EXPERIMENT,
    "distill_teacher": Effect.EXPERIMENT,
}
_ARGUMENT_SECTIONS = ("training", "checkpoint", "parallel")


def effect_of(name: str) -> Effect:
    """The effect of an argument, or of a key of an experiment's file.

    >>> effect_of("learning_rate").value, effect_of("logging_steps").value, effect_of("training.seed").value
    ('course', 'free', 'another experiment')
    >>> effect_of("model.name").value, effect_of("model.options.hidden_dropout_prob").value
    ('another experiment', 'course')
    """
    section, _, rest = name.partition(".")
    if rest and section in _ARGUMENT_SECTIONS:
        return effect_of(rest.split(".")[0])
    if section == "model" and "drop" in name.rpartition(".")[2]:
        # Dropout: the weights are the same ones.
        return Effect.COURSE
    words = name.split(".")
    if section == "phases" and words[-1] in ("data", "limit"):
        return Effect.EXPERIMENT
    for end in range(len(words), 0, -1):
        if (found := _OF_EXPERIMENT.get(".".join(words[:end]))) is not None:
            return found
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    # A field that somebody's own class of arguments adds is theirs to judge.
    return next((_OF_TOPIC[topic] for topic in TOPICS if name in topic.__dataclass_fields__), Effect.FREE)


def arguments_by_effect() -> dict[Effect, list[str]]:
    """Every argument that a run's record follows, for the table in the docs."""
    names = [name for topic in reversed(TOPICS) for name in topic.__dataclass_fields__]
    known = [name for name in names if name not in OF_THIS_START and name not in RemovedFields.__dataclass_fields__]
    return {effect: [name for name in known if effect_of(name) is effect] for effect in Effect}


def effects_table() -> str:
    """The table of docs/changing-a-run.md: ``python -m trainwright.config.effects``."""
    meaning = {
        Effect.FREE: "applied at once",
        Effect.COURSE: "applied from the resumed step on, said, and kept in the history",
        Effect.EXPERIMENT: "refused, with both values",
    }
    lines = ["| effect | what becomes of a change | arguments |", "|---|---|---|"]
    for effect, names in arguments_by_effect().items():
        lines.append(f"| **{effect.value}** | {meaning[effect]} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(effects_table(), end="")
