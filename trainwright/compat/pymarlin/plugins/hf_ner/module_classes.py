"""A transformer that labels words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from trainwright.compat.pymarlin.plugins.hf_ner.data_classes import NERDataInterface
from trainwright.compat.pymarlin.plugins.hf_ner.sequence_labelling_metrics import get_ner_seq_metric
from trainwright.compat.pymarlin.plugins.plugin_module_interface import PluginModuleInterface
from trainwright.compat.pymarlin.utils.distributed import rank_zero_only
from trainwright.compat.pymarlin.utils.stats import global_stats
from trainwright.config.warnings import warn


@dataclass
class ModelArguments:
    """The section ``model``."""

    model_name: str = "bert"
    #: The part of the model that has the layers, for distillation.
    encoder_key: str = "bert"
    hf_model: str = "bert-base-uncased"
    model_file: str = "pytorch_model.bin"
    model_config_file: str = "config.json"
    model_path: str | None = None
    model_config_path: str | None = None
    tokenizer_path: str | None = None


@dataclass
class ModuleInterfaceArguments:
    """The section ``module``."""

    output_dir: str | None = None
    max_lr: float = 0.00004
    #: Share of all steps until ``max_lr`` is reached.
    warmup_prop: float = 0.1
    has_labels: bool = True
    max_seq_len: int = 128
    pad_label_id: int = -100
    #: Label every piece of a word, not only its first.
    label_all_tokens: bool = False
    model_args: ModelArguments = field(default_factory=ModelArguments)

    def __post_init__(self) -> None:
        if self.output_dir is not None:
            warn("module.output_dir does nothing, in PyMarlin neither: checkpoints go to ckpt.save_dir.")
        if self.pad_label_id != -100:
            raise ValueError(f"module.pad_label_id={self.pad_label_id}: models leave out the label -100 and no other.")


class NERModule(PluginModuleInterface):
    """Trains ``AutoModelForTokenClassification``."""

    def __init__(self, args: ModuleInterfaceArguments, data: NERDataInterface) -> None:
        super().__init__(args, data)
        from transformers import AutoModelForTokenClassification

        self.metric_func = get_ner_seq_metric
        self.auto_setup(AutoModelForTokenClassification)

    def collate_fun(self, batch: list[Any]) -> Any:
        sentences, labels = (list(values) for values in zip(*batch, strict=True))
        tokens = self.tokenizer(
            sentences,
            is_split_into_words=True,
            max_length=self.args.max_seq_len,
            truncation=True,
            # All batches of one length, so that the logits of a validation can be put together.
            padding="max_length",
            return_tensors="pt",
        )
        if self.args.has_labels:
            rows = [self._token_labels(tokens.word_ids(place), words) for place, words in enumerate(labels)]
            tokens["labels"] = torch.tensor(rows)
        return tokens

    def _token_labels(self, word_ids: list[int | None], labels: list[str]) -> list[int]:
        """The label of its word for each token; none for special tokens and, unless asked for, further pieces."""
        found, before = [], None
        for word in word_ids:
            counts = word is not None and (word != before or self.args.label_all_tokens)
            found.append(self._number(labels[word]) if counts and word is not None else self.args.pad_label_id)
            before = word
        return found

    def _number(self, label: str) -> int:
        if label not in self.data.label_map:
            raise ValueError(f"The label {label!r} is not in data.labels_list.")
        return self.data.label_map[label]

    @rank_zero_only
    def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
        if not self.args.has_labels or len(outputs) != 3:
            return
        _, logits, labels = outputs
        names, counts = self.data.get_labels(), labels != self.args.pad_label_id
        said = [names[number] for number in logits.argmax(-1)[counts].tolist()]
        true = [names[number] for number in labels[counts].tolist()]
        for name, value in self.metric_func(true, said).items():
            global_stats.update(name, value)
