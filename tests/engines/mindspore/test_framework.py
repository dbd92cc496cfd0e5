"""Arrays, gradients and the compiler of MindSpore, as the engine uses them."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

mindspore = pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

from trainwright.engines.mindspore.framework import MindSporeFramework  # noqa: E402
from trainwright.engines.mindspore.probe import MindSporeProbe  # noqa: E402
from trainwright.engines.mindspore.require import require_mindspore  # noqa: E402

framework = MindSporeFramework()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.tensor(True),
        torch.tensor([True, False]),
        torch.tensor([2**40, -1]),
        torch.tensor([0.1, 0.2], dtype=torch.float64),
        torch.tensor([0.1, 3e4], dtype=torch.float16),
        torch.tensor([0.1, 1e30], dtype=torch.bfloat16),
        torch.arange(6.0).view(2, 3).T,
        torch.arange(6)[::2],
        torch.zeros(2, 0, 3),
        torch.zeros(0, dtype=torch.int64),
        torch.nn.Parameter(torch.ones(2, 2)),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor([float("nan"), float("inf")]),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_arrays_hold_what_tensors_held(tensor: torch.Tensor) -> None:
    back = framework.tensor(framework.array(tensor))
    torch.testing.assert_close(back, tensor.detach(), rtol=0, atol=0, equal_nan=True)
    assert not back.requires_grad


def test_arrays_and_tensors_are_copies() -> None:
    tensor = torch.zeros(3)
    array = framework.array(tensor)
    tensor.add_(1)
    back = framework.tensor(array)
    assert back.tolist() == [0, 0, 0]
    back.add_(1)
    assert framework.tensor(array).tolist() == [0, 0, 0]


def test_a_type_mindspore_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no type"):
        framework.array(torch.zeros(2, dtype=torch.float8_e4m3fn))


def _loss_and_more(weight: Any, data: Any) -> tuple[Any, ...]:
    product = weight * data
    return (product * product).sum(), product * 100, product.sum()


@pytest.mark.parametrize("jit", [True, False])
def test_gradients_are_of_the_loss_alone(jit: bool) -> None:
    chosen = MindSporeFramework(jit=jit)
    run = chosen.compile(chosen.with_gradients(_loss_and_more, 1))
    weight, data = chosen.array(torch.tensor([1.0, 2.0])), chosen.array(torch.tensor([3.0, 4.0]))
    loss, scaled, total, gradient = (chosen.tensor(array) for array in run(weight, data))
    assert loss.item() == 73
    assert scaled.tolist() == [300, 800]
    assert total.item() == 11
    assert gradient.tolist() == [18, 64]


@pytest.mark.parametrize("jit", [True, False])
def test_gradients_of_a_loss_that_comes_alone(jit: bool) -> None:
    chosen = MindSporeFramework(jit=jit)
    run = chosen.compile(chosen.with_gradients(lambda one, other: ((one * other).sum(),), 2))
    results = run(chosen.array(torch.tensor([1.0, 2.0])), chosen.array(torch.tensor([3.0, 4.0])))
    assert [chosen.tensor(result).tolist() for result in results] == [11, [3, 4], [1, 2]]


def test_no_gradients_where_nothing_is_trained() -> None:
    run = framework.compile(framework.with_gradients(lambda one: ((one * one).sum(),), 0))
    assert [framework.tensor(result).item() for result in run(framework.array(torch.tensor([1.0, 2.0])))] == [5]


def test_compiled_once_per_shape_and_never_mixed_up() -> None:
    traced = []

    def double(array: Any) -> tuple[Any, ...]:
        traced.append(array.shape)
        return (array + array,)

    run = framework.compile(double)
    first = run(framework.array(torch.ones(2)))[0]
    for value in (1.0, 2.0, 3.0):
        assert framework.tensor(run(framework.array(torch.full((2,), value)))[0]).tolist() == [2 * value] * 2
    assert framework.tensor(run(framework.array(torch.ones(3)))[0]).tolist() == [2, 2, 2]
    assert framework.tensor(run(framework.array(torch.ones(2)))[0]).tolist() == [2, 2]
    assert len(traced) == 2
    assert framework.tensor(first).tolist() == [2, 2]  # later calls wrote their results elsewhere


def test_functions_that_come_and_go_are_told_apart() -> None:
    array = framework.array(torch.ones(2))
    for factor in range(1, 6):
        run = framework.compile(lambda given, factor=factor: (given * factor,))
        assert framework.tensor(run(array)[0]).tolist() == [factor] * 2
        del run
        gc.collect()


def test_an_error_while_compiling_is_the_users_own_and_spoils_nothing() -> None:
    fails = [True]

    def sometimes(array: Any) -> tuple[Any, ...]:
        if fails[0]:
            raise KeyError("the operation that is missing")
        return (array + array,)

    run = framework.compile(sometimes)
    array = framework.array(torch.ones(2))
    with pytest.raises(KeyError, match="missing"):
        run(array)
    other = framework.compile(lambda given: (given * given,))
    assert framework.tensor(other(array)[0]).tolist() == [1, 1]
    fails[0] = False
    assert framework.tensor(run(array)[0]).tolist() == [2, 2]


def test_an_error_while_gradients_are_compiled_is_the_users_own() -> None:
    def wrong(array: Any) -> tuple[Any, ...]:
        raise KeyError("the operation that is missing")

    array = framework.array(torch.ones(2, 3))
    with pytest.raises(KeyError, match="missing"):
        framework.compile(framework.with_gradients(wrong, 1))(array)
    right = framework.compile(framework.with_gradients(lambda given: ((given * given).sum(),), 1))
    assert framework.tensor(right(array)[1]).tolist() == [[2, 2, 2], [2, 2, 2]]


def test_gradients_follow_the_values_of_every_call() -> None:
    tanh, mm = framework.operations[torch.ops.aten.tanh.default], framework.operations[torch.ops.aten.mm.default]

    def run(weight: Any, data: Any) -> tuple[Any, ...]:
        hidden = tanh(mm(data, weight))
        return (mm(hidden * hidden, weight) * hidden).sum(), hidden

    step = framework.compile(framework.with_gradients(run, 1))
    for number in range(5):
        torch.manual_seed(number)
        weight, data = torch.randn(4, 4, requires_grad=True), torch.randn(6, 4)
        hidden = torch.tanh(data @ weight)
        ((hidden * hidden @ weight) * hidden).sum().backward()
        *_, gradient = step(framework.array(weight), framework.array(data))
        torch.testing.assert_close(framework.tensor(gradient), weight.grad, rtol=1e-4, atol=1e-4)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow() -> None:
    run = framework.compile(framework.with_gradients(_loss_and_more, 1))
    data = framework.array(torch.ones(256, 256))
    weight = framework.array(torch.ones(256, 256))
    before = 0
    for call in range(300):
        if call == 100:
            before = _resident()
        *_, gradient = run(weight, data)
        weight = gradient * framework.array(torch.tensor(0.5))
    # One array more per call would be 50 MB.
    assert _resident() - before < 20 * 2**20


_QUIET = """
import torch
from trainwright.engines.mindspore.framework import MindSporeFramework
framework = MindSporeFramework()
table = framework.operations
def run(*arrays):
    x = table[torch.ops.aten.mm.default](arrays[0], arrays[1])
    x = table[torch.ops.aten.slice.Tensor](table[torch.ops.aten._softmax.default](x, -1, False), 0, 0, 2)
    return (table[torch.ops.aten.sum.default](x),)
step = framework.compile(framework.with_gradients(run, 2))
print(len(step(framework.array(torch.ones(3, 4)), framework.array(torch.ones(4, 5)))))
"""


def test_says_nothing_and_leaves_no_files(tmp_path: Path) -> None:
    """Also below `python -c`, whose frames have no source lines for MindSpore to read."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (elsewhere / "job.py").write_text(_QUIET)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", "import job"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{elsewhere}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)
    assert list(here.iterdir()) == []


def test_importing_trainwright_imports_no_mindspore() -> None:
    root = Path(__file__).parents[3]
    code = (
        "import sys, trainwright, trainwright.engines.mindspore.require, trainwright.engines.mindspore.framework, "
        "trainwright.engines.mindspore.probe; print('mindspore' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout == "False\n"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_mindspore()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "2.4.1")
        with pytest.raises(ValueError, match="numpy<2"):
            require_mindspore()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"trainwright\[mindspore\]"):
            require_mindspore()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 13, 0))
        with pytest.raises(ValueError, match="no packages for Python"):
            require_mindspore()


def test_probe_on_the_cpu() -> None:
    probe = MindSporeProbe()
    device = probe.device(use_cpu=False)
    assert device == torch.device("cpu")
    assert probe.n_gpu(use_cpu=False) == probe.device_count() == 0
    assert (probe.supports_bf16(device), probe.supports_fp16(device), probe.supports_tf32(device)) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize("overload", [torch.ops.aten.log.default, torch.ops.aten._log_softmax.default])
@pytest.mark.parametrize("size", [4, 6, 33])
def test_a_call_gives_the_bits_of_the_first(overload: Any, size: int) -> None:
    """MindSpore tries out numbers of threads over the first calls."""
    framework = MindSporeFramework()
    extra = (0, False) if overload is torch.ops.aten._log_softmax.default else ()
    run = framework.compile(lambda array: (framework.operations[overload](array, *extra),))
    given = torch.rand(size, generator=torch.Generator().manual_seed(1)) + 0.5
    results = [framework.tensor(run(framework.array(given))[0]) for _ in range(40)]
    assert all(torch.equal(result, results[0]) for result in results)
