"""Losses that cannot be learned from."""

from __future__ import annotations

from torch import Tensor

from trainwright.engines.torch.losses import loss_of
from trainwright.training.first_step.scene import Scene, shape_of
from trainwright.training.step import training_step


def explain_outputs(scene: Scene) -> str | None:
    """A forward that returns nothing, or its loss in another place than the first."""
    here = scene.within(loss_of)
    if here is None or scene.setup.module is not None:
        return None
    outputs, name = here["outputs"], type(scene.network).__name__
    if outputs is None:
        return f"{name}.forward returns nothing (None): end it with return, as in return loss, logits."
    if type(outputs) not in (tuple, list) or not all(isinstance(one, Tensor) for one in outputs):
        return None
    place = next((place for place, one in enumerate(outputs) if one.ndim == 0 and one.requires_grad), 0)
    if not place:
        return None
    shapes = ", ".join(shape_of(one) for one in outputs)
    return (
        f"{name}.forward returns a tuple of shapes {shapes}: the loss (number {place + 1}) must come first, as in "
        "return loss, logits."
    )


def explain_loss(scene: Scene) -> str | None:
    """No tensor, or one that no gradient leads through."""
    here = scene.within(training_step)
    if here is None or "loss" not in here or scene.setup.args.engine != "torch":
        return None
    loss = here["loss"]
    if not isinstance(loss, Tensor):
        return (
            f"The loss is of type {type(loss).__name__}, and must be a tensor that gradients lead through: return the "
            "loss itself rather than loss.item() or float(loss)."
        )
    if loss.requires_grad:
        return None
    if not loss.is_floating_point():
        return f"The loss is a tensor of {loss.dtype}, and must be of floats: accuracies and counts have no gradient."
    return (
        f"The loss (shape {shape_of(loss)}) has no gradient: nothing that it was computed from is trained. Look for "
        "detach(), item(), argmax(), torch.no_grad() or numpy between the model's outputs and the loss."
    )
