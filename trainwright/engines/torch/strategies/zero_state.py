"""Weights and optimizer state that DeepSpeed has in parts: shown whole, and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class _Shown(NamedTuple):
    parameter: nn.Parameter
    #: What the parameter holds otherwise: a half-precision copy, or nothing.
    own: Tensor
    whole: Tensor


class ZeroState:
    """What DeepSpeed's optimizer holds, parameter by parameter.

    Args:
        zero: DeepSpeed's optimizer.
        inner: The torch optimizer in it, whose parameters are slices of many weights laid end to end.
        stage: Of ZeRO.
        deepspeed: The package.
    """

    def __init__(self, zero: Any, inner: Any, stage: int, deepspeed: Any) -> None:
        self._zero, self._inner, self._stage, self._deepspeed = zero, inner, stage, deepspeed
        self._is_shown = False

    @contextlib.contextmanager
    def shown(self, model: nn.Module, optimizer: Any, *, keep: bool) -> Iterator[None]:
        """Within it ``model`` has its weights, and ``optimizer`` its state, whole; every process must come by."""
        if self._is_shown:
            yield
            return
        held = self._take(model, keep=keep)
        states = {} if optimizer is None else self._states(optimizer, keep=keep)
        self._is_shown = True
        try:
            for parameter, _, whole in held:
                parameter.data = whole
            for parameter, state in states.items():
                optimizer.state[parameter] = state
            yield
        finally:
            for parameter, own, _ in held:
                parameter.data = own
            if optimizer is not None:
                optimizer.state.clear()
            self._is_shown = False

    @contextlib.contextmanager
    def rewritten(self, model: nn.Module, optimizer: Any) -> Iterator[None]:
        """The same in all processes; with an optimizer its state is taken over, without one the weights are."""
        held = self._take(model, keep=True)
        try:
            for parameter, _, whole in held:
                parameter.data = whole
            yield
        finally:
            for parameter, own, _ in held:
                parameter.data = own
        if optimizer is None:
            for one in held:
                self._put_weight(one)
        else:
            self._put_states(optimizer)
            optimizer.state.clear()

    # ---- weights

    def _take(self, model: nn.Module, *, keep: bool) -> list[_Shown]:
        held = []
        for parameter in model.parameters():
            whole = self._weight(parameter)
            if keep:
                held.append(_Shown(parameter, parameter.data, whole.to("cpu", copy=True)))
        return held

    def _weight(self, parameter: nn.Parameter) -> Tensor:
        if self._stage < 3 and (parameter.dtype == torch.float32 or not hasattr(parameter, "_hp_mapping")):
            return parameter.data
        if self._is_trained(parameter):
            return self._deepspeed.utils.safe_get_full_fp32_param(parameter)
        with self._deepspeed.zero.GatheredParameters([parameter]):
            return parameter.data.clone()

    def _is_trained(self, parameter: nn.Parameter) -> bool:
        if self._stage < 3:
            return hasattr(parameter, "_hp_mapping")
        return parameter.requires_grad and hasattr(parameter, "_z3_optimizer")

    def _put_weight(self, one: _Shown) -> None:
        parameter, own, whole = one
        value = whole.to(parameter.device)
        with torch.no_grad():
            if self._stage < 3:
                own.copy_(value)
            else:
                with self._deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    parameter.data.copy_(value)
            if self._is_trained(parameter):
                self._put(parameter, value.float(), None)

    def _put(self, parameter: nn.Parameter, value: Tensor, key: str | None) -> None:
        """A whole weight in single precision, or a whole state of it, to where DeepSpeed has its parts."""
        utils = self._deepspeed.utils
        if self._stage < 3:
            if key is None:
                utils.safe_set_full_fp32_param(parameter, value)
            else:
                utils.safe_set_full_optimizer_state(parameter, value, key)
            return
        # At stage 3 DeepSpeed cannot cut what the processes do not divide evenly (0.19).
        part = self._part(parameter, value)
        if key is None:
            utils.safe_set_local_fp32_param(parameter, part)
        else:
            utils.safe_set_local_optimizer_state(parameter, part, key)

    def _part(self, parameter: Any, value: Tensor) -> Tensor:
        size, rank = parameter.ds_tensor.numel(), torch.distributed.get_rank(parameter.ds_process_group)
        mine = value.flatten()[rank * size : (rank + 1) * size]
        return torch.cat([mine, mine.new_zeros(size - mine.numel())])

    # ---- the optimizer's state

    def _slices(self) -> list[Any]:
        if self._stage < 3:
            return list(self._zero.single_partition_of_fp32_groups)
        return list(self._zero.fp32_partitioned_groups_flat)

    def _link(self) -> None:
        """Let DeepSpeed find the state of all groups: by itself it looks when only the first has one."""
        if self._stage < 3:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    def _states(self, optimizer: Any, *, keep: bool) -> dict[nn.Parameter, dict[str, Any]]:
        slices = [(part, self._inner.state.get(part)) for part in self._slices()]
        some = next(((part, state) for part, state in slices if state), None)
        if some is None:
            return {}
        self._link()
        part, kinds = some
        found: dict[nn.Parameter, dict[str, Any]] = {}
        for parameter in _trained(optimizer):
            state: dict[str, Any] = {}
            for key, value in kinds.items():
                if isinstance(value, Tensor) and value.shape == part.shape:
                    whole = self._deepspeed.utils.safe_get_full_optimizer_state(parameter, key)
                    state[key] = whole.cpu() if keep else None
                else:
                    # Steps taken: the same for all.
                    state[key] = value.clone() if isinstance(value, Tensor) else value
            if keep:
                found[parameter] = state
        return found

    def _put_states(self, optimizer: Any) -> None:
        states = [state for state in optimizer.state.values() if state]
        if not states:
            return
        # What has as many numbers as the parameter; a count of steps is a single one.
        spread = {key for state in states for key, value in state.items() if isinstance(value, Tensor) and value.ndim}
        some = max(states, key=_steps)
        for part in self._slices():
            own: dict[str, Any] = {key: torch.zeros_like(part) for key in spread}
            own |= {key: _copied(value) for key, value in some.items() if key not in spread}
            self._inner.state[part] = {key: own[key] for key in some}
        self._link()
        for parameter in _trained(optimizer):
            state = optimizer.state.get(parameter)
            for key in sorted(spread) if state else ():
                self._put(parameter, state[key].to(parameter.device), key)

    def forget_gradients(self) -> None:
        """What was summed in this step; there is no public way to it."""
        zero = self._zero
        zero.zero_grad(set_to_none=True)
        zero._epilogue_ran_this_backward = False
        if self._stage == 3:
            zero.averaged_gradients = {}
            zero.micro_step_id = 0
        else:
            zero._release_preflattened_grad_buffers()
            for kept in (zero.averaged_gradients, zero.all_grad_tensors):
                for group in kept:
                    kept[group] = None
            zero.micro_step_id = -1
        if getattr(zero, "cpu_offload", False) or getattr(zero, "offload_optimizer", False):
            zero.reset_cpu_buffers()


def _trained(optimizer: Any) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def _steps(state: dict[str, Any]) -> float:
    step = state.get("step", 0)
    return float(step)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
