"""Labels that the model's head, or its loss, cannot take."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainwright.config.origin import library_of
from trainwright.core.signatures import forward_parameters
from trainwright.engines.torch.losses import default_loss
from trainwright.engines.torch.targets import IGNORED, base_model
from trainwright.training.first_step.scene import Scene, labels_in_batch, shape_of
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")

#: What transformers' classifiers say of their loss: labels are compared with ``config.num_labels`` classes.
_CLASSIFIERS = tuple(f"For{what}Classification" for what in ("Sequence", "Token", "Image", "Audio", "Video"))
#: Methods in which somebody may change labels on their way to the model.
_TOUCH_LABELS = ("compute_loss", "training_step", "_prepare_inputs", "_prepare_input")


def refuse_impossible_labels(setup: Setup, batches: list[Any]) -> None:
    """Before a first step: labels for which transformers' classifiers have no class; a GPU would not say which."""
    network = base_model(setup.model)
    classes = _classes_in_config(network)
    is_computed_elsewhere = setup.calling.loss_outside_model or any(
        is_overridden(setup.hooks(), name) for name in _TOUCH_LABELS
    )
    if classes is None or setup.module is not None or is_computed_elsewhere or not _is_as_published(network, classes):
        return
    for number, batch in enumerate(batches):
        labels = labels_in_batch(setup, batch)
        if not isinstance(labels, Tensor) or not labels.is_cpu or labels.is_floating_point():
            continue
        if classes == 1:
            _warn_of_regression(network, labels)
        elif text := _out_of_range(labels, classes, IGNORED, _where(number, len(batches)), network):
            raise ValueError(text)


def _classes_in_config(network: nn.Module) -> int | None:
    config = getattr(network, "config", None)
    classes = getattr(config, "num_labels", None)
    of_one = getattr(config, "problem_type", None) in (None, "single_label_classification")
    is_one = getattr(network, "loss_type", None) in _CLASSIFIERS and "labels" in forward_parameters(network)
    return classes if isinstance(classes, int) and of_one and is_one else None


def _is_as_published(network: nn.Module, classes: int) -> bool:
    """Whether forward and head are transformers' own and agree on the classes; elsewhere the loss itself will say."""
    own_forward = library_of(type(network).forward) == "transformers"
    is_patched = "forward" in vars(network) or "_loss_function" in vars(network)
    # A hook may give the model other labels than the batch has.
    if (
        not own_forward
        or is_patched
        or network._forward_pre_hooks
        or getattr(network, "num_labels", classes) != classes
    ):
        return False
    head = getattr(network, "classifier", getattr(network, "score", None))
    width = getattr(head, "out_features", None)
    return width == classes if isinstance(width, int) else library_of(type(head)) == "transformers"


def _warn_of_regression(network: nn.Module, labels: Tensor) -> None:
    logger.warning(
        "num_labels=1 makes %s predict a number (mean squared error), and the labels are whole numbers (%s): for "
        "classes build the model with num_labels= their number; for a number make the labels floats.",
        type(network).__name__,
        ", ".join(str(value) for value in labels.unique()[:5].tolist()),
    )


def explain_labels(scene: Scene) -> str | None:
    """Labels out of range, of the wrong kind, or of another shape than what they are compared with."""
    here = scene.within(F.cross_entropy, F.nll_loss)
    if here is not None and isinstance(here.get("target"), Tensor):
        return _against_classes(scene, here["input"], here["target"], here.get("ignore_index", IGNORED))
    here = scene.within(default_loss)
    if here is not None and here["labels"].is_floating_point():
        return _numbers_for(scene, here["logits"], here["labels"])
    here = scene.within(F.binary_cross_entropy_with_logits, F.mse_loss, F.binary_cross_entropy)
    if here is not None and isinstance(here.get("target"), Tensor) and here["target"].shape != here["input"].shape:
        return _numbers_for(scene, here["input"], here["target"])
    return None


def _against_classes(scene: Scene, outputs: Tensor, target: Tensor, ignored: int) -> str | None:
    if outputs.ndim == 0 or target.is_floating_point():
        return _numbers_for(scene, outputs, target)
    if target.dtype not in (torch.int64, torch.uint8):
        kind = str(target.dtype).removeprefix("torch.")
        return f"Labels of classes must be of type int64, and these are {kind}: convert them with labels.long()."
    if outputs.shape[0] != target.shape[0]:
        return (
            f"The model gives {outputs.shape[0]} rows of outputs (shape {shape_of(outputs)}) for {target.shape[0]} "
            f"labels (shape {shape_of(target)}): there must be one row of outputs, with a number for each class, for "
            "each label."
        )
    classes = outputs.shape[1 if outputs.ndim > 1 else 0]
    for number, labels in scene.labels():
        if text := _out_of_range(labels, classes, ignored, _where(number, len(scene.batches)), scene.network):
            return text
    # Labels that somebody has changed since: shifted by one, say.
    return _out_of_range(target, classes, ignored, "what the loss was given", scene.network)


def _out_of_range(labels: Tensor, classes: int, ignored: int, where: str, network: nn.Module) -> str | None:
    """What is wrong with labels for which there is no class; None where each has one."""
    if labels.is_floating_point() or labels.ndim == 0:
        return None
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignored)
    places = wrong.nonzero()
    if len(places) == 0:
        return None
    place = places[0].tolist()
    value = int(labels[tuple(place)])
    position = f", position {', '.join(map(str, place[1:]))}" if len(place) > 1 else ""
    more = f" ({len(places)} labels are out of range)" if len(places) > 1 else ""
    if value < 0:
        advice = f"the first class is 0, and {ignored} means that a label is not to be learned"
    elif int(labels[wrong].min()) == classes == int(labels.max()) and int(labels[labels != ignored].min()) == 1:
        advice = "the labels seem to count from 1: subtract 1 from each"
    elif hasattr(getattr(network, "config", None), "num_labels"):
        advice = f"build the model with num_labels={int(labels.max()) + 1} or more, or correct the data"
    else:
        advice = f"give the model's last layer {int(labels.max()) + 1} or more outputs, or correct the data"
    return (
        f"Label {value} of sample {place[0]}{position} in {where} is out of range{more}: the model has {classes} "
        f"classes, 0 to {classes - 1}; {advice}."
    )


def _numbers_for(scene: Scene, outputs: Tensor, labels: Tensor) -> str | None:
    """Floats, where the model gives a number for each class."""
    given = _original(scene, labels)
    if not given.is_floating_point() or outputs.shape == labels.shape:
        return None
    text = f"The labels are floats of shape {shape_of(given)}, and the model gives outputs of shape {shape_of(outputs)}"
    several = outputs.ndim > 1 and outputs.shape[-1] > 1
    if several and given.ndim < outputs.ndim and bool((given == given.round()).all()):
        return (
            f"{text}: a classifier takes the numbers of classes as whole numbers; convert them with int(label), or "
            "labels.long(). To predict a number give the model one output (num_labels=1)."
        )
    if several and given.ndim < outputs.ndim:
        return f"{text}: to predict a number give the model one output (num_labels=1); classes are whole numbers."
    return f"{text}: floats are compared one by one with the outputs, so both need the same shape."


def _original(scene: Scene, labels: Tensor) -> Tensor:
    return next((given for _, given in scene.labels() if given.numel() == labels.numel()), labels)


def explain_labels_on_a_device(scene: Scene) -> str | None:
    """A GPU fails some kernels after a label without a class, and not in words about it; nor can it be asked then."""
    if scene.setup.args.device.type == "cpu" or not isinstance(scene.error, RuntimeError):
        return None
    classes = _classes_in_config(scene.network)
    if classes is None:
        linear = [module for module in scene.network.modules() if isinstance(module, nn.Linear)]
        classes = linear[-1].out_features if linear else None
    for number, labels in scene.labels() if classes else ():
        if labels.is_cpu and (
            text := _out_of_range(labels, classes or 0, IGNORED, _where(number, len(scene.batches)), scene.network)
        ):
            return text
    return None


def _where(number: int, count: int) -> str:
    return "the first batch" if count == 1 else f"batch {number} of the first step"
