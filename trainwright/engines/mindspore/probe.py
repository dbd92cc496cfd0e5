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
        """On Ascend (untested); on the CPU each operation is computed in float32 and rounded, which is slower."""
        return _target() in ("Ascend", "CPU")

    def supports_fp16(self, device: torch.device) -> bool:
        """Everywhere; on the CPU each operation is computed in float32 and rounded, which is slower."""
        return True

    def supports_tf32(self, device: torch.device) -> bool:
        """MindSpore has no such switch."""
        return False

    def barrier(self, args: object) -> None:
        """Nothing to wait for: there is one process."""


def _target() -> str:
    require_mindspore()
    import mindspore

    return mindspore.get_context("device_target")
