"""Which columns of a dataset reach the model.

A model's ``forward`` says what it takes; the rest is dropped, said once, and never down to nothing. Where the columns
are known beforehand the dataset is narrowed, so that unused ones are not even read. Where they appear only when a
sample is made (a transform, a dataset of one's own), a wrapper around the collator drops them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import get_worker_info

from trainwright.config.origin import class_if_imported
from trainwright.core.signatures import forward_parameters
from trainwright.data.lengths import makes_columns_on_the_fly

logger = logging.getLogger("trainwright")

Collate = Callable[[list[Any]], Any]

# The default collator turns these into "labels", so they are used though no forward names them.
_COLLATED_LABELS = ("label", "label_ids")


def forward_columns(model: Any, label_names: Iterable[str] = ()) -> list[str] | None:
    """The names ``model.forward`` takes, then the label names; None where it takes whatever it is given.

    ``None`` stands for a forward of ``*args``/``**kwargs`` alone: it names nothing, so nothing can be called unused.
    A forward that names some columns and has ``**kwargs`` besides takes the named ones only, as with Hugging Face,
    whose models end in ``**kwargs`` for options that are not columns.
    """
    named = [
        parameter.name
        for parameter in forward_parameters(_innermost(model)).values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if not named:
        return None
    return list(dict.fromkeys([*named, *_COLLATED_LABELS, *label_names]))


def remove_unused_columns(
    dataset: Any, keep: Sequence[str] | None, description: str | None = None, said: set[str] | None = None
) -> Any:
    """``dataset`` without the columns that are not in ``keep``, where its columns are known beforehand.

    A dataset that makes its columns on the fly, or does not know them, comes back as it is: wrap its collator in
    ``DropColumnsCollator``. ``use_columns`` decides between the two.
    """
    if keep is None or not _knows_its_columns(dataset):
        return dataset
    columns = list(dataset.column_names)
    unused = [name for name in columns if name not in keep]
    _refuse_to_empty(_visible_columns(dataset), keep, description)
    if not unused:
        return dataset
    _say_dropped(unused, [name for name in columns if name in keep], keep, description, said)
    return dataset.remove_columns(unused)


def use_columns(
    dataset: object,
    collate: Collate,
    keep: Sequence[str] | None,
    description: str | None = None,
    said: set[str] | None = None,
) -> tuple[Any, Collate]:
    """The dataset and the collator that together let only the columns in ``keep`` through.

    What is dropped is told, and not told again if it is among what was ``said``.
    """
    if keep is None:
        return dataset, collate
    if _knows_its_columns(dataset):
        return remove_unused_columns(dataset, keep, description, said), collate
    return dataset, DropColumnsCollator(collate, keep, description, said)


class DropColumnsCollator:
    """Drops the keys that are not in ``keep`` from dict samples and hands them to ``collate``.

    Samples that are not dicts pass untouched, and so do dicts with nothing to drop: those are not even copied.
    """

    def __init__(
        self,
        collate: Collate,
        keep: Sequence[str] | None,
        description: str | None = None,
        said: set[str] | None = None,
    ) -> None:
        self.collate = collate
        self.keep = None if keep is None else tuple(keep)
        self.description = description
        self.has_spoken = False
        self._said = said
        self._kept_names = frozenset(self.keep or ())

    def __call__(self, features: list[Any]) -> Any:
        if self.keep is None:
            return self.collate(features)
        if self._has_more(features):
            features = [self._narrowed(feature) for feature in features]
        return self.collate(features)

    def _has_more(self, features: list[Any]) -> bool:
        """Whether some sample may have a key to drop; asked for every batch, hence no type checks."""
        kept = self._kept_names
        try:
            for feature in features:
                if not feature.keys() <= kept:
                    return True
        except AttributeError:
            return any(isinstance(feature, Mapping) for feature in features)
        return False

    def _narrowed(self, feature: object) -> Any:
        if not isinstance(feature, Mapping):
            return feature
        kept = {name: value for name, value in feature.items() if name in self._kept_names}
        keep = self.keep or ()
        if not kept:
            _refuse_to_empty(list(feature), keep, self.description)
        if not self.has_spoken and len(kept) < len(feature):
            self.has_spoken = True
            worker = get_worker_info()
            if worker is None or worker.id == 0:
                unused = [name for name in feature if name not in self._kept_names]
                _say_dropped(unused, list(kept), keep, self.description, self._said)
        return kept


def _innermost(model: Any) -> Any:
    """The module whose signature counts: without torch.compile's wrapper and PEFT's."""
    model = getattr(model, "_orig_mod", model)
    if callable(getattr(model, "get_base_model", None)):
        return model.get_base_model()
    if isinstance(model, class_if_imported("peft", "PeftMixedModel")):  # has no get_base_model
        return model.base_model.model
    return model


def _knows_its_columns(dataset: object) -> bool:
    """Whether this is a Hugging Face dataset, streaming or not, whose samples have exactly its columns."""
    return (
        isinstance(getattr(dataset, "column_names", None), list)
        and hasattr(dataset, "remove_columns")
        and not makes_columns_on_the_fly(dataset)
    )


def _visible_columns(dataset: Any) -> list[str]:
    """The columns samples really have: ``set_format(columns=...)`` hides others."""
    dataset_format = getattr(dataset, "format", None)
    if isinstance(dataset_format, Mapping) and not dataset_format.get("output_all_columns", False):
        return list(dataset_format.get("columns") or dataset.column_names)
    return list(dataset.column_names)


def _refuse_to_empty(columns: Sequence[str], keep: Sequence[str], description: str | None) -> None:
    if columns and not any(name in keep for name in columns):
        raise ValueError(
            f"none of the columns {', '.join(columns)} of the {_named(description)} is taken by the model's forward "
            f"({', '.join(keep)}), so removing unused columns would leave empty samples; set "
            "remove_unused_columns=False if your collator makes the inputs, or rename or tokenize the columns"
        )


def _say_dropped(
    unused: Sequence[str],
    kept: Sequence[str],
    keep: Sequence[str],
    description: str | None,
    said: set[str] | None,
) -> None:
    message = (
        f"Dropping {', '.join(map(str, unused))} from the {_named(description)}: the model's forward takes no argument "
        f"of that name. Kept: {', '.join(kept)}. Set remove_unused_columns=False to keep all."
    )
    if said is not None:
        if message in said:
            return
        said.add(message)
    logger.info("%s", message)
    inputs = [name for name in keep if not _is_label(name)]
    if inputs and all(_is_label(name) for name in kept):
        logger.warning(
            "Only labels (%s) remain in the %s, and no input of the model; set remove_unused_columns=False if your "
            "collator makes the inputs from %s, or tokenize the data first.",
            ", ".join(kept),
            _named(description),
            ", ".join(map(str, unused)),
        )


def _is_label(name: str) -> bool:
    return name in _COLLATED_LABELS or name == "labels"


def _named(description: str | None) -> str:
    return f"{description} set" if description else "dataset"
