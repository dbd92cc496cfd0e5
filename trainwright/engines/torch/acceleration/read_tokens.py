"""Of which tokens a transformers model's head reads the states: none of them may be padding that was left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.origin import library_of

#: Tensors that a network may be given: what else there is may be about tokens, too.
_KNOWN = frozenset(
    ("input_ids", "attention_mask", "labels", "token_type_ids", "position_ids", "inputs_embeds", "num_items_in_batch")
)

#: Settings by which more than the last states comes out of the blocks.
_OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits")

_IGNORED = -100


def is_known_head(model: Any) -> bool:
    """Whether it is one of transformers' own that read a token with a label, the first token or the last."""
    from transformers.models.auto import modeling_auto as known

    kinds: tuple[Any, ...] = (
        known.MODEL_FOR_CAUSAL_LM_MAPPING,
        known.MODEL_FOR_MASKED_LM_MAPPING,
        known.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        known.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    )
    config = type(model.config)
    found = [kind[config] for kind in kinds if config in kind]
    classes = {one for some in found for one in (some if isinstance(some, (tuple, list)) else (some,))}
    return type(model) in classes and library_of(type(model)) == "transformers"


def why_not_call(kwargs: dict[str, Any], config: Any) -> str | None:
    """Why a call cannot do without padding and give the same; None where it can."""
    asked = [name for name in _OUTPUTS if kwargs.get(name) or getattr(config, name, False)]
    if asked:
        return f"{asked[0]} asks for what its blocks put out"
    unknown = [name for name, value in kwargs.items() if isinstance(value, Tensor) and name not in _KNOWN]
    if unknown:
        return f"it is not known which tokens {unknown[0]!r} is about"
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        # The blocks will not find one to leave out.
        return None
    labels = kwargs.get("labels")
    if not isinstance(labels, Tensor):
        return "there are no labels"
    if labels.shape == mask.shape:
        return "tokens of padding are trained on" if trains_on_padding(labels, mask) else None
    return None if _ends_are_kept(kwargs, mask, config) else "the first or the last token of a text is padding"


def trains_on_padding(labels: Tensor, mask: Tensor) -> bool:
    """Whether a label stands at a padding token, or behind one whose state would have to predict it.

    >>> mask = torch.tensor([[0, 1, 1], [1, 1, 0]])
    >>> trains_on_padding(torch.tensor([[-100, -100, 5], [6, 7, -100]]), mask)
    False
    >>> trains_on_padding(torch.tensor([[-100, 4, 5], [6, 7, -100]]), mask)
    True
    """
    kept = mask.bool()
    before = nn.functional.pad(kept[:, :-1], (1, 0), value=True)
    return bool(((labels != _IGNORED) & ~(kept & before)).any())


def _ends_are_kept(kwargs: dict[str, Any], mask: Tensor, config: Any) -> bool:
    """Of a label for each text: what its head looks at, the first token or the last that is no pad token, is there."""
    kept, ids = mask.bool(), kwargs.get("input_ids")
    if not isinstance(ids, Tensor):
        return False
    first = kept[:, 0]
    pad = getattr(config, "pad_token_id", None)
    if pad is None:
        return bool(first.all())
    places = torch.arange(ids.shape[1], device=ids.device)
    last = torch.where(ids != pad, places, 0).amax(1, keepdim=True)
    return bool((first & kept.gather(1, last).squeeze(1)).all())
