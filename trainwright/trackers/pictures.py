"""Pictures as files: every service takes those, and what each makes of an array differs."""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

#: Channels -> PNG's colour type.
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}


def png(image: object) -> bytes:
    """An array of bytes, height x width or height x width x (1 to 4), as a PNG file.

    >>> png(np.zeros((2, 3), dtype=np.uint8))[:4]
    b'\\x89PNG'
    """
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in _COLOURS:
        raise ValueError(
            f"An image is a path, or an array of uint8 of height x width or height x width x (1 to 4), not "
            f"{pixels.dtype} of shape {np.asarray(image).shape}."
        )
    height, width, channels = pixels.shape
    # Each line begins with its filter: none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture_bytes(image: object) -> bytes:
    """The file that ``image`` is, or would be."""
    return Path(image).read_bytes() if isinstance(image, (str, Path)) else png(image)


@contextmanager
def picture_file(image: object) -> Iterator[Path]:
    """A file with the picture: the one given, or one that is gone afterwards."""
    if isinstance(image, (str, Path)):
        yield Path(image)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image.png"
        file.write_bytes(png(image))
        yield file


def file_name(name: str, step: int) -> str:
    """A name for the picture of one step, whatever its own name holds.

    >>> file_name("eval/sample 1", 20)
    'eval_sample_1-20.png'
    """
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name) + f"-{step}.png"
