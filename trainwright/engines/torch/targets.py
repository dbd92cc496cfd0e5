"""What a batch's mean loss is taken over, counted before the batch goes to the device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100

#: Parts of transformers' class names whose loss compares position i with label i + 1.
_SHIFTING_NAMES = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile, DDP or PEFT wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) else None
        )
        if inner is None:
            return model
        model = inner


def base_model(model: nn.Module) -> nn.Module:
    """The model whose ``forward`` computes the loss: also looks inside PEFT."""
    model = unwrap(model)
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def shifts_labels(model: nn.Module) -> bool:
    """Whether the model itself shifts labels by one, so that position 0 of a row is never a target."""
    inner = base_model(model)
    declared = getattr(inner, "shifts_labels", None)
    if declared is not None:
        return bool(declared)
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return False
    names = {cls.__name__ for cls in type(inner).__mro__}
    if any(part in name for name in names for part in _SHIFTING_NAMES):
        return True
    if "ForCausalLM" in str(getattr(inner, "loss_type", None)):
        return True
    return bool(names & _image_text_models())


def _image_text_models() -> set[str]:
    """Names of vision-language models with a causal head; nothing is imported that the user has not imported."""
    auto = sys.modules.get("transformers.models.auto.modeling_auto")
    found: set[str] = set()
    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"):
        for value in getattr(auto, table, {}).values():
            found.update([value] if isinstance(value, str) else value)
    return found


def find_labels(batch: Any) -> Any:
    """The labels of a dict batch, or the last element of an (inputs..., labels) batch."""
    if isinstance(batch, Mapping):
        return batch.get("labels")
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[-1]
    return None


def count_rows(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    for value in values:
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    for value in values:
        if isinstance(value, (list, tuple)) or hasattr(value, "shape"):
            return len(value)
        if isinstance(value, Mapping):
            return count_rows(value)
    return 1


class TargetCounter:
    """Counts targets the way the model's own mean does.

    Integer labels count where they are not ignored (-100), one position less per row for models that shift; anything
    else counts samples.
    """

    def __init__(self, model: nn.Module, *, own_loss: bool = True) -> None:
        self.shifts = own_loss and shifts_labels(model)
        config = getattr(base_model(model), "config", None)
        self.ignored = getattr(config, "semantic_loss_ignore_index", IGNORED) or IGNORED
        # CTC averages over samples: a longer transcript weighs no more than a short one.
        self.by_row = "ForCTC" in type(base_model(model)).__name__

    def __call__(self, batch: Any) -> int | Tensor | None:
        """Targets in ``batch``; a scalar tensor where the labels already are on an accelerator."""
        labels = find_labels(batch)
        if isinstance(batch, Mapping) and "shift_labels" in batch:
            labels = batch["shift_labels"]
        elif self.shifts and isinstance(labels, Tensor) and labels.ndim > 1:
            labels = labels[..., 1:]
        if self.by_row or not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim == 0:
            return count_rows(batch)
        counted = torch.count_nonzero(labels != self.ignored)
        return int(counted) if labels.device.type == "cpu" else counted
