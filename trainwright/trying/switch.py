"""Which lines of a script to change, found by reading it: nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: What has to come from us for the loop to be ours; callbacks and collators work from either.
MOVED = ("Trainer", "Seq2SeqTrainer", "TrainingArguments", "Seq2SeqTrainingArguments")
_THROUGH_MODULE = re.compile(rf"\btransformers\.({'|'.join(MOVED)})\b")


@dataclass(frozen=True)
class Change:
    """Lines of a file, and what to write in their place."""

    file: str
    line: int
    before: list[str]
    after: list[str]


def changes_in(path: Path) -> list[Change]:
    """The lines of a file that import transformers' Trainer, or name it through its module."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return []
    lines = text.splitlines()
    found = [_moved(path, node, lines) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return sorted([one for one in found if one is not None] + list(_named(path, tree, lines)), key=lambda one: one.line)


def _moved(path: Path, node: ast.ImportFrom, lines: list[str]) -> Change | None:
    if node.level or (node.module or "").partition(".")[0] != "transformers":
        return None
    ours = [alias for alias in node.names if alias.name in MOVED]
    if not ours:
        return None
    rest = [alias for alias in node.names if alias not in ours]
    before = lines[node.lineno - 1 : node.end_lineno]
    after = [_import("trainwright", ours, node.col_offset)]
    if rest and len(before) > 1:
        # A list over several lines stays as it is written, without those names.
        names = {alias.name for alias in ours}
        kept = [line for line in before if line.strip().rstrip(",") not in names]
        after += kept if len(kept) == len(before) - len(ours) else [_import(node.module, rest, node.col_offset)]
    elif rest:
        after.append(_import(node.module, rest, node.col_offset))
    return Change(str(path), node.lineno, before, after)


def _import(module: str | None, names: list[ast.alias], indent: int) -> str:
    return " " * indent + ast.unparse(ast.ImportFrom(module, names, 0))


def _named(path: Path, tree: ast.Module, lines: list[str]) -> Iterator[Change]:
    """``transformers.Trainer`` in the middle of a line."""
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in MOVED
        and isinstance(node.value, ast.Name)
        and node.value.id == "transformers"
    ]
    imports = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and any(alias.name == "transformers" for alias in node.names)
    ]
    if uses and imports:
        line = imports[0].lineno
        yield Change(str(path), line, [lines[line - 1]], ["import trainwright", lines[line - 1]])
    for number in sorted({node.lineno for node in uses}):
        old = lines[number - 1]
        new = _THROUGH_MODULE.sub(r"trainwright.\1", old)
        yield Change(str(path), number, [old], [new])


def imports_ours(path: Path) -> bool:
    """Whether a script takes its Trainer from us already."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return False
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] == "trainwright"
        and any(alias.name in MOVED for alias in node.names)
        for node in ast.walk(tree)
    )
