"""An encoder-decoder that writes texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from trainwright.compat.pymarlin.plugins.hf_seq2seq.data_classes import HfSeq2SeqData
from trainwright.compat.pymarlin.plugins.hf_seq2seq.metric_utils import get_metric_func
from trainwright.compat.pymarlin.plugins.plugin_module_interface import PluginModuleInterface
from trainwright.compat.pymarlin.utils.distributed import rank_zero_only
from trainwright.compat.pymarlin.utils.stats import global_stats
from trainwright.config.warnings import warn


@dataclass
class ModelArguments:
    """The section ``model``."""

    encoder_key: str = "bert"
    num_labels: int | None = None
    hf_model: str = "facebook/bart-base"
    tokenizer_path: str | None = None
    model_config_path: str | None = None
    model_config_file: str = "config.json"
    model_path: str | None = None
    model_file: str = "pytorch_model.bin"
    get_latest_ckpt: bool = True


@dataclass
class GenerateArguments:
    """The section ``generate``: how texts are written in a validation."""

    do_sample: bool = False
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False


@dataclass
class ModuleInterfaceArguments:
    """The section ``module``."""

    max_lr: float = 2e-5
    output_mode: str = "s2s"
    max_length_encoder: int = 128
    max_length_decoder: int = 128
    model_args: ModelArguments = field(default_factory=ModelArguments)
    generate_args: GenerateArguments = field(default_factory=GenerateArguments)
    metric: str = "rouge"

    def __post_init__(self) -> None:
        if self.output_mode != "s2s":
            warn(f"module.output_mode={self.output_mode!r} does nothing, in PyMarlin neither.")


class HfSeq2SeqModule(PluginModuleInterface):
    """Trains ``AutoModelForSeq2SeqLM``."""

    def __init__(self, data: HfSeq2SeqData, args: ModuleInterfaceArguments) -> None:
        super().__init__(args, data)
        from transformers import AutoModelForSeq2SeqLM

        self.metric_func = get_metric_func(args.metric)
        self.auto_setup(AutoModelForSeq2SeqLM)

    def collate_fun(self, batch: list[Any]) -> Any:
        sources, targets = (list(values) for values in zip(*batch, strict=True))
        limits = {"padding": True, "truncation": True, "return_tensors": "pt"}
        tokens = self.tokenizer(sources, max_length=self.args.max_length_encoder, **limits)
        wanted = self.tokenizer(text_target=targets, max_length=self.args.max_length_decoder, **limits)
        # By the mask: the padding token may also be one that counts.
        tokens["labels"] = wanted["input_ids"].masked_fill(wanted["attention_mask"] == 0, -100)
        return tokens

    def val_step(self, global_step: int, batch: Any, device: Any) -> Any:
        batch = batch.to(device)
        model: Any = self.model
        written = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_length=self.args.max_length_decoder,
            **asdict(self.args.generate_args),
        )
        return self._to_one_length(written), self._to_one_length(batch["labels"])

    def _to_one_length(self, tokens: torch.Tensor) -> torch.Tensor:
        """All batches of one length, so that they can be put together."""
        padding, longest = self.tokenizer.pad_token_id, self.args.max_length_decoder
        tokens = tokens.masked_fill(tokens == -100, padding)[:, :longest]
        return F.pad(tokens, (0, longest - tokens.shape[1]), value=padding)

    @rank_zero_only
    def on_end_val_epoch(self, global_step: int, *outputs: Any, key: str = "default") -> None:
        if len(outputs) != 2:
            return
        written, wanted = (self.tokenizer.batch_decode(tokens, skip_special_tokens=True) for tokens in outputs)
        for name, value in self.metric_func(written, wanted).items():
            global_stats.update(f"{key}/val_{name}", value)
