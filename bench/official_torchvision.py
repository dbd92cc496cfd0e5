"""The few of torchvision's names that transformers' example scripts use, for machines without torchvision.

`official_vision.py` copies this file into a folder of the name torchvision. Images of Pillow become tensors at the
first transform, and random transforms draw from torch's generator, as torchvision's do; pixels are not the same to the
last bit, but both runs of a comparison get these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy
import torch
from PIL import Image
from torch import Tensor, nn


class InterpolationMode(Enum):
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class ImageReadMode(Enum):
    RGB = "RGB"


def read_image(path: str, mode: ImageReadMode = ImageReadMode.RGB) -> Tensor:
    """Return the file's pixels: channels, rows, columns, in whole numbers up to 255."""
    with Image.open(path) as image:
        return pixels(image.convert(mode.value))


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()


def box_convert(boxes: Tensor, in_fmt: str, out_fmt: str) -> Tensor:
    """Turn boxes of one form into corners, or corners into left, top, width, height."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if in_fmt == out_fmt:
        return boxes
    if (in_fmt, out_fmt) == ("xyxy", "xywh"):
        return torch.cat([first, second - first], -1)
    if (in_fmt, out_fmt) == ("xywh", "xyxy"):
        return torch.cat([first, first + second], -1)
    if (in_fmt, out_fmt) == ("cxcywh", "xyxy"):
        return torch.cat([first - second / 2, first + second / 2], -1)
    raise ValueError(f"this stand-in for torchvision does not turn {in_fmt} into {out_fmt}")


class OfTensors(nn.Module):
    """A transform that makes a tensor of an image first. `forward` sees tensors only, so that `jit.script` takes it."""

    def __call__(self, image: Any) -> Tensor:
        return super().__call__(image if isinstance(image, Tensor) else pixels(image))


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Lambda:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)


def resized(image: Tensor, size: list[int], mode: str) -> Tensor:
    return nn.functional.interpolate(image[None], size=size, mode=mode, antialias=True)[0]


class Resize(OfTensors):
    """To a height and width, or one number for the shorter side."""

    def __init__(self, size: Any, interpolation: InterpolationMode = InterpolationMode.BILINEAR) -> None:
        super().__init__()
        self.size: list[int] = [size] if isinstance(size, int) else list(size)
        self.mode: str = interpolation.value

    def forward(self, image: Tensor) -> Tensor:
        size = self.size
        if len(size) == 1:
            height, width = image.shape[-2], image.shape[-1]
            shorter = min(height, width)
            size = [height * size[0] // shorter, width * size[0] // shorter]
        return resized(image, size, self.mode)


class CenterCrop(OfTensors):
    def __init__(self, size: Any) -> None:
        super().__init__()
        self.height, self.width = (size, size) if isinstance(size, int) else size

    def forward(self, image: Tensor) -> Tensor:
        top, left = (image.shape[-2] - self.height) // 2, (image.shape[-1] - self.width) // 2
        return image[..., top : top + self.height, left : left + self.width]


class RandomResizedCrop(OfTensors):
    """A window of a random share of the image, of a random form, brought to one size."""

    def __init__(
        self,
        size: Any,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: InterpolationMode = InterpolationMode.BILINEAR,
    ) -> None:
        super().__init__()
        self.size = [size, size] if isinstance(size, int) else list(size)
        self.scale, self.ratio, self.mode = scale, ratio, interpolation.value

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        area = height * width * torch.empty(()).uniform_(*self.scale).item()
        form = torch.empty(()).uniform_(*self.ratio).item()
        rows, columns = (
            min(height, max(1, round((area / form) ** 0.5))),
            min(width, max(1, round((area * form) ** 0.5))),
        )
        top, left = int(torch.randint(height - rows + 1, ())), int(torch.randint(width - columns + 1, ()))
        return resized(image[..., top : top + rows, left : left + columns], self.size, self.mode)


class RandomHorizontalFlip(OfTensors):
    def forward(self, image: Tensor) -> Tensor:
        return image.flip(-1) if torch.rand(()) < 0.5 else image


class ConvertImageDtype(OfTensors):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()

    def forward(self, image: Tensor) -> Tensor:
        return image.float() / 255


class ToTensor(ConvertImageDtype):
    pass


class Normalize(OfTensors):
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def forward(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std
