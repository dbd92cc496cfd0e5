"""Experiments that come with the package: ``trainwright ls`` lists them, ``trainwright cp`` hands one over."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainwright.config.errors import ConfigError
from trainwright.config.extras import install, is_installed, pip_name
from trainwright.config.registry import suggestion

HOME = Path(__file__).parent
#: Conversations about animals, written for this project.
CHATS = HOME / "chats.jsonl"
SCHEMA = "experiment.schema.json"
_TEXTS = ("transformers", "datasets")
#: Optional packages that an experiment needs.
_NEEDS: dict[str, tuple[str, ...]] = {
    "chat": ("transformers",),
    "image-folder": (*_TEXTS, "PIL"),
    "language-model": _TEXTS,
    "summaries": _TEXTS,
    "text-classification": _TEXTS,
}
#: Files that an experiment needs beside it.
_COMPANIONS = {
    "chat": [
        "chats.jsonl",
        *(f"tiny-chat/{name}" for name in ("config.json", "tokenizer.json", "tokenizer_config.json")),
        "tiny-chat/chat_template.jinja",
    ],
    "table": ["table.csv"],
    "own-module": ["own_module.py"],
}


def descriptions() -> dict[str, str]:
    """The first comment of each, by name."""
    found = {}
    for path in sorted(HOME.glob("*.yaml")):
        comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
        first = next(line for line in comments if "$schema" not in line).removeprefix("# ")
        found[path.stem] = first.partition(" Needs: ")[0].rstrip(":")
    return found


def needs(name: str) -> tuple[str, ...]:
    """Optional packages without which an experiment does not run, as pip names them."""
    return tuple(pip_name(package) for package in _NEEDS.get(name, ()))


def missing(name: str) -> str | None:
    """The command that installs what an experiment needs and is not there; None where nothing is missing."""
    gone = [package for package in _NEEDS.get(name, ()) if not is_installed(package)]
    words = dict.fromkeys(install(package).removeprefix("pip install ") for package in gone)
    return f"pip install {' '.join(words)}" if words else None


def hand_over(name: str, target: Path) -> list[Path]:
    """Copy an experiment and its companions; never over a file that is there."""
    known = list(descriptions())
    if name.removesuffix(".yaml") not in known:
        raise ConfigError(f"There is no experiment {name!r}{suggestion(name, known)}; there are {', '.join(known)}.")
    name = name.removesuffix(".yaml")
    folder, file = (target, f"{name}.yaml") if target.is_dir() or not target.suffix else (target.parent, target.name)
    copies = {folder / file: f"{name}.yaml", **{folder / one: one for one in _COMPANIONS.get(name, [])}}
    for path in copies:
        if path.exists():
            raise ConfigError(f"{path} is there already: it is not overwritten. Choose another place.")
    if not (folder / SCHEMA).exists():
        copies[folder / SCHEMA] = SCHEMA
    try:
        for path, source in copies.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(HOME / source, path)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}.") from None
    return list(copies)
