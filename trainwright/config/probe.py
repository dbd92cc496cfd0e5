"""Questions about hardware. This package knows no framework, so it asks a probe that an engine provides."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Protocol

from trainwright.config.fields import AllFields, ours

_PROBES = {
    "torch": "trainwright.engines.torch.probe:TorchProbe",
    "mindspore": "trainwright.engines.mindspore.probe:MindSporeProbe",
    "jax": "trainwright.engines.jax.probe:JaxProbe",
}


class DeviceProbe(Protocol):
    """What an engine can tell about the machine."""

    def device(self, use_cpu: bool, index: int = 0) -> Any:
        """The device one process trains on, number ``index`` of this machine's."""
        ...

    def device_count(self) -> int:
        """Accelerators of this machine."""
        ...

    def n_gpu(self, use_cpu: bool) -> int:
        """Accelerators this process uses: 0 or 1."""
        ...

    def supports_bf16(self, device: Any) -> bool:
        """Whether bfloat16 runs natively."""
        ...

    def supports_fp16(self, device: Any) -> bool:
        """Whether float16 runs natively."""
        ...

    def supports_tf32(self, device: Any) -> bool:
        """Whether TensorFloat-32 exists."""
        ...

    def barrier(self, args: AllFields) -> None:
        """Wait until every process of the run has come here."""
        ...


def probe_for(args: AllFields) -> DeviceProbe:
    """The probe of the engine these arguments name; imported on first use."""
    engine = ours(args).engine
    return _load(engine if engine in _PROBES else "torch")


@cache
def _load(engine: str) -> DeviceProbe:
    module, _, name = _PROBES[engine].partition(":")
    return getattr(importlib.import_module(module), name)()
