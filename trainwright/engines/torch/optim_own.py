"""Three optimizers written here.

**Adafactor** follows transformers' settings (no parameter scaling, the rate is the step size itself). torch's class of
that name multiplies the rate by each parameter's magnitude, so the same ``learning_rate`` would take steps some fifty
times smaller, and it reads norms back to the host twice per parameter; it is available as ``adafactor_torch``.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class _OneByOne(Optimizer):
    """Updates each parameter by itself, in :meth:`_update`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise RuntimeError(
                        f"{type(self).__name__} needs dense gradients; use sgd or adagrad for sparse embeddings."
                    )
                self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class Adafactor(_OneByOne):
    """Adam-like steps with row and column sums in place of a full second moment."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        eps1: float = 1e-30,
        eps2: float = 1e-3,
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "eps1": eps1,
            "eps2": eps2,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
        }
        super().__init__(params, defaults)

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        grad = _wide(gradient)
        state = self.state[parameter]
        if not state:
            self._start(state, grad, group)
        state["step"] += 1
        # Parameters in half precision are updated in float32 and rounded once.
        weights = _wide(parameter)
        rate: Any = group["lr"]
        if group["scale_parameter"]:
            rate = rate * _rms(weights).clamp(min=group["eps2"])
        update = _direction(state, grad, 1.0 - math.pow(state["step"], group["decay_rate"]), group["eps1"])
        update.div_((_rms(update) / group["clip_threshold"]).clamp_(min=1.0)).mul_(rate)
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1.0 - group["beta1"])
        if group["weight_decay"]:
            weights.mul_(1.0 - group["weight_decay"] * rate)
        weights.sub_(update)
        if weights is not parameter:
            parameter.copy_(weights)

    @staticmethod
    def _start(state: dict[str, Any], grad: torch.Tensor, group: dict[str, Any]) -> None:
        state["step"] = 0
        if group["beta1"] is not None:
            state["exp_avg"] = torch.zeros_like(grad)
        if grad.dim() >= 2:
            state["exp_avg_sq_row"] = grad.new_zeros(grad.shape[:-1])
            state["exp_avg_sq_col"] = grad.new_zeros(grad.shape[:-2] + grad.shape[-1:])
        else:
            state["exp_avg_sq"] = torch.zeros_like(grad)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.norm(2) / math.sqrt(tensor.numel())


def _direction(state: dict[str, Any], grad: torch.Tensor, memory: float, eps: float) -> torch.Tensor:
    """The gradient divided by the root of its running square, kept as rows and columns for matrices."""
    square = grad.square().add_(eps)
    if "exp_avg_sq" in state:
        moment = state["exp_avg_sq"].mul_(memory).add_(square, alpha=1.0 - memory)
        return moment.rsqrt().mul_(grad)
    rows = state["exp_avg_sq_row"].mul_(memory).add_(square.mean(dim=-1), alpha=1.0 - memory)
    columns = state["exp_avg_sq_col"].mul_(memory).add_(square.mean(dim=-2), alpha=1.0 - memory)
    row_part = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return row_part.mul(columns.rsqrt().unsqueeze(-2)).mul_(grad)


class Lion(_OneByOne):
    """Steps of one size (Chen et al., 2023): the sign of a mix of the gradient and its running mean."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        mean = state["exp_avg"]
        direction = (mean * beta1).add_(gradient, alpha=1 - beta1).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction * group["lr"])
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)


class MuonWithAdamW(Optimizer):
    """Muon for hidden matrices and AdamW for everything else, as one optimizer.

    Groups carry ``use_muon``. Both inner optimizers work on this object's own groups and state, so schedules, clipping,
    ``state_dict`` and ``zero_grad`` see a single ordinary optimizer. Muon's rate is matched to AdamW's update size by
    default (``adjust_lr_fn="match_rms_adamw"``): one ``learning_rate`` then serves both.
    """

    def __init__(
        self, params: Any, lr: float, muon: dict[str, Any] | None = None, adamw: dict[str, Any] | None = None
    ) -> None:
        groups = [dict(group) for group in params]
        if any("use_muon" not in group for group in groups):
            raise ValueError('Every parameter group needs "use_muon": True or False; build them with optim="muon".')
        groups.sort(key=lambda group: not group["use_muon"])  # a stable sort: Muon's first
        super().__init__(groups, {"lr": lr})
        options: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw", **(muon or {})}
        chosen = [group for group in self.param_groups if group["use_muon"]]
        others = [group for group in self.param_groups if not group["use_muon"]]
        self._inner: list[Optimizer] = []
        if chosen:
            self._inner.append(torch.optim.Muon(chosen, lr=lr, **options))
        if others:
            self._inner.append(torch.optim.AdamW(others, lr=lr, **(adamw or {})))
        self.param_groups = [group for inner in self._inner for group in inner.param_groups]
        self._share()

    def _share(self) -> None:
        """Make the inner optimizers look at this object's groups and state."""
        start = 0
        for inner in self._inner:
            end = start + len(inner.param_groups)
            inner.param_groups = self.param_groups[start:end]
            inner.state = self.state
            start = end

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner in self._inner:
            inner.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loading replaces groups and state, so the inner optimizers are pointed at the new ones."""
        super().load_state_dict(state_dict)
        self._share()
