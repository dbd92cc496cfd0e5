"""What a batch's mean loss is taken over, counted before the batch goes to the device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100
_FEW = 256

#: Parts of transformers' class names whose loss compares position i with label i + 1, unless they are encoder-decoders.
_SHIFTING_NAMES = (
    "ForCausalLM",
    "LMHeadModel",
    "DoubleHeadsModel",
    "ForConditionalGeneration",
    "ForCausalImageModeling",
)

#: Named like these, but position i is compared with label i: decoders taken out of an encoder-decoder, which expect
#: labels that are shifted already, and masked or permuted language models.
_UNSHIFTED = frozenset(
    {
        "BartForCausalLM",
        "BigBirdPegasusForCausalLM",
        "BlenderbotForCausalLM",
        "BlenderbotSmallForCausalLM",
        "CpmAntForCausalLM",
        "FlaubertWithLMHeadModel",
        "MBartForCausalLM",
        "MarianForCausalLM",
        "MusicgenForCausalLM",
        "MusicgenMelodyForCausalLM",
        "MvpForCausalLM",
        "PLBartForCausalLM",
        "PegasusForCausalLM",
        "ProphetNetForCausalLM",
        "TrOCRForCausalLM",
        "WhisperForCausalLM",
        "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    }
)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile or DDP: the one whose weights are stored.

    Of a ``trainwright.Module`` that is its ``model``, where this holds everything.
    """
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) else None
        )
        stored = getattr(model, "_stored_model", None)
        if inner is None and callable(stored):
            inner = stored()
        if inner is None or inner is model:
            return model
        model = inner


def base_model(model: nn.Module) -> nn.Module:
    """The model whose ``forward`` computes the loss: also looks inside PEFT, and at the ``model`` of a Module."""
    model = unwrap(model)
    main = getattr(model, "_main_model", None)
    model = (main() if callable(main) else None) or model
    inner = getattr(model, "get_base_model", None)
    return inner() if hasattr(model, "peft_config") and callable(inner) else model


def shifts_labels(model: nn.Module) -> bool:
    """Whether the model itself shifts labels by one, so that position 0 of a row is never a target."""
    inner = base_model(model)
    declared = getattr(inner, "shifts_labels", None)
    if declared is not None:
        return bool(declared)
    names = {cls.__name__ for cls in type(inner).__mro__}
    if _is_encoder_decoder(getattr(inner, "config", None)) or names & _UNSHIFTED:
        return False
    if any(part in name for name in names for part in _SHIFTING_NAMES):
        return True
    if "ForCausalLM" in str(getattr(inner, "loss_type", None)):
        return True
    return bool(names & _image_text_models())


def _is_encoder_decoder(config: object) -> bool:
    """Whether a model, or the language model that a vision-language model is built around, is one."""
    parts = (config, getattr(config, "text_config", None))
    return any(getattr(part, "is_encoder_decoder", False) for part in parts)


def _image_text_models() -> set[str]:
    """Names of vision-language models with a causal head; nothing is imported that the user has not imported."""
    auto = sys.modules.get("transformers.models.auto.modeling_auto")
    found: set[str] = set()
    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"):
        for value in getattr(auto, table, {}).values():
            found.update([value] if isinstance(value, str) else value)
    return found


#: What batches and outputs usually are besides; asking the abstract class takes a microsecond, five times a step.
_NO_MAPPINGS = frozenset({list, tuple, Tensor})


def is_mapping(value: object) -> bool:
    """Whether ``value`` is a dict or like one; the check against the abstract class alone takes eight times as long."""
    kind = type(value)
    if kind is dict or kind in _NO_MAPPINGS:
        return kind is dict
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def find_labels(batch: Any) -> Any:
    """The labels of a dict batch, or the last element of an (inputs..., labels) batch."""
    if is_mapping(batch):
        return batch.get("labels")
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[-1]
    return None


def count_rows(batch: object) -> int:
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


def _ignored_class(model: nn.Module) -> int:
    """The pixel label that a segmentation model leaves out; 255 in most of them."""
    config = getattr(model, "config", None)
    for name in ("semantic_loss_ignore_index", "loss_ignore_index"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return IGNORED


class TargetCounter:
    """Counts targets the way the model's own mean does.

    Integer labels count where they are not ignored (-100), one position less per row for models that shift; anything
    else counts samples.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shifts = shifts_labels(model)
        inner = base_model(model)
        name = type(inner).__name__
        self.ignored = _ignored_class(inner) if "SemanticSegmentation" in name else IGNORED
        # CTC averages over samples: a longer transcript weighs no more than a short one.
        self.by_row = "ForCTC" in name

    def __call__(self, batch: Any) -> int | Tensor | None:
        """Targets in ``batch``; a scalar tensor where the labels already are on an accelerator."""
        labels = find_labels(batch)
        if self.shifts:
            if is_mapping(batch) and "shift_labels" in batch:
                labels = batch["shift_labels"]
            elif isinstance(labels, Tensor) and labels.ndim > 1:
                labels = labels[..., 1:]
        if self.by_row or not isinstance(labels, Tensor) or labels.is_floating_point() or labels.ndim == 0:
            return count_rows(batch)
        if labels.is_cpu and labels.ndim == 1 and labels.shape[0] <= _FEW:
            # One label a row: with cold caches, as between two steps, a list is four times as fast as two kernels.
            values = labels.tolist()
            return len(values) - values.count(self.ignored)
        counted = torch.count_nonzero(labels != self.ignored)
        return int(counted) if labels.is_cpu else counted
