"""A look at a finished batch: faults that a collator can put in after every sample was right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainwright.data.chat.template import stop_tokens

_IGNORED = -100


def check_batch(batch: Mapping[str, Tensor], tokenizer: Any) -> None:
    """Refuse a batch of conversations that would teach something else than its answers.

    Call it with the first batch of a collator of your own: ``check_batch(next(iter(loader)), tokenizer)``. It names a
    mask that is all zero, labels that are shifted, a doubled beginning, and an end of answers that is not trained,
    also where that is because the end token pads too.
    """
    tokens, labels = batch["input_ids"], batch["labels"]
    trained = labels != _IGNORED
    if not bool(trained.any()):
        raise ValueError(
            "The mask is all zero: no token of the batch is trained. Does the template mark the answers, and is "
            "max_length long enough to reach them?"
        )
    if not torch.equal(labels[trained], tokens[trained]):
        raise ValueError(
            "The mask is off by one: labels should stand at the place of their own token, since the model shifts them "
            "itself. Make labels a copy of input_ids with -100 where nothing is learned."
        )
    seen = batch.get("attention_mask", torch.ones_like(tokens)).bool()
    if bool((trained & ~seen).any()):
        raise ValueError("Tokens are trained that the attention mask hides: padding has labels; set them to -100.")
    first = tokenizer.bos_token_id
    for row, is_seen in zip(tokens, seen, strict=True):
        if first is not None and row[is_seen][:2].tolist() == [first, first]:
            raise ValueError(
                f"A sample begins with {tokenizer.bos_token} twice (double BOS): the chat template writes it, so "
                "tokenize the rendered text with add_special_tokens=False."
            )
    _refuse_untrained_ends(tokens, trained, seen, tokenizer)


def _refuse_untrained_ends(tokens: Tensor, trained: Tensor, seen: Tensor, tokenizer: Any) -> None:
    """An end token right behind something trained that has none itself: nobody learns to stop there."""
    stops = torch.tensor(sorted(stop_tokens(tokenizer)), device=tokens.device)
    is_stop = torch.isin(tokens, stops) & seen
    behind = trained[:, :-1] & ~trained[:, 1:] & is_stop[:, 1:]
    for row, place in behind.nonzero().tolist():
        # Templates write a line break or so behind the end.
        while place > 0 and trained[row, place] and not tokenizer.decode([int(tokens[row, place])]).strip():
            place -= 1
        if not (trained[row, place] and is_stop[row, place]):
            break
        behind[row] = False
    if not bool(behind.any()):
        return
    end = int(tokens[:, 1:][behind][0])
    name = tokenizer.convert_ids_to_tokens(end)
    if end == tokenizer.pad_token_id:
        raise ValueError(
            f"The end is missing from the loss: {name} ends answers and pads too, and was masked away as padding. Mask "
            "by the attention mask and not by the token, or give the tokenizer a pad token of its own."
        )
    raise ValueError(
        f"The end is missing from the loss: {name} behind the answers is not trained, and the model would never stop. "
        "Let the mask reach over the end token."
    )
