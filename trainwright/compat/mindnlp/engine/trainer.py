"""``mindnlp.engine.trainer`` of MindNLP 0.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainwright.trainer.trainer import Trainer as NativeTrainer

__all__ = ["Trainer"]


class Trainer(NativeTrainer):
    """Our Trainer, with the arguments of MindNLP 0.4 in their order; it also takes MindSpore's datasets."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        map_fn: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tokenizer: Any = None,
        model_init: Callable[[], Any] | None = None,
        compute_metrics: Callable[[Any], dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        if map_fn is not None:
            raise ValueError(
                "map_fn= is not called here: map the dataset before, for example train_dataset.map(function), and "
                "leave it out."
            )
        if isinstance(eval_dataset, dict):
            eval_dataset = {name: _rows(each) for name, each in eval_dataset.items()}
        super().__init__(
            model,
            args,
            train_dataset=_rows(train_dataset),
            eval_dataset=_rows(eval_dataset),
            processing_class=tokenizer,
            model_init=model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )


def _rows(dataset: Any) -> Any:
    """A dataset of MindSpore as a list of rows of tensors; any other as it is."""
    if not callable(getattr(dataset, "create_dict_iterator", None)):
        return dataset
    if (size := dataset.get_batch_size()) > 1:
        raise ValueError(
            f"This MindSpore dataset is batched by {size}: leave .batch({size}) out, and set "
            f"per_device_train_batch_size={size}."
        )
    rows = dataset.create_dict_iterator(num_epochs=1, output_numpy=True)
    return [{name: torch.as_tensor(value) for name, value in row.items()} for row in rows]
