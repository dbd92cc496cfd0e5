"""Addresses of servers, told from paths."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

#: ``host:5000``, with nothing before it that a path would have; ``C:5`` is a drive.
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}(?:/.*)?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def server_address(text: str) -> str | None:
    """The address with its scheme where ``text`` is one, None where it is a path.

    >>> server_address("localhost:5075"), server_address("https://example.org/track"), server_address("localhost")
    ('http://localhost:5075', 'https://example.org/track', 'http://localhost')
    >>> [server_address(path) for path in ("logs", "./logs", "logs/host:1", "C:\\\\logs")]
    [None, None, None, None]
    """
    if _SCHEME.match(text):
        return text.rstrip("/")
    if text == "localhost" or text.startswith("localhost/") or _HOST_AND_PORT.fullmatch(text):
        return f"http://{text}".rstrip("/")
    return None


def with_port(address: str, port: int) -> str:
    """The same host under another port.

    >>> with_port("http://example.org:8080", 8008)
    'http://example.org:8008'
    """
    parts = urlsplit(address)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
