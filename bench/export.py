"""What gets smaller and what gets faster: two networks in every format, on the CPU.

Files as they are written, and the time of one batch in an interleaved comparison (medians, as ratios to the network as
it was built, in torch). Weights are random: accuracy is not the question here. One thread, so that the machine's other
work disturbs less.
"""

from __future__ import annotations

import copy
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import onnxruntime
import torch
from torch import Tensor, nn

from trainwright.core.modifier import Site
from trainwright.recipes.export.exporting import export_model
from trainwright.recipes.pruning.magnitude import MagnitudePruningModifier
from trainwright.recipes.pruning.thinning import thin
from trainwright.recipes.quantization.modifier import QuantizationModifier

ROUNDS = 25
CHANNELS = {"num_bits": 8, "symmetric": True, "strategy": "channel"}


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outside)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class ConvNet(nn.Module):
    """Eight convolutions on pictures of 32 x 32."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = [(3, width, 1), (width, width, 1), (width, width, 1), (width, 2 * width, 2)]
        sizes += [(2 * width, 2 * width, 1)] * 2 + [(2 * width, 4 * width, 2), (4 * width, 4 * width, 1)]
        self.blocks = nn.Sequential(*(Block(*size) for size in sizes))
        self.head = nn.Linear(4 * width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.blocks(pictures).mean((2, 3)))


@dataclass
class Case:
    name: str
    model: Any
    inputs: dict[str, Tensor]
    #: Makes half of the inner channels zero and takes them out.
    thin: Callable[[Any], None]


@torch.no_grad()
def thin_convolutions(model: Any) -> None:
    for block in model.blocks:
        gone = torch.arange(block.conv.out_channels) % 2 == 0
        block.conv.weight[gone] = 0
        for tensor in (block.norm.weight, block.norm.bias, block.norm.running_mean):
            tensor[gone] = 0
    thin(model)


@torch.no_grad()
def thin_feed_forward(model: Any) -> None:
    groups: dict[str, list[str]] = {}
    for number, layer in enumerate(model.bert.encoder.layer):
        dense = layer.intermediate.dense
        dense.weight[::2] = 0
        dense.bias[::2] = 0
        name = f"bert.encoder.layer.{number}"
        groups[f"{name}.intermediate.dense.weight"] = [f"{name}.output.dense.weight"]
    thin(model, groups)


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    return BertForSequenceClassification(BertConfig(vocab_size=4000, **sizes)).eval()


def cases() -> list[Case]:
    torch.manual_seed(0)
    net = ConvNet().eval()
    tokens = torch.randint(0, 4000, (8, 64))
    text = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    pictures = {"pictures": torch.randn(8, 3, 32, 32)}
    return [
        Case("ConvNet", net, pictures, thin_convolutions),
        Case("BERT, 4 layers of 256", bert(), text, thin_feed_forward),
    ]


def eager(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> object:
        return model(**inputs)

    return run


def in_runtime(path: Path, inputs: dict[str, Tensor]) -> Callable[[], object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}
    feed = {name: value.numpy() for name, value in inputs.items() if name in names}
    return lambda: session.run(None, feed)


def nonzero(model: nn.Module) -> str:
    weights = [p for p in model.parameters() if p.dim() > 1]
    return f"{sum(int(w.count_nonzero()) for w in weights) / 1e6:.2f} M"


@dataclass
class Row:
    name: str
    nonzero: str
    size: int
    run: Callable[[], object] | None


def pruned(case: Case) -> nn.Module:
    model = copy.deepcopy(case.model)
    modifier = MagnitudePruningModifier(init_sparsity=0.9, final_sparsity=0.9, start_epoch=0, end_epoch=1)
    modifier.prepare_model(model)
    modifier.advance(Site(model, None, 1.0), 1.0)
    return model


def quantized(case: Case, model: nn.Module, scheme: Any) -> nn.Module:
    model = copy.deepcopy(model)
    QuantizationModifier(scheme=scheme, ignore=["Embedding"], strict=False).calibrate(model, [case.inputs])
    return model


def rows_of(case: Case, folder: Path) -> list[Row]:
    smaller = copy.deepcopy(case.model)
    case.thin(smaller)
    zeros = pruned(case)
    int8 = {"weights": CHANNELS}
    plans: list[tuple[str, nn.Module, str, Any]] = [
        ("as built, torch", case.model, "safetensors", None),
        ("90 % zeros, torch", zeros, "safetensors", None),
        ("half the channels taken out, torch", smaller, "safetensors", None),
        ("as built, onnxruntime", case.model, "onnx", None),
        ("90 % zeros, onnxruntime", zeros, "onnx", None),
        ("half the channels, onnxruntime", smaller, "onnx", None),
        ("int8, onnxruntime", quantized(case, case.model, int8), "onnx", None),
        ("half the channels and int8, onnxruntime", quantized(case, smaller, int8), "onnx", None),
    ]
    if hasattr(case.model, "config"):
        plans += [
            ("W8A8, compressed-tensors", case.model, "compressed-tensors", "W8A8"),
            ("W4A16, compressed-tensors", case.model, "compressed-tensors", "W4A16"),
            ("FP8_DYNAMIC, compressed-tensors", case.model, "compressed-tensors", "FP8_DYNAMIC"),
        ]
    rows = []
    for number, (name, model, to, scheme) in enumerate(plans):
        target = folder / f"{case.name[:4]}{number}"
        done = export_model(model, target, to=to, example_inputs=case.inputs, scheme=scheme)
        run = None
        if to == "safetensors":
            run = eager(model, case.inputs)
        elif to == "onnx":
            run = in_runtime(done.model, case.inputs)
        rows.append(Row(name, nonzero(model), done.size, run))
    return rows


def medians(rows: list[Row]) -> dict[str, float]:
    """Milliseconds; everything takes turns, so that what else the machine does falls on all alike."""
    times: dict[str, list[float]] = {row.name: [] for row in rows if row.run is not None}
    for turn in range(ROUNDS + 3):
        for row in rows:
            if row.run is None:
                continue
            began = time.perf_counter()
            row.run()
            if turn >= 3:
                times[row.name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def table(case: Case, rows: list[Row]) -> str:
    found = medians(rows)
    base, size = found[rows[0].name], rows[0].size
    lines = [
        f"### {case.name}",
        "",
        "| | weights that are not zero | file | of it | one batch | speed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        took = found.get(row.name)
        speed = "- | for vLLM, on a GPU" if took is None else f"{took:.1f} ms | {base / took:.2f} x"
        lines.append(f"| {row.name} | {row.nonzero} | {row.size / 1e6:.2f} MB | {row.size / size:.2f} | {speed} |")
    zeros = found["90 % zeros, torch"]
    lines += [
        "",
        f"Zeros alone make no file smaller ({rows[1].size / size:.2f} of it) and nothing faster in torch "
        f"({base / zeros:.2f} x): they are stored and multiplied like other numbers.",
    ]
    return "\n".join(lines)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            print(table(case, rows_of(case, Path(folder))), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
