"""MindSpore as a framework that torch models train on."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from trainwright.engines.graph.framework import ArrayFunction
from trainwright.engines.mindspore.require import require_mindspore


class MindSporeFramework:
    """Arrays, gradients and a compiler of MindSpore.

    With ``jit=False`` functions run operation by operation, which is slow and good for finding errors.
    """

    name = "mindspore"
    operations: Mapping[Any, Callable[..., Any]]

    def __init__(self, *, jit: bool = True, use_cpu: bool = False) -> None:
        require_mindspore()
        if use_cpu:
            _refuse_another_device()
        from trainwright.engines.mindspore.operations import OPERATIONS

        _compute_alike_in_every_call()
        self.jit = jit
        self.operations = OPERATIONS

    def array(self, tensor: Tensor) -> Any:
        """A copy of ``tensor`` for MindSpore."""
        from trainwright.engines.mindspore.arrays import to_array

        return to_array(tensor)

    def shared(self, tensor: Tensor) -> Any:
        """The same: there is one device."""
        return self.array(tensor)

    def tensor(self, array: Any) -> Tensor:
        """A copy of ``array`` in main memory."""
        from trainwright.engines.mindspore.arrays import to_tensor

        return to_tensor(array)

    def compile(self, function: ArrayFunction) -> ArrayFunction:
        """``function`` as one graph per list of shapes, compiled when it first meets them."""
        is_compiled = getattr(function, "is_compiled", False)
        return compiled(function) if self.jit and not is_compiled else function

    def with_gradients(self, function: ArrayFunction, count: int) -> ArrayFunction:
        """Of a ``function`` that returns ``(loss, *rest)``: one that returns ``(loss, *rest, *gradients)``."""
        import mindspore

        if not count:
            return function

        def outputs_of(*arrays: object) -> tuple[Any, ...]:
            loss, *rest = function(*arrays)
            # Without something beside the loss MindSpore would not know what has_aux means.
            return (loss, mindspore.ops.stop_gradient(loss), *rest)

        def differentiated(graph: object) -> Any:
            return mindspore.value_and_grad(graph, grad_position=tuple(range(count)), has_aux=True)

        # Gradients of a compiled graph, never a compiled gradient: traced, the latter would hold on to the values of
        # its first call.
        both: Any = compiled(outputs_of, differentiated) if self.jit else differentiated(outputs_of)

        def run(*arrays: Any) -> tuple[Any, ...]:
            (loss, _, *rest), gradients = both(*arrays)
            # One gradient comes as it is, several come as a tuple.
            return (loss, *rest, *(gradients if isinstance(gradients, tuple) else (gradients,)))

        run.__dict__["is_compiled"] = True
        return run


def _refuse_another_device() -> None:
    import mindspore

    target = mindspore.get_context("device_target")
    if target != "CPU":
        raise ValueError(
            f"use_cpu=True, but MindSpore computes on {target}: call mindspore.set_device('CPU') before, or leave "
            "use_cpu out."
        )


def _compute_alike_in_every_call() -> None:
    """Let each kernel run on one thread; graphs still run on several.

    MindSpore tries out over the first calls of a kernel on how many threads it is fastest, and where the pieces of an
    array begin decides the last bit of logarithms and powers: a resumed run would not be that which went on.
    """
    import mindspore

    with contextlib.suppress(RuntimeError):  # Set before, by us or by the script, which it is up to.
        mindspore.device_context.cpu.op_tuning.threads_num(1)


def _call(graph: Any, arrays: tuple[Any, ...]) -> Any:
    from trainwright.engines.mindspore.arrays import unprinted

    with unprinted(arrays):
        return graph(*arrays)


def compiled(function: ArrayFunction, changed: Callable[[Any], Any] = lambda graph: graph) -> ArrayFunction:
    """``function`` traced and compiled by MindSpore, then ``changed``.

    An error while it is traced would leave MindSpore believing that it still traces, so that every later call fails
    too. It is therefore caught inside, and raised once MindSpore has finished.
    """
    import mindspore

    failed: list[BaseException] = []

    def traced(*arrays: object) -> tuple[Any, ...]:
        try:
            return tuple(function(*arrays))
        except BaseException as error:
            failed.append(error)
            return (arrays[0], arrays[0])

    def fresh() -> ArrayFunction:
        # MindSpore finds compiled graphs by the name and the address of a function; addresses are used again once
        # a function is gone, so that only a name of its own keeps it from running the graph of another.
        traced.__name__ = f"graph_{uuid.uuid4().hex}"
        return changed(mindspore.jit(traced, capture_mode="trace"))

    graph = fresh()
    known: set[Any] = set()

    def run(*arrays: Any) -> tuple[Any, ...]:
        nonlocal graph
        shapes = tuple((array.shape, str(array.dtype)) for array in arrays)
        if shapes in known:
            result = _call(graph, arrays)
        else:
            # While MindSpore traces, it reads the source line of every frame on the stack, for every operation, and
            # fails where there is none, as below `python -m`. The stack of a new thread is short and has them all.
            with ThreadPoolExecutor(1) as thread:
                result = thread.submit(_call, graph, arrays).result()
        if failed:
            graph = fresh()
            known.clear()
            raise failed.pop()
        known.add(shapes)
        return result if isinstance(result, tuple) else (result,)

    return run
