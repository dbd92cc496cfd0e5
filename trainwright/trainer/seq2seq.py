"""Sequence-to-sequence training: predictions are generated, not read off the logits."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from trainwright.config.seq2seq import Seq2SeqTrainingArguments
from trainwright.core.results import PredictionOutput
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.trainer import Trainer
from trainwright.training.evaluation import evaluate_each, labels_of
from trainwright.training.step import call_compute_loss

#: Options that scripts pass on from their own arguments; None means "not given".
_OFTEN_UNSET = ("max_length", "max_new_tokens", "num_beams")

#: What ``generate`` makes when nothing says how much: 20 tokens after the first.
_DEFAULT_LENGTH = 21


class Seq2SeqTrainer(Trainer):
    """A Trainer whose ``evaluate`` and ``predict`` call ``model.generate`` when ``predict_with_generate`` is set.

    Keyword arguments of ``evaluate`` and ``predict`` beyond the Trainer's (``max_length``, ``num_beams``, ...) go to
    ``generate``; a length or number of beams that is None was not given.
    """

    #: Options of the present evaluation, under transformers' name: a copied ``evaluate`` sets them.
    _gen_kwargs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gen_kwargs = self._with_defaults({})
        config = getattr(self.args, "generation_config", None)
        if config is not None:
            self.model.generation_config = _load_generation_config(config)

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As ``Trainer.evaluate``; ``gen_kwargs`` go to ``generate``."""
        if isinstance(self.eval_dataset if eval_dataset is None else eval_dataset, dict):
            return evaluate_each(self._setup, eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        self._gen_kwargs = self._with_defaults(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(  # type: ignore[override]
        self,
        test_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As ``Trainer.predict``; ``gen_kwargs`` go to ``generate``."""
        augmentation = gen_kwargs.pop("test_time_augmentation", None)
        self._gen_kwargs = self._with_defaults(gen_kwargs)
        return super().predict(
            test_dataset,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
            test_time_augmentation=augmentation,
        )

    @property
    def _generation_args(self) -> Seq2SeqTrainingArguments:
        # Made by adopt_arguments from whatever class they came in, so they have the fields if not the class.
        return cast(Seq2SeqTrainingArguments, self.args)

    def _with_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        options = _without_unset(given)
        args = self._generation_args
        if "max_length" not in options and "max_new_tokens" not in options and args.generation_max_length:
            options["max_length"] = args.generation_max_length
        if args.generation_num_beams is not None:
            options.setdefault("num_beams", args.generation_num_beams)
        return options

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """(loss, generated tokens, labels); both token arrays padded to the generation's maximal length."""
        if not self._generation_args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = labels_of(self._setup, inputs)
        options = _without_unset(self._gen_kwargs) | _without_unset(gen_kwargs)
        generator: Any = unwrap(model)
        with torch.no_grad(), self.compute_loss_context_manager():
            if self.engine.runs_in_step:
                # A process whose sentences are finished goes on until all are.
                options = {"synced_gpus": True, **options}
            with self.strategy.called_in_parts():
                generated = generator.generate(**_prompt(inputs), **options)
            loss = None
            if labels is not None:
                targets = self.count_targets(inputs) if self._setup.calling.wants_count else None
                loss = call_compute_loss(self._setup, model, inputs, targets, return_outputs=True)[0].detach().mean()
        length = self._generated_length(options)
        generated = self._pad_to(generated, length)
        return loss, generated, self._pad_to(labels, length) if labels is not None else None

    def _generated_length(self, options: dict[str, Any]) -> int:
        config: Any = self.model.generation_config
        new = options.get("max_new_tokens", None if "max_length" in options else config.max_new_tokens)
        return new + 1 if new is not None else options.get("max_length") or config.max_length or _DEFAULT_LENGTH

    def _pad_to(self, tokens: Tensor, length: int) -> Tensor:
        if tokens.shape[-1] >= length:
            return tokens
        padding = tokens.new_full((*tokens.shape[:-1], length - tokens.shape[-1]), self._padding_token())
        return torch.cat([tokens, padding], dim=-1)

    def _padding_token(self) -> int:
        sources = (self.processing_class, self.model.generation_config, getattr(self.model, "config", None))
        for source in sources:
            for name in ("pad_token_id", "eos_token_id"):
                value = getattr(source, name, None)
                if isinstance(value, int):
                    return value
        raise ValueError(
            "Generated sequences differ in length and need padding: set the model's generation_config.pad_token_id."
        )


def _without_unset(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` without lengths and beams that are None; other options may mean something by it."""
    return {name: value for name, value in options.items() if value is not None or name not in _OFTEN_UNSET}


def _prompt(inputs: Any) -> dict[str, Any]:
    """What is generated from: without the labels, and without decoder inputs that a collator made of them."""
    dropped = {"labels"}
    labels, started = inputs.get("labels"), inputs.get("decoder_input_ids")
    if labels is not None and started is not None and labels.shape == started.shape:
        dropped |= {"decoder_input_ids", "decoder_attention_mask"}
    return {name: value for name, value in inputs.items() if name not in dropped}


def _load_generation_config(config: Any) -> Any:
    if not isinstance(config, str) and not hasattr(config, "__fspath__"):
        return config
    from transformers import GenerationConfig

    return GenerationConfig.from_pretrained(config)
