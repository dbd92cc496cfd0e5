"""Images and sounds that a table names, or a dataset holds: read when they are asked for."""

from __future__ import annotations

import math
import wave
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainwright.config.errors import ConfigError
from trainwright.config.extras import install, is_installed
from trainwright.config.origin import class_if_imported
from trainwright.experiment.sources import IMAGE_FILES
from trainwright.experiment.tasks.base import MissingValues, is_missing

SOUND_FILES = (".wav", ".flac", ".ogg", ".mp3")
#: Full scale of whole numbers of so many bytes.
_FULL_SCALE = {1: 2.0**7, 2: 2.0**15, 3: 2.0**23, 4: 2.0**31}


def with_whole_paths(rows: Any, folder: Path) -> Any:
    """``rows`` with names of files made absolute: in a table they stand as they are seen from its folder."""
    if not len(rows):
        return rows
    sample = row_of(rows, 0)
    named = [key for key, value in sample.items() if _is_file(value, folder)] if isinstance(sample, dict) else []
    if not named or not hasattr(rows, "map"):
        return rows
    return rows.map(_absolute, batched=True, fn_kwargs={"columns": named, "folder": str(folder)})


def _absolute(batch: dict[str, list[Any]], columns: list[str], folder: str) -> dict[str, list[Any]]:
    return {name: [None if one is None else str(Path(folder) / one) for one in batch[name]] for name in columns}


def _is_file(value: object, folder: Path) -> bool:
    return (
        isinstance(value, str)
        and value.lower().endswith((*IMAGE_FILES, *SOUND_FILES))
        and not Path(value).is_absolute()
        and (folder / value).is_file()
    )


def row_of(rows: Any, index: int) -> Any:
    """A row, of which ``datasets`` may read the image now; one that cannot be read is named."""
    try:
        return rows[index]
    except OSError as error:
        if not isinstance(error, class_if_imported("PIL", "UnidentifiedImageError")):
            raise
        # Which says the name of the file.
        raise ConfigError(f"data: row {index} cannot be read: {error}. Mend the file, or take it out.") from error


def read_image(value: Any, where: str) -> Any:
    """The image as PIL has it, in red, green and blue: of a file's name, or what ``datasets`` has read."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(value, Image.Image):
        return value.convert("RGB")
    if not isinstance(value, str):
        raise ValueError(f"{where} has {_shown(value)}, and no image or name of a file.")
    try:
        with Image.open(value) as opened:
            # As the camera was held.
            return ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(f"{where}: the image {value} cannot be read: {error}") from error


def read_sound(value: Any, rate: int, where: str) -> Tensor:
    """One channel at ``rate`` samples a second, about -1..1: of a file's name, or what ``datasets`` has read."""
    if isinstance(value, str):
        heard, its_rate = _read_file(value, where)
    else:
        try:
            heard, its_rate = np.asarray(value["array"], dtype=np.float32), int(value["sampling_rate"])
        except (TypeError, KeyError, IndexError, ValueError):
            raise ValueError(f"{where} has {_shown(value)}, and no sound or name of a file.") from None
        heard = heard if heard.ndim == 1 else heard.mean(0)
    if not len(heard):
        raise ValueError(f"{where}: the sound is empty.")
    return torch.from_numpy(np.ascontiguousarray(_at_rate(heard, its_rate, rate, where), dtype=np.float32))


def _read_file(name: str, where: str) -> tuple[np.ndarray, int]:
    try:
        if name.lower().endswith(".wav"):
            try:
                return _read_wave(name)
            except (wave.Error, EOFError):
                # Numbers with a point, say; the library below knows more of them.
                if not is_installed("soundfile"):
                    raise
        if not is_installed("soundfile"):
            raise ValueError(f"sounds other than plain WAV are read by the package soundfile: {install('soundfile')}")
        import soundfile

        heard, rate = soundfile.read(name, dtype="float32", always_2d=True)
        return heard.mean(1), rate
    except (OSError, RuntimeError, EOFError, wave.Error, ValueError) as error:
        raise ValueError(f"{where}: the sound {name} cannot be read: {error or 'it ends too early'}") from error


def _read_wave(name: str) -> tuple[np.ndarray, int]:
    with wave.open(name, "rb") as opened:
        width, channels, rate = opened.getsampwidth(), opened.getnchannels(), opened.getframerate()
        data = opened.readframes(opened.getnframes())
    if width == 3:
        # The sign is in the highest of the three bytes.
        parts = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3).astype(np.int32)
        numbers = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
    else:
        # Single bytes have no sign.
        kind = {1: np.dtype("u1"), 2: np.dtype("<i2"), 4: np.dtype("<i4")}[width]
        numbers = np.frombuffer(data, dtype=kind).astype(np.int64) - (128 if width == 1 else 0)
    return (numbers / _FULL_SCALE[width]).reshape(-1, channels).mean(1).astype(np.float32), rate


def _at_rate(heard: np.ndarray, its_rate: int, rate: int, where: str) -> np.ndarray:
    if its_rate == rate:
        return heard
    if not is_installed("scipy"):
        raise ValueError(
            f"{where}: the sound has {its_rate} samples a second and the model hears {rate}; they are converted by the "
            f"package scipy: {install('scipy')}"
        )
    from scipy.signal import resample_poly

    shared = math.gcd(its_rate, rate)
    return resample_poly(heard, rate // shared, its_rate // shared)


def _shown(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def expect_something(values: Iterable[Any], column: str) -> None:
    """No row may be without a value."""
    missing = sum(value is None for value in values)
    if missing:
        raise MissingValues(column, f"{missing} rows have nothing in {column!r}", is_missing)


def varied_image(image: Any) -> Any:
    """A crop of 80 to 100 % of both sides, a little brighter or darker; drawn from torch's generator."""
    from PIL import ImageEnhance

    share, left, top, light = torch.rand(4).tolist()
    share = 0.8 + 0.2 * share
    width, height = max(1, round(image.width * share)), max(1, round(image.height * share))
    x, y = round(left * (image.width - width)), round(top * (image.height - height))
    return ImageEnhance.Brightness(image.crop((x, y, x + width, y + height))).enhance(0.8 + 0.4 * light)


def varied_sound(sound: Tensor, rate: int) -> Tensor:
    """Up to 6 dB louder or softer, and up to a twentieth of a second earlier or later; from torch's generator."""
    loudness, shift = (torch.rand(2) * 2 - 1).tolist()
    moved = torch.roll(sound, places := round(shift * rate / 20))
    # What went out at one end does not come in at the other.
    if places > 0:
        moved[:places] = 0
    elif places < 0:
        moved[places:] = 0
    return moved * 10 ** (loudness * 6 / 20)
