"""What a GPU would do otherwise: autocast's rules for CUDA, and attention kernels that keep no matrix of scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from trainwright.engines.torch.rehearsal.ledger import Ledger


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Functions that autocast computes in half precision on CUDA.
_IN_HALF = _words(
    "linear matmul __matmul__ __rmatmul__ mm bmm addmm addbmm baddbmm addmv mv addr einsum chain_matmul multi_dot "
    "prelu conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d lstm gru rnn_tanh rnn_relu "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell multi_head_attention_forward bilinear"
)
#: Functions that it computes in float32 there.
_IN_FULL = _words(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus "
    "layer_norm group_norm norm softmax log_softmax cumprod cumsum prod sum cosine_similarity nll_loss cross_entropy "
    "kl_div l1_loss smooth_l1_loss huber_loss mse_loss poisson_nll_loss cosine_embedding_loss hinge_embedding_loss "
    "margin_ranking_loss multi_margin_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp"
)
_HALVES = (torch.bfloat16, torch.float16)
#: The largest heads that flash attention takes.
_FLASH_HEADS = 256


class GpuKernels(TorchFunctionMode):
    """Stands in for CUDA's autocast and attention where there are only tensors without numbers.

    Questions about their values (``if mask.all():``) are answered with no, the answer that takes the general way.
    """

    def __init__(self, ledger: Ledger, half: torch.dtype | None) -> None:
        super().__init__()
        self._ledger, self._half = ledger, half
        #: Weights in half precision, which autocast keeps until the end of a forward pass; None: it keeps none.
        self.kept: dict[int, Tensor] | None = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attention(*args, **kwargs)
        if name == "__bool__":
            return False
        if self._half is not None and name in _IN_HALF:
            args, kwargs = tree_map(self._lowered, (args, kwargs))
        elif self._half is not None and name in _IN_FULL:
            args, kwargs = tree_map(_raised, (args, kwargs))
        return func(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Backward pass in which blocks that are run again see these kernels; ``loss.backward()`` would hide them."""
        torch.autograd.graph._engine_run_backward(
            (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    def _lowered(self, value: object) -> Any:
        half = self._half
        if not isinstance(value, Tensor) or half is None or not value.is_floating_point() or value.dtype == half:
            return value
        if not (value.is_leaf and value.requires_grad and value.dtype == torch.float32):
            return value.to(half)
        if self.kept is not None and id(value) in self.kept:
            return self.kept[id(value)]
        with self._ledger.entering("half_weights"):
            made = value.to(half)
        if self.kept is not None:
            self.kept[id(value)] = made
        return made

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        query, key, value = (self._lowered(part) for part in (query, key, value))
        if query.dtype in _HALVES and attn_mask is None and query.shape[-1] <= _FLASH_HEADS and query.ndim == 4:
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        if query.ndim != 4:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal)
        bias = None
        if attn_mask is not None:
            mask = torch.zeros_like(attn_mask, dtype=query.dtype) if attn_mask.dtype == torch.bool else attn_mask
            bias = mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _raised(value: object) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value
