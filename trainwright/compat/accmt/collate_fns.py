"""ACCMT's collators: transformers' own, which also look into the tuples and dicts that a data set gives.

Every part of a sample that has ``input_ids`` is padded as the collator says; other parts are stacked as torch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import default_collate

from trainwright.data import collators_lm, collators_text


class LooksInside:
    """Finds the tokenized parts of samples, wherever they are, and gives those to the collator below."""

    def __call__(self, features: list[Any], *args: Any, **kwargs: Any) -> Any:
        first = features[0]
        if isinstance(first, Mapping):
            if "input_ids" in first:
                return super().__call__(features, *args, **kwargs)  # type: ignore[misc]
            return {key: self([sample[key] for sample in features]) for key in first}
        if isinstance(first, (list, tuple)):
            return type(first)(self(list(parts)) for parts in zip(*features, strict=True))
        return default_collate(features)


class DataCollatorForSeq2Seq(LooksInside, collators_text.DataCollatorForSeq2Seq):
    """Pads inputs and labels; samples may hold them in tuples or dicts, among other things."""


class DataCollatorWithPadding(LooksInside, collators_text.DataCollatorWithPadding):
    """Pads inputs; samples may hold them in tuples or dicts, among other things.

    >>> collate = DataCollatorWithPadding(tokenizer=None)
    >>> collate([(1.0, {"weight": 2}), (3.0, {"weight": 4})])
    (tensor([1., 3.], dtype=torch.float64), {'weight': tensor([2, 4])})
    """


class DataCollatorForTokenClassification(LooksInside, collators_text.DataCollatorForTokenClassification):
    """Pads inputs and a label for each token; samples may hold them in tuples or dicts."""


class DataCollatorForLanguageModeling(LooksInside, collators_lm.DataCollatorForLanguageModeling):
    """Hides tokens and asks for them; samples may hold them in tuples or dicts."""


class DataCollatorForWholeWordMask(LooksInside, collators_lm.DataCollatorForWholeWordMask):
    """Hides whole words and asks for them; samples may hold them in tuples or dicts."""


class DataCollatorForPermutationLanguageModeling(LooksInside, collators_lm.DataCollatorForPermutationLanguageModeling):
    """Asks for spans in permuted order; samples may hold them in tuples or dicts."""


#: Its name in the first versions.
DataCollatorForLongestSequence = DataCollatorWithPadding
