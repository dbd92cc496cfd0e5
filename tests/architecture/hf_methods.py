"""Write down which methods transformers' Trainers have, and the newest version that has each.

``python -m tests.architecture.hf_methods`` adds those of the installed transformers to
``trainwright/training/hf_methods.py``; ``python -m tests.architecture.hf_methods FOLDER VERSION`` those of another
version, whose ``trainer.py`` and ``trainer_seq2seq.py`` lie in FOLDER. A subclass that overrides one of them which is
not called here is told so (``trainwright/training/overrides.py``).
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

TABLE = Path(__file__).parents[2] / "trainwright" / "training" / "hf_methods.py"
HEAD = '''"""Methods of transformers' Trainers, and the newest version seen that has each.

Written by ``python -m tests.architecture.hf_methods``.
"""

from __future__ import annotations

HF_METHODS = {
'''


def methods_in(folder: Path) -> set[str]:
    """Names of the methods of Trainer and Seq2SeqTrainer in a version's source; those of Python itself left out."""
    found: set[str] = set()
    for name in ("trainer.py", "trainer_seq2seq.py"):
        for kind in ast.parse((folder / name).read_text(encoding="utf-8")).body:
            if isinstance(kind, ast.ClassDef) and kind.name.endswith("Trainer"):
                found |= {
                    part.name for part in kind.body if isinstance(part, ast.FunctionDef) and not is_property(part)
                }
    return {name for name in found if not name.startswith("__")}


def is_property(function: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(each) or ".setter" in ast.unparse(each) for each in function.decorator_list)


def installed() -> tuple[Path, str]:
    import transformers

    return Path(transformers.__file__).parent, transformers.__version__


def in_order(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split("."))


def main(words: list[str]) -> None:
    from trainwright.training.hf_methods import HF_METHODS

    folder, version = (Path(words[0]), words[1]) if words else installed()
    version = ".".join(version.split(".")[:2])
    known: dict[str, str] = dict(HF_METHODS)
    for name in methods_in(folder):
        known[name] = max(known.get(name, version), version, key=in_order)
    rows = [f'    "{name}": "{known[name]}",\n' for name in sorted(known)]
    TABLE.write_text(HEAD + "".join(rows) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
