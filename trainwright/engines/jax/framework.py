"""JAX as a framework that torch models train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from trainwright.engines.graph.framework import ArrayFunction
from trainwright.engines.jax.require import require_jax


class JaxFramework:
    """Arrays, gradients and a compiler of JAX.

    With ``jit=False`` functions run operation by operation. ``use_cpu`` keeps everything off an accelerator that JAX
    found; only the CPU was ever tried. With several ``devices`` each holds all weights and a part of each batch; XLA
    adds their gradients up.
    """

    name = "jax"
    operations: Mapping[Any, Callable[..., Any]]

    def __init__(self, *, jit: bool = True, use_cpu: bool = False, devices: int = 1) -> None:
        require_jax()
        from trainwright.engines.jax.operations import OPERATIONS

        self.jit = jit
        self.use_cpu = use_cpu
        self.operations = OPERATIONS
        self._on_all, self._by_row = _layouts(devices, use_cpu) if devices > 1 else (None, None)
        self._devices = devices

    def array(self, tensor: Tensor) -> Any:
        """A copy of ``tensor`` on JAX's device, with all its bits; on each of them if there are several."""
        return self._placed(tensor, self._on_all)

    def shared(self, tensor: Tensor) -> Any:
        """A copy of which each device has some rows; all of it where they cannot be shared out equally."""
        cuts = tensor.ndim > 0 and tensor.shape[0] % self._devices == 0
        return self._placed(tensor, self._by_row if cuts else self._on_all)

    def _placed(self, tensor: Tensor, layout: Any) -> Any:
        import jax

        from trainwright.engines.jax.arrays import to_array

        with self._as_torch_computes():
            array = to_array(tensor)
            return array if layout is None else jax.device_put(array, layout)

    def tensor(self, array: Any) -> Tensor:
        """A copy of ``array`` in main memory."""
        from trainwright.engines.jax.arrays import to_tensor

        return to_tensor(array)

    def compile(self, function: ArrayFunction) -> ArrayFunction:
        """``function`` as one graph for each list of shapes, compiled when it first meets them."""
        import jax

        return self._inside(jax.jit(function) if self.jit else function)

    def with_gradients(self, function: ArrayFunction, count: int) -> ArrayFunction:
        """Of a ``function`` that returns ``(loss, *rest)``: one that returns ``(loss, *rest, *gradients)``."""
        import jax

        if not count:
            return self._inside(function)

        def loss_and_rest(*arrays: object) -> tuple[Any, tuple[Any, ...]]:
            loss, *rest = function(*arrays)
            return loss, tuple(rest)

        both = jax.value_and_grad(loss_and_rest, argnums=tuple(range(count)), has_aux=True)

        def run(*arrays: Any) -> tuple[Any, ...]:
            (loss, rest), gradients = both(*arrays)
            return (loss, *rest, *gradients)

        return self._inside(run)

    def _inside(self, function: ArrayFunction) -> ArrayFunction:
        def run(*arrays: Any) -> tuple[Any, ...]:
            with self._as_torch_computes():
                return function(*arrays)

        return run

    @contextmanager
    def _as_torch_computes(self) -> Iterator[None]:
        """64-bit numbers and full precision in products, for this thread and these calls only.

        JAX makes int64 and float64 half as wide unless asked, and lets accelerators multiply float32 with fewer bits.
        """
        import jax

        with ExitStack() as settings:
            settings.enter_context(jax.enable_x64(True))
            settings.enter_context(jax.default_matmul_precision("highest"))
            if self.use_cpu and self._on_all is None:
                settings.enter_context(jax.default_device(jax.devices("cpu")[0]))
            yield


def _layouts(count: int, use_cpu: bool) -> tuple[Any, Any]:
    """How arrays lie on ``count`` devices: whole on each, and by rows."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    found = jax.devices("cpu") if use_cpu else jax.devices()
    if len(found) < count:
        more = (
            f" To try it on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count={count} before Python starts."
            if found[0].platform == "cpu"
            else ""
        )
        raise ValueError(f"engine_devices={count}, but JAX finds {len(found)} ({found[0].platform}).{more}")
    mesh = Mesh(found[:count], ("batch",))
    return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
