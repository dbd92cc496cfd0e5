"""A transformer that tells texts apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from trainwright.compat.pymarlin.plugins.hf_seq_classification.data_classes import HfSeqClassificationDataInterface
from trainwright.compat.pymarlin.plugins.hf_seq_classification.metric_utils import get_metric_func
from trainwright.compat.pymarlin.plugins.plugin_module_interface import PluginModuleInterface
from trainwright.compat.pymarlin.utils.distributed import rank_zero_only
from trainwright.compat.pymarlin.utils.stats import global_stats


@dataclass
class ModelArguments:
    """The section ``model``."""

    #: The part of the model that has the layers, for distillation.
    encoder_key: str = "bert"
    hf_model: str = "bert-base-uncased"
    model_config_path: str | None = None
    model_config_file: str = "config.json"
    model_path: str | None = None
    model_file: str = "pytorch_model.bin"
    tokenizer_path: str | None = None


@dataclass
class ModuleInterfaceArguments:
    """The section ``module``."""

    #: acc, acc_and_f1, pcc_and_scc or mcc.
    metric: str = "acc"
    max_lr: float = 0.00004
    #: Share of all steps until ``max_lr`` is reached.
    warmup_prop: float = 0.1
    has_labels: bool = True
    max_seq_len: int = 128
    model_args: ModelArguments = field(default_factory=ModelArguments)


class HfSeqClassificationModule(PluginModuleInterface):
    """Trains ``AutoModelForSequenceClassification``."""

    def __init__(self, args: ModuleInterfaceArguments, data: HfSeqClassificationDataInterface) -> None:
        super().__init__(args, data)
        from transformers import AutoModelForSequenceClassification

        self.auto_setup(AutoModelForSequenceClassification)
        self.metric_func = get_metric_func(args.metric)

    def collate_fun(self, batch: list[Any]) -> Any:
        *texts, labels = (list(values) for values in zip(*batch, strict=True))
        tokens = self.tokenizer(
            *texts, max_length=self.args.max_seq_len, truncation=True, padding=True, return_tensors="pt"
        )
        if self.args.has_labels:
            tokens["labels"] = torch.tensor(labels)
        return tokens

    @rank_zero_only
    def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
        if not self.args.has_labels or len(outputs) != 3:
            return
        losses, logits, labels = outputs
        is_number = len(self.data.get_labels()) == 1
        predictions = logits.squeeze(-1) if is_number else logits.argmax(-1)
        global_stats.update(f"{key}/val_loss", losses.mean().item())
        for name, value in self.metric_func(labels.numpy(), predictions.float().numpy()).items():
            global_stats.update(f"{key}/val_{name}", value)
