"""What torch can tell about the machine."""

from typing import Any

import torch

from trainwright.config.backends import rank_from_environment
from trainwright.engines.torch.backends import DistributedProcesses


class TorchProbe:
    """Answers for one process and the one device it uses."""

    def device(self, use_cpu: bool, index: int = 0) -> torch.device:
        """Accelerator number ``index``, or the CPU."""
        found = None if use_cpu else torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            return torch.device("cpu")
        if index >= (count := torch.accelerator.device_count()):
            raise ValueError(
                f"This is process number {index + 1} on a machine with {count} GPU(s): start {count} processes "
                "(--nproc), or let several share a GPU, to try something out, with ddp_backend='gloo'."
            )
        # Apple's GPU is one device without a number; naming the index elsewhere keeps comparisons with tensors exact.
        return found if found.type == "mps" else torch.device(found.type, index)

    def device_count(self) -> int:
        """Accelerators of this machine."""
        return torch.accelerator.device_count()

    def n_gpu(self, use_cpu: bool) -> int:
        """0 on the CPU, otherwise 1: several visible GPUs are never used behind the user's back."""
        return 0 if self.device(use_cpu).type == "cpu" else 1

    def supports_bf16(self, device: torch.device) -> bool:
        """Whether bfloat16 is native; emulation would be slower than full precision."""
        if device.type == "cuda":
            return torch.cuda.is_bf16_supported(including_emulation=False)
        if device.type == "mps":
            return torch.backends.mps.is_macos_or_newer(14, 0)
        return True

    def supports_fp16(self, device: torch.device) -> bool:
        """Whether autocast knows float16 on this device (the CPU's does, slowly)."""
        return device.type in ("cpu", "cuda", "mps", "xpu", "npu")

    def supports_tf32(self, device: torch.device) -> bool:
        """Whether matrix products can use TensorFloat-32."""
        return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)

    def barrier(self, args: Any) -> None:
        """Wait until every process of the run has come here; the first exchange between them, if there was none."""
        processes = DistributedProcesses(*rank_from_environment(), communication=args.ddp_backend)
        processes.start(args)
        processes.barrier()
