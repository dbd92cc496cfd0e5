"""Columns that do not fit the model's forward, and text that nobody has tokenized."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data._utils.collate import collate_tensor_fn

from trainwright.core.signatures import forward_parameters
from trainwright.data.collators import _labels_torch, _stack_torch, collate_any, default_data_collator
from trainwright.engines.torch.losses import loss_of
from trainwright.engines.torch.targets import is_mapping
from trainwright.training.first_step.scene import LABELS, Scene, listed, names_of_labels, shape_of
from trainwright.training.hooks import is_overridden

#: Without one of these no model of transformers begins.
_MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")


def explain_words_as_labels(scene: Scene) -> str | None:
    """Labels that are words."""
    is_fetched = bool(scene.batches) or scene.within(collate_any, default_data_collator) is None
    # The collator leaves words out where they are called labels, and the loss has nothing to compare with then.
    if scene.is_collated_by_users or (is_fetched and not _lacks_labels(scene)):
        return None
    for name in names_of_labels(scene.setup):
        value = scene.sample().get(name)
        if isinstance(value, str):
            return (
                f"The labels in {name!r} are words ({value!r} in the first sample), and a model takes numbers: give "
                "each class a number, as in label2id = {'negative': 0, 'positive': 1}, and replace the words by it."
            )
    return None


def explain_values_of_none(scene: Scene) -> str | None:
    """Samples without a value, in all of them or in some."""
    here = scene.within(_stack_torch, _labels_torch)
    if here is not None:
        empty = [place for place, value in enumerate(here["values"]) if value is None]
        if not empty:
            return None
        what = "A label is missing" if here["key"] in names_of_labels(scene.setup) else "A value is missing"
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        where = f"sample {empty[0]} of the first batch{more}"
    else:
        # What is None in the first sample is left out of the batch.
        if scene.is_collated_by_users or not _lacks_labels(scene):
            return None
        sample = scene.sample()
        empty = [name for name in names_of_labels(scene.setup) if name in sample and sample[name] is None]
        here = {"key": empty[0] if empty else None}
        what, where = "A label is missing", "the first sample"
    if here["key"] is None:
        return None
    return f"{what}: {here['key']!r} is None in {where}. Give it a value, or leave such samples out."


def explain_ragged_samples(scene: Scene) -> str | None:
    """Samples of several shapes, where torch's own collation makes one tensor of them."""
    here = scene.within(collate_tensor_fn)
    found = list(here.get("batch", ())) if here is not None else []
    shapes = {shape_of(one): place for place, one in reversed(list(enumerate(found))) if isinstance(one, Tensor)}
    if len(shapes) < 2:
        return None
    which = ", ".join(f"{shape} in sample {place}" for shape, place in sorted(shapes.items(), key=lambda item: item[1]))
    return (
        f"The samples of the first batch differ in shape ({which}), so they do not make one tensor: pad or truncate "
        "them to one shape in the dataset, or give a data_collator that pads."
    )


def explain_columns(scene: Scene) -> str | None:
    """What forward needs and the batch has not, or the other way round."""
    batch: Any = scene.batches[0] if scene.batches else None
    if not is_mapping(batch) or scene.setup.module is not None:
        return None
    takes = forward_parameters(scene.network)
    missing, unknown = _missing(scene, batch, takes), _unknown(batch, takes)
    # A model of transformers takes any name, and says later that it has nothing to begin with.
    if not _failed_when_called(scene) and not _wants_a_main_input(scene, batch):
        return None
    if not missing and not unknown:
        return None
    names = [name for name, one in takes.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    said = f"{type(scene.network).__name__}.forward takes {listed(names)}"
    said += f", and needs {listed(missing)}" if missing and missing != names else ""
    sample = scene.sample()
    text = f"{said}; the batch has {listed(batch)}"
    if sample and set(sample) != set(batch):
        text += f", made of the columns {listed(sample)}"
    return f"{text}. {_advice(scene, batch, sample, missing, unknown)}"


def explain_missing_labels(scene: Scene) -> str | None:
    """A loss that has nothing to compare with, where the data has a column that was dropped."""
    batch: Any = scene.batches[0] if scene.batches else None
    if (
        not _lacks_labels(scene)
        or not is_mapping(batch)
        or any(batch.get(name) is not None for name in names_of_labels(scene.setup))
    ):
        return None
    rest = [name for name in scene.sample() if name not in batch and name not in LABELS]
    if not rest:
        return None
    example = next((name for name in rest if name in ("target", "targets", "y", "class", "score")), rest[0])
    return (
        f"{scene.error} Of the data's columns {listed(rest)} did not reach the model: labels are called 'labels' (or "
        f"'label'). If {example!r} holds them, rename it: {_renaming(scene, example, 'labels')}."
    )


def _lacks_labels(scene: Scene) -> bool:
    here = scene.within(loss_of)
    return here is not None and here.get("labels") is None


def _missing(scene: Scene, batch: Mapping[str, Any], takes: dict[str, inspect.Parameter]) -> list[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [
        name for name, one in takes.items() if one.kind in named and one.default is one.empty and name not in batch
    ]
    if not found and _wants_a_main_input(scene, batch):
        found = [getattr(scene.network, "main_input_name", "input_ids")]
    return found


def _failed_when_called(scene: Scene) -> bool:
    """Whether the model's forward did not take what it was called with: then none of its own code ran."""
    last = scene.frames[-1]
    return last.f_locals.get("self") is scene.network and last.f_code.co_name != "forward"


def _wants_a_main_input(scene: Scene, batch: Mapping[str, Any]) -> bool:
    """Whether a model of transformers was given nothing to begin with."""
    if not hasattr(scene.network, "config") or is_overridden(scene.setup.hooks(), "compute_loss"):
        return False
    main = getattr(scene.network, "main_input_name", None)
    takes = forward_parameters(scene.network)
    return main in takes and not any(name in batch for name in (main, *_MAIN_INPUTS))


def _unknown(batch: Mapping[str, Any], takes: dict[str, inspect.Parameter]) -> list[str]:
    if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        return []
    # Labels are taken out where the loss is computed outside the model.
    return [name for name in batch if name not in takes and name not in LABELS]


def _advice(
    scene: Scene, batch: Mapping[str, Any], sample: Mapping[str, Any], missing: list[str], unknown: list[str]
) -> str:
    text = [name for name, value in sample.items() if name not in LABELS and _is_text(value)]
    wants_tokens = any(name.startswith("input_ids") for name in missing)
    if text and (wants_tokens or set(text) & set(missing)):
        column = text[0]
        how = (
            f"tokenize it first: dataset.map(lambda row: tokenizer(row[{column!r}], truncation=True)), with "
            "processing_class=tokenizer"
            if wants_tokens
            else "turn it into numbers before it reaches the model"
        )
        return f"The column {column!r} holds text, which nobody has tokenized: {how}."
    spare = [name for name in (*unknown, *sample) if name not in forward_parameters(scene.network)]
    spare = [name for name in dict.fromkeys(spare) if name not in LABELS]
    if len(missing) == 1 and spare:
        near = difflib.get_close_matches(missing[0], spare, n=1)
        one = near[0] if near else spare[0]
        sure = "Rename" if near or len(spare) == 1 else "If that is what is meant, rename"
        return f"{sure} {one!r}: {_renaming(scene, one, missing[0])}."
    if missing:
        return "Rename the columns, or give a data_collator that makes what is needed."
    return f"Leave {listed(unknown)} out (remove_unused_columns=True does it), or let forward take **kwargs."


def _renaming(scene: Scene, old: str, new: str) -> str:
    if hasattr(scene.setup.train_dataset, "rename_column"):
        return f"dataset.rename_column({old!r}, {new!r})"
    return f"give the samples {new!r} in its place, or a data_collator that does"


def _is_text(value: object) -> bool:
    if isinstance(value, Tensor):
        return False
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], str))
