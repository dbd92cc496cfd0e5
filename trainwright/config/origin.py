"""Where classes and functions come from: which library wrote them, and those of libraries that may not be there."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

#: This package.
OURS = __name__.partition(".")[0]


def library_of(written: object) -> str:
    """The library, by the name it is imported under, in which a class or function was written.

    The one place that reads this from a name: Python keeps no other record of it.

    >>> library_of(library_of), library_of(dict)
    ('trainwright', 'builtins')
    """
    return str(getattr(written, "__module__", None) or "builtins").partition(".")[0]


def library_running(frame: FrameType) -> str:
    """The same for the code that a frame runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_users_own(frame: FrameType) -> bool:
    """Return True where a frame runs a script, a notebook or modules beside them, and no installed package.

    >>> is_users_own(sys._getframe())
    False
    """
    if frame.f_globals.get("__name__") == "__main__":
        return True
    return not is_installed(frame.f_code.co_filename) and library_running(frame) != OURS


def is_installed(file: str) -> bool:
    """Return True for a file of Python itself or of an installed package.

    >>> is_installed("/usr/lib/python3/dist-packages/numpy/__init__.py"), is_installed("train.py")
    (True, False)
    """
    path = Path(file)
    places = {"site-packages", "dist-packages"}.intersection(path.parts)
    return bool(places) or path.is_relative_to(sysconfig.get_path("stdlib"))


def class_if_imported(module: str, name: str) -> type | tuple[()]:
    """A class of another library, for ``isinstance``; where nobody has imported it, nothing is one of it.

    >>> isinstance(3, class_if_imported("a_library_that_is_not_there", "Model"))
    False
    """
    return getattr(sys.modules.get(module), name, ())
