"""What JAX can tell about the machine."""

from __future__ import annotations

import torch

from trainwright.engines.jax.require import require_jax
from trainwright.engines.torch.probe import TorchProbe


class JaxProbe:
    """Answers for one process. torch's side is the CPU; JAX computes where it does by default.

    That is a TPU or GPU if JAX finds one. Neither has been tried: only the CPU has.
    """

    def device(self, use_cpu: bool, index: int = 0) -> torch.device:
        """The CPU, where batches and the torch model live."""
        del use_cpu, index
        require_jax()
        return torch.device("cpu")

    def device_count(self) -> int:
        """Accelerators that JAX found."""
        import jax

        return 0 if jax.default_backend() == "cpu" else jax.local_device_count()

    def n_gpu(self, use_cpu: bool) -> int:
        """0 on the CPU, otherwise 1: several devices are never used behind the user's back."""
        return 0 if use_cpu else min(1, self.device_count())

    def supports_bf16(self, device: torch.device) -> bool:
        """XLA computes with bfloat16 on every device."""
        return True

    def supports_fp16(self, device: torch.device) -> bool:
        """XLA computes with float16 on every device."""
        return True

    def supports_tf32(self, device: torch.device) -> bool:
        """No: products of float32 are computed in float32."""
        return False

    def barrier(self, args: object) -> None:
        """Wait until every process of the run has come here."""
        TorchProbe().barrier(args)
