"""Operations a second that GPUs can do at most, for the share of them that a training uses (MFU)."""

from __future__ import annotations

import torch

#: Dense matrix products in bf16 or fp16 with fp32 sums, in TFLOP/s, from the makers' data sheets. The first name that
#: is a part of the device's name counts.
_TFLOPS = (
    ("B200", 2250.0),
    ("B100", 1750.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("H800", 989.0),
    ("GH200", 989.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("A40", 149.7),
    ("A30", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("T4", 65.0),
    ("V100", 125.0),
    ("RTX 5090", 209.5),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
    ("MI300X", 1307.0),
    ("MI250X", 383.0),
)


def peak_flops(device: torch.device, *, is_half: bool) -> float | None:
    """Operations a second of ``device`` in half precision; None where that is not known, or not how it is used.

    >>> peak_flops(torch.device("cpu"), is_half=True) is None
    True
    """
    if device.type != "cuda" or not is_half:
        return None
    name = torch.cuda.get_device_name(device)
    return next((tflops * 1e12 for part, tflops in _TFLOPS if part in name), None)
