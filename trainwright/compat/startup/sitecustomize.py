"""Opens the door to transformers in every Python below ``trainwright run``, which puts this folder into PYTHONPATH.

Python imports a module of this name when it starts. The environment may have one of its own, which runs afterwards.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

try:
    from trainwright.compat.transformers_door import open_door
except ImportError:
    print(
        f"trainwright is not installed for {sys.executable}: there, transformers' own Trainer trains.", file=sys.stderr
    )
else:
    open_door()

_here = os.path.dirname(os.path.abspath(__file__))
_rest = [path for path in sys.path if os.path.abspath(path) != _here]
_own = PathFinder.find_spec("sitecustomize", _rest)
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(module_from_spec(_own))
