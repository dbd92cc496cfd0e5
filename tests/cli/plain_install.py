"""Run commands of trainwright in a process that sees only what ``pip install trainwright`` brings.

    python tests/cli/plain_install.py '[["ls"], ["cp", "digits", "."]]'

The last line is JSON: exit code and output of each command.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def distributions_of(name: str, found: set[str] | None = None) -> set[str]:
    """A distribution and all that it requires, without extras."""
    found = set() if found is None else found
    name = canonicalize_name(name)
    if name in found:
        return found
    found.add(name)
    try:
        needed = requires(name) or []
    except PackageNotFoundError:
        return found
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            distributions_of(requirement.name, found)
    return found


class Hiding:
    """A finder of modules that does not find those of some packages."""

    def __init__(self, finder: Any, hidden: set[str]) -> None:
        self.finder, self.hidden = finder, hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in self.hidden else self.finder.find_spec(name, path, target)


def hide_other_packages() -> None:
    installed = distributions_of("trainwright")
    owners = packages_distributions()
    hidden = {name for name in owners if not installed & {canonicalize_name(owner) for owner in owners[name]}}
    sys.meta_path[:] = [Hiding(finder, hidden) for finder in sys.meta_path]  # type: ignore[misc]
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        del sys.modules[name]


def main() -> None:
    hide_other_packages()
    from typer.testing import CliRunner

    from trainwright.cli.app import app

    answers: list[dict[str, Any]] = []
    for words in json.loads(sys.argv[1]):
        done = CliRunner().invoke(app, words)
        failure = "" if done.exception is None or isinstance(done.exception, SystemExit) else repr(done.exception)
        answers.append({"words": words, "code": done.exit_code, "output": done.output, "failure": failure})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
