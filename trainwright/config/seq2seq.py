"""Arguments of ``Seq2SeqTrainer``."""

from dataclasses import dataclass
from pathlib import Path

from trainwright.config.arguments import TrainingArguments
from trainwright.config.help import attach_help
from trainwright.config.keywords import suggest_in_constructor


@dataclass(repr=False)
class Seq2SeqTrainingArguments(TrainingArguments):
    """``TrainingArguments`` plus what generation during evaluation needs."""

    sortish_sampler: bool = False
    """Accepted for old scripts; train_sampling_strategy="group_by_length" is what sorts by length."""

    predict_with_generate: bool = False
    """Generate text while evaluating, so that metrics such as ROUGE and BLEU can be computed."""

    generation_max_length: int | None = None
    """Longest generated sequence; unset asks the model's generation settings."""

    generation_num_beams: int | None = None
    """Beams of the search; unset asks the model's generation settings."""

    # transformers' GenerationConfig is an object here: this package does not know its class.
    generation_config: str | Path | object | None = None
    """Generation settings: a GenerationConfig, or the name or path of one."""


attach_help(Seq2SeqTrainingArguments)
suggest_in_constructor(Seq2SeqTrainingArguments)
