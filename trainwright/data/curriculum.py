"""Curriculum: one training over several datasets, one after the other.

The whole run is one order over all of them, a function of the seed, so a resumed run goes on exactly where it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import ConcatDataset

from trainwright.config.warnings import TrainwrightWarning
from trainwright.data.order import Order, RandomOrder, SequentialOrder, mixed_seed


@dataclass(frozen=True)
class Stage:
    """A dataset, and for how many optimizer steps it is trained on."""

    dataset: Any
    steps: int
    shuffle: bool = True


class Curriculum:
    """Datasets with a share of the training each; pass it as ``train_dataset``, with ``max_steps``."""

    def __init__(self) -> None:
        self._datasets: list[Any] = []
        self._shuffles: list[bool] = []

    def _add(self, dataset: Any, dataloader_kwargs: dict[str, Any] | None) -> None:
        options = dict(dataloader_kwargs or {})
        shuffle = bool(options.pop("shuffle", True))
        if options:
            raise ValueError(
                f"dataloader_kwargs has {sorted(options)}; of a stage of a curriculum only 'shuffle' can be set, the "
                "rest holds for the whole training."
            )
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ValueError(f"A curriculum needs datasets with a length; {type(dataset).__name__} has none.")
        if len(dataset) == 0:
            raise ValueError("A stage of the curriculum has an empty dataset.")
        self._datasets.append(dataset)
        self._shuffles.append(shuffle)

    def __len__(self) -> int:
        return len(self._datasets)

    def _steps(self, max_steps: int) -> list[int]:
        """Steps of each stage of a training of ``max_steps``."""
        raise NotImplementedError

    def stages(self, max_steps: int) -> list[Stage]:
        """The stages of a training of ``max_steps``; they fill it exactly."""
        if not self._datasets:
            raise ValueError("The curriculum is empty: add() datasets to it.")
        if max_steps <= 0:
            raise ValueError("A curriculum needs max_steps, which its stages share.")
        steps = self._steps(max_steps)
        if sum(steps) != max_steps:
            raise ValueError(
                f"The stages of the curriculum take {sum(steps)} steps ({', '.join(map(str, steps))}) and max_steps is "
                f"{max_steps}: they must be the same; -1 gives the last stage what is left."
            )
        return [Stage(*parts) for parts in zip(self._datasets, steps, self._shuffles, strict=True)]


class StepsCurriculum(Curriculum):
    """Stages by optimizer steps; -1 for the last takes the rest.

    >>> curriculum = StepsCurriculum()
    >>> curriculum.add([1, 2], steps=3)
    >>> curriculum.add([3, 4, 5], steps=-1)
    >>> [stage.steps for stage in curriculum.stages(10)]
    [3, 7]
    """

    def __init__(self) -> None:
        super().__init__()
        self._given: list[int] = []

    def add(self, dataset: object, steps: int, dataloader_kwargs: dict[str, Any] | None = None) -> None:
        """A further stage."""
        if steps == 0 or steps < -1:
            raise ValueError(f"steps={steps} must be positive, or -1 for what is left.")
        self._add(dataset, dataloader_kwargs)
        self._given.append(steps)

    def _steps(self, max_steps: int) -> list[int]:
        return _with_rest(self._given, max_steps)


class RatioCurriculum(Curriculum):
    """Stages by their share of ``max_steps``; -1 for the last takes the rest, and warns where nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[float] = []

    def add(self, dataset: object, ratio: float, dataloader_kwargs: dict[str, Any] | None = None) -> None:
        """A further stage."""
        if ratio != -1 and not 0 < ratio <= 1:
            raise ValueError(f"ratio={ratio} must lie between 0 and 1, or be -1 for what is left.")
        if sum(share for share in self._given if share > 0) + max(ratio, 0) > 1 + 1e-9:
            raise ValueError("The ratios of a curriculum must not add up to more than 1.")
        self._add(dataset, dataloader_kwargs)
        self._given.append(ratio)

    def _steps(self, max_steps: int) -> list[int]:
        if -1 in self._given:
            before, last = self._given[:-1], self._given[-1]
            if last == -1 and -1 not in before and abs(sum(before) - 1) < 1e-9:
                warnings.warn(
                    "The last stage of the curriculum, -1, is left out: the ratios of the others add up to 1.",
                    TrainwrightWarning,
                    stacklevel=2,
                )
                return [*self._rounded(before, max_steps), 0]
            return self._noted(_with_rest([-1 if r == -1 else round(r * max_steps) for r in self._given], max_steps))
        return self._noted(self._rounded(self._given, max_steps))

    def _noted(self, steps: list[int]) -> list[int]:
        """Say which stages get no step, because their share of so few is less than half of one."""
        for place, (ratio, count) in enumerate(zip(self._given, steps, strict=True)):
            if count == 0:
                warnings.warn(
                    f"Stage {place} of the curriculum (ratio={ratio}) is left out: of {sum(steps)} steps that is none.",
                    TrainwrightWarning,
                    stacklevel=3,
                )
        return steps

    @staticmethod
    def _rounded(shares: Sequence[float], max_steps: int) -> list[int]:
        # Boundaries are rounded, not lengths, so that rounding does not add up.
        ends = [round(sum(shares[: place + 1]) * max_steps) for place in range(len(shares))]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class RangeCurriculum(Curriculum):
    """Stages by ranges of optimizer steps, each beginning where the one before ends."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[range] = []

    def add(self, dataset: object, range: range, dataloader_kwargs: dict[str, Any] | None = None) -> None:
        """A further stage."""
        start = self._given[-1].stop if self._given else 0
        if range.start != start or range.stop <= range.start or range.step != 1:
            raise ValueError(f"{range!r} must begin at {start}, where the stage before it ends, and not be empty.")
        self._add(dataset, dataloader_kwargs)
        self._given.append(range)

    def _steps(self, max_steps: int) -> list[int]:
        return [len(steps) for steps in self._given]


def _with_rest(steps: Sequence[int], max_steps: int) -> list[int]:
    if -1 in steps[:-1]:
        raise ValueError("-1, what is left, is for the last stage of a curriculum.")
    given = list(steps)
    if given[-1] == -1:
        given[-1] = max_steps - sum(given[:-1])
    if given[-1] <= 0:
        raise ValueError(f"The stages of the curriculum leave no step of {max_steps} for the last one.")
    return given


class CurriculumOrder(Order):
    """All samples of a training, stage after stage; a stage passes over its dataset as often as it takes.

    Args:
        stages: Datasets and steps.
        samples_per_step: Of all processes together.
        seed: Of the data.
    """

    def __init__(self, stages: Sequence[Stage], samples_per_step: int, seed: int) -> None:
        super().__init__(sum(stage.steps for stage in stages) * samples_per_step)
        self._stages, self._samples_per_step, self._seed = stages, samples_per_step, seed

    def indices(self) -> list[int]:
        found: list[int] = []
        start = 0
        for number, stage in enumerate(self._stages):
            wanted = len(found) + stage.steps * self._samples_per_step
            size, passes = len(stage.dataset), 0
            while len(found) < wanted:
                seed = mixed_seed(self._seed, self.epoch, number, passes) % 2**31
                one_pass: Order = RandomOrder(size, seed) if stage.shuffle else SequentialOrder(size)
                found += [start + index for index in one_pass.indices()][: wanted - len(found)]
                passes += 1
            start += size
        return found


def joined(stages: Sequence[Stage]) -> ConcatDataset[Any]:
    """The datasets of all stages as one."""
    return ConcatDataset([stage.dataset for stage in stages])
