"""Names on the Hugging Face Hub where there is no network: what is in the cache is used, the rest fails at once.

Left alone, the libraries try for minutes.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from urllib.parse import urlsplit

#: Seconds in which a Hub that is there answers a connection.
_PATIENCE = 3.0
#: Seconds for which an answer holds.
_VALID = 60.0
#: Where the libraries keep that they must not ask the network.
_SWITCHES = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_DATASETS_OFFLINE"),
)
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


class NotHere(OSError):
    """A dataset that is neither on this machine nor to be had."""


@contextmanager
def offline_where_unreachable() -> Iterator[bool]:
    """Within it nobody asks a Hub that cannot be reached; gives whether that is so."""
    if is_reachable():
        yield False
        return
    with ExitStack() as undo:
        for module, name in _SWITCHES:
            if module in sys.modules:
                undo.callback(setattr, sys.modules[module], name, getattr(sys.modules[module], name))
                setattr(sys.modules[module], name, True)
        yield True


def is_reachable() -> bool:
    """Whether the Hub answers; a proxy is trusted to know."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    address = urlsplit(hub_address())
    usual = 80 if address.scheme == "http" else 443
    return _answers(address.hostname or "", address.port or usual, int(time.monotonic() // _VALID))


@lru_cache(maxsize=1)
def _answers(host: str, port: int, period: int) -> bool:
    """Asked once a ``period``: an experiment names several things on the Hub."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE):
            return True
    except OSError:
        return False


def hub_address() -> str:
    """Where the Hub is: huggingface.co, or what HF_ENDPOINT says."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def not_here(name: str, kind: str, near: str = "") -> str:
    """What to say of a name that is neither on this machine nor to be had; ``near`` is one of ours that is like it.

    >>> not_here("bert-base-uncased", "model")
    "'bert-base-uncased' is not on this machine, and https://huggingface.co cannot be reached: name a local folder, ..."
    """
    fetch = f"hf download {name}" + (" --repo-type dataset" if kind == "dataset" else "")
    return (
        f"{name!r}{near} is not on this machine, and {hub_address()} cannot be reached: name a local folder, or fetch "
        f"it where there is a network ({fetch}) and copy the folder ~/.cache/huggingface."
    )


def means_missing(error: BaseException) -> bool:
    """Whether an error of these libraries says that something was not in the cache, and not what is wrong with it."""
    return any(isinstance(one, OSError) for one in (error, error.__cause__, error.__context__))
