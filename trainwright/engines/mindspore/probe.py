"""What MindSpore can tell about the machine."""

from __future__ import annotations

import torch

from trainwright.engines.mindspore.require import require_mindspore


class MindSporeProbe:
    """Answers for one process. Models, batches and checkpoints are torch's, in main memory, whatever MindSpore uses."""

    def device(self, use_cpu: bool, index: int = 0) -> torch.device:
        """Where torch's side is: the CPU."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """Accelerators that torch's side uses."""
        return 0

    def n_gpu(self, use_cpu: bool) -> int:
        """Accelerators that torch's side of this process uses."""
        return 0

    def supports_bf16(self, device: torch.device) -> bool:
        """Not on the CPU, where MindSpore multiplies no bfloat16 matrices. Ascend has it (untested)."""
        return _target() == "Ascend"

    def supports_fp16(self, device: torch.device) -> bool:
        """Not on the CPU, where float16 is slower and loses digits. Others have it (untested)."""
        return _target() != "CPU"

    def supports_tf32(self, device: torch.device) -> bool:
        """MindSpore has no such switch."""
        return False

    def barrier(self, args: object) -> None:
        """Nothing to wait for: there is one process."""


def _target() -> str:
    require_mindspore()
    import mindspore

    return mindspore.get_context("device_target")
