"""SparseML's exporter: ONNX and weights by trainwright's own export."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from trainwright.recipes.export.exporting import export_model
from trainwright.recipes.export.results import Exported


class ModuleExporter:
    """Writes a module into ``output_dir``."""

    def __init__(self, module: nn.Module, output_dir: str | Path) -> None:
        is_parallel = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        self._module, self._folder = module.module if is_parallel else module, Path(output_dir)

    def export_onnx(
        self, sample_batch: object, name: str = "model.onnx", convert_qat: bool = True, **kwargs: object
    ) -> Exported:
        """``name`` in the folder, checked in onnxruntime; a model that was trained to round has QDQ nodes."""
        if kwargs:
            raise ValueError(f"{', '.join(kwargs)}: not an option of this export; leave it out.")
        if not convert_qat:
            raise ValueError("convert_qat=False: rounding is always written as QDQ nodes; leave it out.")
        if name != "model.onnx":
            raise ValueError(f"name={name!r}: the file is called model.onnx; rename it afterwards.")
        return export_model(self._module, self._folder, to="onnx", example_inputs=sample_batch)

    def export_pytorch(self, **kwargs: object) -> Exported:
        """Weights as safetensors, with the configuration where there is one."""
        if kwargs:
            raise ValueError(f"{', '.join(kwargs)}: weights are written alone, as safetensors; leave it out.")
        return export_model(self._module, self._folder)

    def export_torchscript(self, *args: object, **kwargs: object) -> None:
        """Refused: torch has given it up."""
        raise ValueError("TorchScript is given up by torch itself: use export_onnx, or torch.export on the module.")
