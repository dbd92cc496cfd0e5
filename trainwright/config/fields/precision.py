"""Number formats and kernels."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class PrecisionFields:
    bf16: bool = False
    """Train in mixed precision with bfloat16."""

    fp16: bool = False
    """Train in mixed precision with float16 and a loss scaler."""

    bf16_full_eval: bool = False
    """Convert the whole model to bfloat16 while evaluating outside of training."""

    fp16_full_eval: bool = False
    """Convert the whole model to float16 while evaluating outside of training."""

    tf32: bool | None = None
    """Allow TensorFloat-32 matrix products on GPUs that have them; unset leaves torch's setting alone."""

    torch_compile: bool = False
    """Compile the model with torch.compile."""

    torch_compile_backend: str | None = None
    """Backend for torch.compile; naming one also switches compilation on."""

    torch_compile_mode: str | None = None
    """Mode for torch.compile; naming one also switches compilation on."""

    use_liger_kernel: bool = False
    """Swap in the fused kernels of the liger-kernel package."""

    liger_kernel_config: dict[str, bool] | None = None
    """Which Liger kernels to swap in; unset takes that package's own choice."""
