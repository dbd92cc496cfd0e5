"""Say which line of a model looks at the values of its tensors, which a captured graph cannot follow.

A graph is captured once, without values, and then run on every batch: ``if y.sum() > 0`` would be decided by nobody.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

_aten = torch.ops.aten
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


@contextlib.contextmanager
def named_lines() -> Iterator[None]:
    """Capture a model within it: what torch cannot capture is said with the model's own line."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except (GuardOnDataDependentSymNode, RuntimeError) as error:
        line = _line_in(error)
        if line and (isinstance(error, GuardOnDataDependentSymNode) or "numpy" in str(error)):
            # Where torch has printed the graph up to that line, which nobody needs who knows the line.
            printed = io.StringIO()
            raise ValueError(_words(line)) from error
        raise
    finally:
        logger.setLevel(level)
        sys.stderr.write(printed.getvalue())


def refuse_values(graph: Graph) -> None:
    """Refuse a graph whose numbers or shapes depend on values: ``.item()``, ``x[mask]``, ``nonzero()``."""
    for node in graph.nodes:
        if node.op == "call_function" and _depends_on_values(node):
            raise ValueError(_words(_line_of(node) or str(node.target)))


def _depends_on_values(node: Node) -> bool:
    values = node.meta.get("val")
    for value in values if isinstance(values, list | tuple) else [values]:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return True
        if isinstance(value, Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            return True
    return node.target is _aten._local_scalar_dense.default


def _line_in(error: BaseException) -> str:
    """The innermost line of somebody else than torch and us that led to ``error``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_LIBRARIES):
            return _told(frame.filename, frame.lineno or 0, frame.name)
    return ""


def _line_of(node: Node) -> str:
    frames = _FRAME.findall(str(node.meta.get("stack_trace") or ""))
    for file, line, function in reversed(frames):
        if not file.startswith(_LIBRARIES):
            return _told(file, int(line), function)
    return ""


def _told(file: str, line: int, function: str) -> str:
    return f"`{linecache.getline(file, line).strip()}` ({file}, line {line}, in {function})"


def _words(line: str) -> str:
    return (
        f"The model looks at the values of a tensor in {line}. Engines other than torch run a graph that was captured "
        "without values, so nothing in it can depend on them. Write it with tensors: torch.where(condition, a, b) in "
        "place of `if`, `x * mask` in place of `x[mask]`, the tensor itself in place of .item(). Or train with "
        "engine='torch'."
    )
