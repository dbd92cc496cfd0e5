"""torchax's table of ATen operations on JAX arrays, without torchax itself.

Importing torchax changes torch for the whole process: it switches off the fast path of attention, names a device
"jax", and fails on torch 2.13 and later, which no longer has operations of named tensors that torchax's autocast lists.
The table needs none of that. So only its modules are run, below a package without torchax's own start-up code, and
nothing of it stays in ``sys.modules``: a script that imports torchax gets torchax.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from torch._ops import OpOverload

_TABLE = "torchax.ops.jaten"
_REGISTRY = "torchax.ops.ops_registry"
_one_at_a_time = threading.Lock()


@cache
def torchax_operations() -> dict[Any, Callable[..., Any]]:
    """Its functions of JAX arrays, by overload, or by packet where one function serves all overloads.

    Those that write into their arguments or draw random numbers are left out: a captured graph has neither.
    """
    with _one_at_a_time:
        registry = _run_apart()
    return {
        known.torch_op: known.func
        for known in registry.all_aten_ops.values()
        if known.is_jax_function and not known.needs_env and not known.is_view_op
    }


def _run_apart() -> ModuleType:
    """The registry, filled; by modules that only this package knows."""
    spec = importlib.util.find_spec("torchax")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'torchax'", name="torchax")
    package = ModuleType("torchax")
    package.__path__ = list(spec.submodule_search_locations)
    # Only operations that write into their arguments look at this class.
    tensor: Any = ModuleType("torchax.tensor")
    tensor.Tensor = type("Tensor", (), {})
    users = {name: module for name, module in sys.modules.items() if _is_torchax(name)}
    for name in users:
        del sys.modules[name]
    sys.modules |= {"torchax": package, "torchax.tensor": tensor}
    try:
        importlib.import_module(_TABLE)
        return sys.modules[_REGISTRY]
    finally:
        for name in [name for name in sys.modules if _is_torchax(name)]:
            del sys.modules[name]
        sys.modules |= users


def _is_torchax(name: str) -> bool:
    return name.partition(".")[0] == "torchax"


def taken(overload: OpOverload) -> Callable[..., Any]:
    """torchax's function for ``overload``; KeyError where it has none."""
    table = torchax_operations()
    return table[overload] if overload in table else table[overload.overloadpacket]
