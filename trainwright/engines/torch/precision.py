"""Number formats: autocast, gradient scaling, TF32."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from trainwright.config.arguments import TrainingArguments


class Precision:
    """How the arithmetic of one run is done: fp32, bf16 or fp16 autocast, and the scaler that fp16 needs."""

    def __init__(self, args: TrainingArguments, device: torch.device, *, casts: bool = True) -> None:
        self.device_type = device.type
        dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
        self.dtype = dtype if casts else None
        self.scaler = torch.amp.GradScaler(device.type) if args.fp16 else None
        if args.tf32 is not None:
            # A setting of the process: torch has no narrower one, so it is touched only when asked for.
            torch.set_float32_matmul_precision("high" if args.tf32 else "highest")

    def autocast(self, cache_enabled: bool = True) -> contextlib.AbstractContextManager[Any]:
        """Context for a forward pass."""
        if self.dtype is None:
            return _NOTHING
        return torch.autocast(self.device_type, dtype=self.dtype, cache_enabled=cache_enabled)


_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def full_eval_dtype(args: TrainingArguments) -> torch.dtype | None:
    """The half format in which a model is evaluated outside training, if asked for."""
    return torch.float16 if args.fp16_full_eval else torch.bfloat16 if args.bf16_full_eval else None


def half_evaluation(args: TrainingArguments, *, active: bool) -> contextlib.AbstractContextManager[Any]:
    """Context in which a model cast to half precision takes inputs that are not."""
    dtype = full_eval_dtype(args) if active else None
    return _NOTHING if dtype is None else torch.autocast(args.device.type, dtype=dtype)
