"""Draw the pictures of docs/architecture.md from the code: ``python -m tests.architecture.pictures``.

Each stands between two comments in the page; ``tests/architecture/test_pictures.py`` compares.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import trainwright.core.callback
from trainwright import Trainer, TrainingArguments

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trainwright"
PAGE = ROOT / "docs" / "architecture.md"
#: The step whose first batch is followed: what is found out once has been found out by then.
FOLLOWED = 3

Function = tuple[str, str]


# ---- the parts


def layers() -> list[list[str]]:
    """The layers of pyproject.toml, from the top, each with its parts."""
    contract = _contracts()["layers"]
    return [[part.strip().removeprefix("trainwright.") for part in line.split("|")] for line in contract["layers"]]


def _contracts() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["type"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def imports() -> set[tuple[str, str]]:
    """(part, part that it imports), for all that the code imports anywhere."""
    parts = {part for layer in layers() for part in layer}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0]
        for name in _imported(ast.parse(path.read_text())) if part in parts else ():
            words = name.split(".")
            if words[0] == "trainwright" and len(words) > 1 and words[1] in parts - {part}:
                found.add((part, words[1]))
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # `from trainwright import config` names the part after the word import.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def without_detours(arrows: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those arrows that no way over others replaces."""
    following: dict[str, set[str]] = {}
    for start, end in arrows:
        following.setdefault(start, set()).add(end)

    def reaches(start: str, end: str) -> bool:
        return any(one == end or reaches(one, end) for one in following.get(start, ()))

    return sorted(
        (start, end)
        for start, end in arrows
        if not any(other != end and reaches(other, end) for other in following[start])
    )


def parts_picture() -> str:
    """Every part, by layer; an arrow is an import, and leads down."""
    plain = {name.removeprefix("trainwright.") for name in _contracts()["forbidden"]["source_modules"]}
    lines = ["```mermaid", "flowchart TD"]
    for number, layer in enumerate(layers()):
        lines += [f'  subgraph layer{number}[" "]', *(f'    {part}["{part}/"]' for part in layer), "  end"]
    lines += [f"  {start} --> {end}" for start, end in without_detours(imports())]
    without_framework = [part for layer in layers() for part in layer if part in plain]
    lines += ["  classDef plain stroke-dasharray: 5 5", f"  class {','.join(without_framework)} plain", "```"]
    return "\n".join(lines)


# ---- a batch's way


class Way:
    """Follows one batch: who had been called when it was read, and who is called from then on until the update."""

    def __init__(self) -> None:
        self.order: dict[Function, None] = {}
        #: Between files, each once.
        self.calls: dict[tuple[str, str], None] = {}

    def begin(self, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append(frame)
            frame = frame.f_back
        own = [found for one in reversed(stack) if (found := _own(one)) is not None]
        for function in own:
            self.order.setdefault(function)
        for (caller, _), (called, _) in pairwise(own):
            self._note(caller, called)
        sys.setprofile(self._see)

    def end(self, *_: Any) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        function = _own(frame) if event == "call" else None
        if function is None or function in self.order:
            return
        self.order[function] = None
        caller = frame.f_back
        while caller is not None and _own(caller) is None:
            caller = caller.f_back
        if caller is not None and (known := _own(caller)) is not None:
            self._note(known[0], function[0])

    def _note(self, caller: str, called: str) -> None:
        if caller != called and (called, caller) not in self.calls:
            self.calls.setdefault((caller, called))


def _own(frame: FrameType) -> Function | None:
    """(file, function) of a frame that runs this package's code; comprehensions are frames up to Python 3.11 only."""
    code = frame.f_code
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE) or code.co_name.startswith("<"):
        return None
    return str(path.relative_to(PACKAGE)), code.co_qualname.rpartition("<locals>.")[2]


class _Rows(torch.utils.data.Dataset):
    """Begins to follow when the first sample of a step is read."""

    def __init__(self, way: Way, at: int) -> None:
        self.way, self.left = way, at

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if self.left == 0:
            self.way.begin(sys._getframe(1))
        self.left -= 1
        return torch.full((4,), float(index)), torch.tensor(index % 2)


def batch_way() -> Way:
    """Train a few steps of two samples, and follow the batch of one of them."""
    way, size = Way(), 2
    rows = _Rows(way, at=size * (FOLLOWED - 1))
    handle = register_optimizer_step_pre_hook(way.end)
    try:
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder, max_steps=FOLLOWED, per_device_train_batch_size=size, use_cpu=True, disable_tqdm=True,
                save_strategy="no", report_to="none",
            )  # fmt: skip
            Trainer(torch.nn.Linear(4, 2), args, train_dataset=rows).train()
    finally:
        way.end()
        handle.remove()
    return way


def batch_picture() -> str:
    """The files on the way with the functions called in each, numbered in the order of their first call."""
    way = batch_way()
    numbered = {function: number for number, function in enumerate(way.order, 1)}
    files = list(dict.fromkeys(file for file, _ in numbered))
    lines = ["```mermaid", "flowchart TD"]
    for index, file in enumerate(files):
        called = [f"{number} {name}" for (home, name), number in numbered.items() if home == file]
        lines.append(f'  file{index}["<b>{file}</b><br/>{"<br/>".join(called)}"]')
    lines += [f"  file{files.index(caller)} --> file{files.index(called)}" for caller, called in way.calls]
    return "\n".join([*lines, "```", "", f"{len(numbered)} functions in {len(files)} files."])


# ---- the loop


def loop_text() -> str:
    """The loop with every event in its place, as core/callback.py has it."""
    page = trainwright.core.callback.__doc__ or ""
    return textwrap.indent(textwrap.dedent(page.split("::\n\n")[1].split("\n\n")[0]), "    ")


PICTURES: dict[str, Callable[[], str]] = {"parts": parts_picture, "batch": batch_picture, "loop": loop_text}


def in_page(name: str, text: str) -> re.Match[str]:
    """Where a picture stands in the page."""
    found = re.search(rf"(?<=<!-- {name}: drawn -->\n\n).*?(?=\n\n<!-- end of {name} -->)", text, re.DOTALL)
    assert found is not None, name
    return found


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, draw in PICTURES.items():
        place = in_page(name, text)
        text = text[: place.start()] + draw() + text[place.end() :]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
