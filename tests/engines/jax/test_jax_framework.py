"""JAX's arrays, gradients and compiler behind the seam; and torch is the same before and after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainwright.engines.jax.framework import JaxFramework
from trainwright.engines.jax.probe import JaxProbe

jax = pytest.importorskip("jax")

pytestmark = pytest.mark.jax

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans())
def test_tensors_come_back_as_they_went(dtype: torch.dtype, shape: list[int], transposed: bool) -> None:
    tensor = (torch.randn(shape) * 9).to(dtype)
    tensor = tensor.T if transposed and tensor.ndim == 2 else tensor
    framework = JaxFramework()
    back = framework.tensor(framework.array(tensor))
    assert back.dtype is dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_is_shared(dtype: torch.dtype) -> None:
    framework, tensor = JaxFramework(), torch.ones(64, 64).to(dtype)
    array = framework.array(tensor)
    tensor.zero_()
    back = framework.tensor(array)
    assert bool((back == 1).all())
    back.zero_()
    assert bool((framework.tensor(array) == 1).all())


def test_all_64_bits_arrive_and_the_process_keeps_its_setting() -> None:
    framework, large = JaxFramework(), torch.tensor([2**40 + 1])
    add = framework.compile(lambda x: (x + 1,))
    assert framework.tensor(add(framework.array(large))[0]).tolist() == [2**40 + 2]
    assert not jax.config.jax_enable_x64
    assert jax.numpy.zeros(2).dtype == "float32"


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_gradients_are_of_the_loss_alone(jit: bool, count: int) -> None:
    framework = JaxFramework(jit=jit)

    def function(x: Any, y: Any, z: Any) -> tuple[Any, ...]:
        return (x * y * z).sum(), x * 100, y + 1

    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])]
    run = framework.compile(framework.with_gradients(function, count))
    results = [framework.tensor(array) for array in run(*map(framework.array, tensors))]
    x, y, z = tensors
    for found, wanted in zip(results, [(x * y * z).sum(), x * 100, y + 1, y * z, x * z][: 3 + count], strict=True):
        assert torch.equal(found, wanted)


def test_a_compiled_function_takes_other_shapes_and_keeps_its_results() -> None:
    framework = JaxFramework()
    double = framework.compile(lambda x: (x * 2,))
    (first,) = double(framework.array(torch.ones(2)))
    (second,) = double(framework.array(torch.ones(3) * 5))
    assert framework.tensor(first).tolist() == [2, 2]
    assert framework.tensor(second).tolist() == [10, 10, 10]


def test_a_type_that_jax_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        JaxFramework().array(torch.zeros(2, dtype=torch.float8_e4m3fn))


def test_the_cpu_can_be_asked_for() -> None:
    framework = JaxFramework(use_cpu=True)
    (double,) = framework.compile(lambda x: (x * 2,))(framework.array(torch.ones(2)))
    assert {device.platform for device in double.devices()} == {"cpu"}


def test_the_probe_knows_this_machine() -> None:
    probe = JaxProbe()
    device = probe.device(use_cpu=False)
    assert device == torch.device("cpu")
    assert probe.n_gpu(use_cpu=True) == 0
    assert (probe.supports_fp16(device), probe.supports_tf32(device)) == (True, False)
    framework, half = JaxFramework(), torch.full((4, 4), 2.0, dtype=torch.bfloat16)
    (product,) = framework.compile(lambda x: (framework.operations[torch.ops.aten.mm.default](x, x),))(
        framework.array(half)
    )
    assert probe.supports_bf16(device)
    assert torch.equal(framework.tensor(product), half @ half)


SCRIPT = """
import sys, torch
def state():
    torch.manual_seed(3)
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(2, 3, 8)).square().sum().backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return [
        weights.sum().item().hex(), torch.randn(3).tolist(), torch.get_default_device(), torch.get_default_dtype(),
        torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(),
        torch.backends.mha.get_fastpath_enabled(), torch._C._get_privateuse1_backend_name(), hasattr(torch, "jax"),
        len(torch._decomp.decomposition_table), type(torch.ones(1) + 1), torch.get_num_threads(),
    ]
before = state()
from trainwright.engines.jax.framework import JaxFramework
framework = JaxFramework()
framework.tensor(framework.compile(lambda x: (x * 2,))(framework.array(torch.ones(2)))[0])
after = state()
assert before == after, (before, after)
assert not [name for name in sys.modules if name.partition(".")[0] == "torchax"]
import logging
assert not logging.getLogger().handlers
"""


def test_torch_is_left_as_it_was() -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == result.stderr == ""


def test_importing_the_package_imports_neither() -> None:
    script = "import trainwright.engines.jax.framework, trainwright.engines.jax.probe, sys; print('jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_a_torchax_that_the_script_imported_stays_its_own() -> None:
    script = (
        "import sys, types; mine = types.ModuleType('torchax'); sys.modules['torchax'] = mine\n"
        "import importlib.machinery, importlib.util\n"
        "mine.__spec__ = importlib.machinery.PathFinder.find_spec('torchax')\n"
        "from trainwright.engines.jax.framework import JaxFramework; JaxFramework()\n"
        "assert sys.modules['torchax'] is mine and len([n for n in sys.modules if n.startswith('torchax')]) == 1"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_torchax_that_does_not_fit_is_refused_with_versions_that_do(tmp_path: Path) -> None:
    (tmp_path / "torchax" / "ops").mkdir(parents=True)
    (tmp_path / "torchax" / "__init__.py").touch()
    (tmp_path / "torchax" / "ops" / "jaten.py").write_text("import torch\ntorch.ops.aten.prod.dim_Dimname\n")
    script = (
        "from trainwright.engines.jax.framework import JaxFramework\n"
        "try: JaxFramework()\nexcept ValueError as error: print(error)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert "do not work together" in result.stdout
    assert "dim_Dimname" in result.stdout
    assert "pip install 'trainwright[jax]' (checked together: torch 2.13, jax 0.10.2, torchax 0.0.13)" in result.stdout
