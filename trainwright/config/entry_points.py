"""What installed packages offer by name: their entry points, read once, and loaded only when a user names one."""

from __future__ import annotations

import logging
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from trainwright.config.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint


logger = logging.getLogger("trainwright")

#: Names that can be shown as they are.
_NAME = re.compile(r"[A-Za-z0-9][\w.+/ -]*")

#: Folders on Python's path because a file in them was named, and not because packages are installed there.
OPENED: set[str] = set()


@cache
def offered(group: str) -> dict[str, list[EntryPoint]]:
    """Read the names in a group of entry points; no package is imported by that."""
    # It takes some milliseconds to import, and most runs name nothing but ours.
    from importlib.metadata import distributions

    found: dict[str, list[EntryPoint]] = {}
    # Not in folders that were opened for a user's file: what merely lies beside it was not installed by anybody.
    installed: dict[str, Distribution] = {}
    for distribution in distributions(path=[folder for folder in sys.path if folder not in OPENED]):
        # Of two with one name Python imports the first.
        installed.setdefault(str(distribution.name).lower().replace("_", "-"), distribution)
    for distribution in installed.values():
        for point in _points_of(distribution, group):
            if _NAME.fullmatch(point.name):
                found.setdefault(point.name, []).append(point)
    return found


def _points_of(distribution: Distribution, group: str) -> list[EntryPoint]:
    try:
        return list(distribution.entry_points.select(group=group))
    except Exception as error:
        # Anybody's file: that of one package does not keep the others from being found.
        logger.warning("What the package %s offers cannot be read: %s.", distribution.name, error)
        return []


def package_of(point: EntryPoint) -> str:
    """Name the installed package that an entry point belongs to."""
    if point.dist is None or not point.dist.name:
        return "an installed package"
    return f"the package {point.dist.name} {point.dist.version}"


def load(group: str, name: str, what: str) -> Any:
    """Import what a package offers as ``name``; where that fails, the package is named, not only the error."""
    points = offered(group)[name]
    if len({point.value for point in points}) > 1:
        packages = " and ".join(package_of(point) for point in points)
        raise ConfigError(f"{what}: {name!r} is offered by {packages}: uninstall one of them.")
    logger.info("%s: %r is %s of %s.", what, name, points[0].value, package_of(points[0]))
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:
        # Anything: importing a package runs it.
        raise ConfigError(
            f"{what}: {name!r} is offered by {package_of(points[0])} as {points[0].value}, which cannot be loaded: "
            f"{type(error).__name__}: {error}. Update or uninstall that package, or choose another name."
        ) from error
