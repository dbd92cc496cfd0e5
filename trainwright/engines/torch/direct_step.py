"""torch's fused Adam and AdamW on the CPU, called without the code that torch has around their kernel.

``optimizer.step()`` and ``zero_grad()`` for four small tensors take 46 us, here 17, of which the kernel is 8: the rest
are wrappers for hooks, profilers, compilers and gradient modes, which a usual training does not need. Where nobody
could see a difference the same kernel is called here with the same tensors in the same order, so weights and state have
the same bits. Whatever is not plainly torch's own (a subclass, a hook, a patched method, a profiler that runs) goes the
usual way.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim import optimizer as torchs

_KINDS = (Adam, AdamW)
#: What a group has to say for two of them to be updated at once.
_VARIANTS = ("fused", "amsgrad", "capturable", "differentiable", "decoupled_weight_decay")
_SETTINGS = ("lr", "betas", "eps", "weight_decay", "maximize", *_VARIANTS)
_FLOAT, _DENSE = torch.float32, torch.strided


def _torchs_own(method: Any) -> Any:
    """``method`` if it is torch's, without what an optimizer's first instance puts around it; None if it is patched."""
    method = method.__wrapped__ if getattr(method, "hooked", False) else method
    files = [one.__code__.co_filename for one in (method, getattr(method, "__wrapped__", method))]
    return method if all(file.startswith(_TORCH) for file in files) else None


_TORCH = os.path.dirname(torch.__file__)
_STEPS = {kind: _torchs_own(kind.step) for kind in _KINDS}
_HOOKED = Optimizer.profile_hook_step(lambda optimizer: None).__code__  # type: ignore[arg-type]
_ZERO_GRAD = _torchs_own(Optimizer.zero_grad)
_SCHEDULES_FILE = schedules.__file__


def step_directly(optimizer: Any) -> bool:
    """Step ``optimizer`` if that can be done without its own method; False where nothing was done."""
    if not _is_plain(optimizer):
        return False
    states, parts, part = optimizer.state, list[_Gathered](), None
    for group in optimizer.param_groups:
        if part is None or not _same(part.settings, group):
            if not _is_known(group):
                return False
            part = _Gathered(group)
            parts += (part,)
        if not _gather(states, group["params"], part):
            return False
    with torch.no_grad():
        for part in parts:
            if part.weights:
                _call_kernel(part)
    # What a schedule looks at, to see whether it is stepped after the optimizer.
    optimizer._opt_called = True
    return True


def clear_directly(optimizer: Any) -> bool:
    """Set all gradients to None if ``optimizer.zero_grad()`` would do just that; False where nothing was done."""
    kind = type(optimizer)
    if kind not in _KINDS or kind.zero_grad is not _ZERO_GRAD or "zero_grad" in optimizer.__dict__:
        return False
    if torch.autograd._profiler_enabled():
        return False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    return True


def _is_plain(optimizer: Any) -> bool:
    """Whether ``optimizer.step`` is torch's, and nobody would hear that it was not called."""
    kind = type(optimizer)
    if kind not in _KINDS or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if torchs._global_optimizer_pre_hooks or torchs._global_optimizer_post_hooks:
        return False
    step: Any = kind.step
    around = optimizer.__dict__
    if step.__code__ is not _HOOKED or step.__wrapped__ is not _STEPS[kind] or torch.autograd._profiler_enabled():
        return False
    if "found_inf" in around or "grad_scale" in around:
        # A scaler may want the step skipped.
        return False
    if "step" not in around:
        return True
    # Schedules put a function around it that notes the call.
    own = around["step"]
    return own.__code__.co_filename == _SCHEDULES_FILE and own.__wrapped__ is step


def _is_known(group: dict[str, Any]) -> bool:
    """Whether the kernel is called for ``group`` as it is here: numbers as numbers, no variants."""
    if "decoupled_weight_decay" not in group or not group["fused"]:
        return False
    beta1, beta2 = group["betas"]
    if type(group["lr"]) is not float or type(beta1) is not float or type(beta2) is not float:
        return False
    return not (group["amsgrad"] or group["capturable"] or group["differentiable"])


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether weights of both groups may be updated at once."""
    for name in _SETTINGS:  # noqa: SIM110 - a generator would be a call for each
        if one[name] is not other[name] and one[name] != other[name]:
            return False
    return True


class _Gathered:
    """What the kernel takes, for weights of the same settings."""

    __slots__ = ("averages", "gradients", "settings", "squares", "steps", "weights")

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.weights: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.averages: list[Tensor] = []
        self.squares: list[Tensor] = []
        self.steps: list[Tensor] = []


def _gather(states: Any, parameters: list[Any], into: _Gathered) -> bool:
    """Add what has a gradient; False where a tensor is none for which this was tried."""
    weights, gradients = into.weights, into.gradients
    averages, squares, steps = into.averages, into.squares, into.steps
    for weight in parameters:
        gradient = weight.grad
        if gradient is None:
            continue
        if type(weight) is not nn.Parameter or weight.dtype is not _FLOAT or not weight.is_cpu:
            return False
        if gradient.dtype is not _FLOAT or gradient.layout is not _DENSE or not gradient.is_cpu:
            return False
        state = states[weight]
        if not state:
            return False
        # As concatenations: calls of methods are a third slower, and this is done for every weight of the model.
        weights += (weight,)
        gradients += (gradient,)
        averages += (state["exp_avg"],)
        squares += (state["exp_avg_sq"],)
        steps += (state["step"],)
    return True


def _call_kernel(part: _Gathered) -> None:
    group = part.settings
    beta1, beta2 = group["betas"]
    torch._foreach_add_(part.steps, 1)
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    kernel(
        part.weights,
        part.gradients,
        part.averages,
        part.squares,
        [],
        part.steps,
        amsgrad=False,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )
