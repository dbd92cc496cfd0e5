"""One model from several checkpoints of a run: ``trainwright soup``."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainwright.checkpoint.directory import list_checkpoints
from trainwright.checkpoint.durable import discard, publish, staging_of
from trainwright.checkpoint.manifest import holds, verify
from trainwright.checkpoint.weights import load_weights, save_weights
from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.config.warnings import TrainwrightWarning
from trainwright.config.yaml12 import read_yaml_file, write_yaml
from trainwright.core.fsync import force_folder
from trainwright.engines.torch.ensembles.averaging import average_of, normalizations, take_statistics
from trainwright.engines.torch.ensembles.ensemble import Ensemble
from trainwright.engines.torch.targets import unwrap
from trainwright.experiment.building import Built, build_trained, rows_of, training_rows
from trainwright.experiment.exporting import BESIDES, copy_besides, refuse_existing
from trainwright.experiment.measures import less_is_better
from trainwright.experiment.running import evaluate, find_run
from trainwright.experiment.stored import EXPERIMENT, PREPROCESSING, stored_facts
from trainwright.training.recipe_folder import RECIPE

KINDS = ("uniform", "greedy", "snapshots")
SOUP = "soup.json"
State = dict[str, Tensor]


@dataclass(frozen=True)
class Soup:
    """A model that was made of several checkpoints."""

    folder: Path
    #: Names of the checkpoints that are in it.
    ingredients: list[str]
    #: What an evaluation says of it; empty where there is no data to evaluate on.
    metrics: dict[str, float] = field(default_factory=dict)
    #: What was said of each checkpoint alone, where they were chosen by it.
    alone: dict[str, float] = field(default_factory=dict)


def soup(
    run: str | Path,
    *,
    how: str = "uniform",
    checkpoints: Sequence[str] | None = None,
    metric: str | None = None,
    data: str | None = None,
    output: str | Path | None = None,
    trust: bool = False,
) -> Soup:
    """Make one model of checkpoints of a run, in a folder that is evaluated, asked and exported like a run.

    Args:
        run: The folder of the run.
        how: ``uniform`` averages the weights of all; ``greedy`` begins with the best and takes in each that does no
            harm; ``snapshots`` makes an ensemble of them.
        checkpoints: Their names; by default all that the run has.
        metric: What ``greedy`` chooses by; by default that by which the run's best model is known, else loss.
        data: A file to choose and evaluate by, in place of the run's evaluation data.
        output: The folder to write; by default beside the run's.
        trust: Let code run that the experiment names.

    Every checkpoint is verified first. Statistics of batch normalization are taken anew, from the training data.

    >>> soup("runs/none-there")
    Traceback (most recent call last):
    trainwright.config.errors.ConfigError: runs/none-there cannot be read: No such file or directory.
    """
    if how not in KINDS:
        raise ConfigError(f"how={how!r} should be one of {', '.join(KINDS)}.")
    if metric is not None and how != "greedy":
        raise ConfigError(f"A metric chooses checkpoints where how is greedy, and it is {how}: leave it out.")
    loaded, folder = find_run(Path(run), [], trust=trust)
    target = folder.parent / f"{folder.name}-{how}" if output is None else Path(output)
    refuse_existing(target)
    chosen = _ingredients(folder, checkpoints)
    if how == "snapshots" and loaded.experiment.model.ensemble is not None:
        raise ConfigError(f"{folder} is an ensemble already: average its checkpoints, how=uniform or greedy.")
    _say_what_is_not_fitted(loaded)
    kitchen = _Kitchen(build_trained(loaded, chosen[-1], stored_facts(folder)), data)
    alone: dict[str, float] = {}
    if how == "greedy":
        chosen, alone = kitchen.greedy(chosen, metric)
    elif how == "uniform":
        kitchen.serve(chosen)
    draft = staging_of(target)
    discard(draft)
    draft.mkdir(parents=True)
    model = kitchen.snapshots(chosen) if how == "snapshots" else kitchen.model
    _write(model, folder, draft, target.name, members=len(chosen) if how == "snapshots" else None)
    names = [path.name for path in chosen]
    said = {"how": how, "run": folder.name, "checkpoints": names, "alone": alone}
    (draft / SOUP).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    force_folder(draft)
    publish(draft, target)
    has_data = data is not None or kitchen.rows is not None
    return Soup(target, names, evaluate(target, data=data, trust=trust) if has_data else {}, alone)


def _say_what_is_not_fitted(loaded: Loaded) -> None:
    section = loaded.experiment.model.ensemble
    if section is not None and (section.calibrate or section.predict == "stacked"):
        warnings.warn(
            "Temperature and shares of the members are not fitted to the averaged weights; calibrate() in Python does.",
            TrainwrightWarning,
            stacklevel=3,
        )


def _ingredients(folder: Path, names: Sequence[str] | None) -> list[Path]:
    """Checkpoints of the run, each as it was written."""
    there = {path.name: path for path in list_checkpoints(folder)}
    if unknown := [name for name in names or () if name not in there]:
        raise ConfigError(f"{folder} has no {unknown[0]}; there are {', '.join(there) or 'none'}.")
    chosen = [path for name, path in there.items() if names is None or name in names]
    if len(chosen) < 2:
        raise ConfigError(
            f"{folder} has {len(chosen)} checkpoint(s) to use, and it takes two: train with "
            "checkpoint.save_total_limit=8, so that more are kept."
        )
    for path in chosen:
        try:
            verify(path)
        except ValueError as error:
            raise ConfigError(f"{error} Name those to use: --checkpoint checkpoint-N.") from None
        if holds(path, RECIPE):
            raise ConfigError(f"{path} was pruned or quantized by a recipe, whose zeros and scales are not averaged.")
    return chosen


class _Kitchen:
    """A model that takes one mixture of weights after the other, and what they are judged by."""

    def __init__(self, built: Built, data: str | None) -> None:
        self.built, self.model = built, unwrap(built.prepared.model)
        train, evaluation = training_rows(built.loaded, built.args)
        self._train = built.prepared.encode(train) if normalizations(self.model) else None
        rows = rows_of(built.loaded, "test", name=data) if data is not None else evaluation
        self.rows = None if rows is None else built.prepared.encode(rows)

    def state_of(self, checkpoint: Path) -> State:
        load_weights(self.model, checkpoint)
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def serve(self, checkpoints: Sequence[Path]) -> None:
        """Put the average of checkpoints into the model, with statistics of its own."""
        self.model.load_state_dict(average_of([self.state_of(path) for path in checkpoints]))
        if self._train is not None and len(checkpoints) > 1:
            take_statistics(self.model, self._batches())

    def _batches(self) -> Iterator[Any]:
        loader = self.built.trainer.get_test_dataloader(self._train)
        return (self.built.trainer._prepare_inputs(batch) for batch in loader)

    def greedy(self, checkpoints: Sequence[Path], metric: str | None) -> tuple[list[Path], dict[str, float]]:
        """The best checkpoint, and each further one that makes the average no worse; the model holds the result."""
        if self.rows is None:
            raise ConfigError("greedy chooses by an evaluation, and there is no data for it: add --data FILE.")
        args = self.built.args
        own = (args.metric_for_best_model or "loss").removeprefix("eval_")
        name = own if metric is None else metric.removeprefix("eval_")
        is_less = less_is_better(name) or (name == own and args.greater_is_better is False)
        sign = -1.0 if is_less else 1.0
        alone = {path: self._judged([path], name) for path in checkpoints}
        ranked = sorted(checkpoints, key=lambda path: -sign * alone[path])
        kept, best = ranked[:1], sign * alone[ranked[0]]
        for path in ranked[1:]:
            value = sign * self._judged([*kept, path], name)
            if value >= best:
                kept, best = [*kept, path], value
        self.serve(kept)
        return kept, {path.name: value for path, value in alone.items()}

    def _judged(self, checkpoints: Sequence[Path], metric: str) -> float:
        self.serve(checkpoints)
        found = self.built.trainer.evaluate(self.rows)
        if f"eval_{metric}" not in found:
            known = ", ".join(sorted(key.removeprefix("eval_") for key in found if key.startswith("eval_")))
            raise ConfigError(f"There is no metric {metric!r} to choose by: an evaluation gives {known}.")
        return found[f"eval_{metric}"]

    def snapshots(self, checkpoints: Sequence[Path]) -> nn.Module:
        members = []
        for path in checkpoints:
            load_weights(self.model, path)
            members.append(copy.deepcopy(self.model))
        try:
            return Ensemble(members, seed=self.built.args.seed)
        except ValueError as error:
            raise ConfigError(str(error)) from error


def _write(model: nn.Module, run: Path, draft: Path, name: str, members: int | None) -> None:
    """The folder of a run with this model: its experiment, what was found out about its data, and the weights."""
    save_weights(model.cpu(), draft)
    document: dict[str, Any] = dict(read_yaml_file(run / EXPERIMENT).data)
    document["name"] = name
    if members is not None:
        document["model"] = {**document["model"], "ensemble": {"members": members}}
    header = f"# A model made of checkpoints of {run.name}: {SOUP} names them.\n"
    (draft / EXPERIMENT).write_text(header + write_yaml(document), encoding="utf-8")
    copy_besides(run, (PREPROCESSING, *BESIDES), draft)
