"""The study on disk: which trials there are, who works on them, and what came out."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.checkpoint.lock_file import LockFile
from trainwright.config.errors import ConfigError
from trainwright.experiment.stored import differences
from trainwright.search.plan import Plan
from trainwright.trainer.seeded_sampler import seeded_sampler

#: Attributes of a trial in the study.
CHOSEN, MEASURED, PARENT, REASON, KIND = "chosen", "measured", "parent", "reason", "kind"
PLANNED = "planned"
_PATIENCE_SECONDS = 60.0
_LOCK, _CLAIM = "study.lock", "worker.lock"
#: Of a grid each number is a point; otherwise so many models in a row may be beyond the limits.
MOST_IN_VAIN = 500
_ALL_IMPOSSIBLE = 10


class Ending(NamedTuple):
    """How a trial ended."""

    #: done, pruned (it went nowhere), diverged, failed, over a limit, or impossible (no model can be made of it).
    kind: str
    values: list[float] | None = None
    reason: str | None = None


#: Kinds that were trained, and so count among the trials that were asked for.
COUNTED = ("done", "pruned", "diverged", "failed")


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("A search needs the package optuna: pip install 'trainwright[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(plan: Plan) -> Any:
    """The study in the plan's folder, made if it is not there; one that was made for something else is refused."""
    optuna = import_optuna()
    several = len(plan.goals) > 1
    directions = [goal.direction for goal in plan.goals]
    with warnings.catch_warnings():
        # Of experimental parts, which are the user's no concern.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            study_name=plan.name,
            storage=_storage(optuna, plan),
            sampler=_sampler(optuna, plan),
            pruner=_pruner(optuna, plan),
            load_if_exists=True,
            **({"directions": directions} if several else {"direction": directions[0]}),
        )
    planned = study.user_attrs.get(PLANNED)
    now = json.loads(json.dumps(plan.document(), default=str))
    if planned is None:
        study.set_user_attr(PLANNED, now)
    elif planned != now:
        if any(plan.folder.glob("trial-*/checkpoint-*")) or any(
            kind_of(trial) in COUNTED for trial in study.get_trials(deepcopy=False)
        ):
            _refuse_another(plan, planned, now)
        # Nothing has come of it yet: whoever began it has mended something.
        optuna.delete_study(study_name=plan.name, storage=study._storage)
        for folder in plan.folder.glob("trial-[0-9][0-9][0-9][0-9]"):
            shutil.rmtree(folder)
        return open_study(plan)
    return study


def _refuse_another(plan: Plan, before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = ", ".join(
        f"{name} ({_short(old)} then, {_short(new)} now)" for name, old, new in differences(before, now)[:4]
    )
    raise ConfigError(
        f"{plan.folder} holds a study of something else: {changed}. Set it back, or begin another: --fresh, or another "
        "name: in the experiment."
    )


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _storage(optuna: Any, plan: Plan) -> Any:
    if plan.storage == "journal":
        backend = optuna.storages.journal.JournalFileBackend
        return optuna.storages.JournalStorage(backend(str(plan.folder / "study.journal")))
    # Several workers write: each waits for the others.
    options = {"connect_args": {"timeout": _PATIENCE_SECONDS}}
    return optuna.storages.RDBStorage(f"sqlite:///{(plan.folder / 'study.db').absolute()}", engine_kwargs=options)


def _sampler(optuna: Any, plan: Plan) -> Any:
    samplers = optuna.samplers
    if plan.method == "nsga2":
        size = max(4, min(50, plan.trials // 5))
        return seeded_sampler(lambda seed: samplers.NSGAIISampler(population_size=size, seed=seed), plan.seed)
    if plan.method == "tpe":
        return seeded_sampler(lambda seed: samplers.TPESampler(seed=seed), plan.seed)
    return seeded_sampler(lambda seed: samplers.RandomSampler(seed=seed), plan.seed)


def _pruner(optuna: Any, plan: Plan) -> Any:
    if plan.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
    return optuna.pruners.HyperbandPruner() if plan.pruner == "hyperband" else optuna.pruners.NopPruner()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else chooses or settles trials meanwhile."""
    lock = LockFile(folder / _LOCK, uuid.uuid4().hex)
    lock.open()
    try:
        while not lock.take():
            time.sleep(0.02)
        yield
    finally:
        lock.close()


class Claim:
    """The right to work on a trial; the system ends it with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = LockFile(folder / _CLAIM, uuid.uuid4().hex)
        self._lock.open()

    def take(self) -> bool:
        """Return True where nobody else works on it."""
        return self._lock.take()

    def release(self) -> None:
        self._lock.close()


class Work(NamedTuple):
    """A trial that is this worker's to train."""

    number: int
    trial: Any
    chosen: dict[str, Any]
    claim: Claim


def next_work(plan: Plan, study: Any, *, may_begin: bool) -> Work | None:
    """A trial that its worker has left, or a new one; None where nothing is left to begin.

    Within :func:`alone`.
    """
    optuna = import_optuna()
    trials = study.get_trials(deepcopy=False)
    for frozen in trials:
        if frozen.state == optuna.trial.TrialState.RUNNING:
            claim = Claim(plan.trial_folder(frozen.number))
            if claim.take():
                return _begun(plan, optuna.trial.Trial(study, frozen._trial_id), claim)
            claim.release()
    if not may_begin or begun(trials) >= plan.trials:
        return None
    refuse_hopeless(plan, trials)
    if plan.method == "grid":
        points = plan.space.grid()
        if len(trials) >= len(points):
            return None
        point = {name: plan.space.label(name, value) for name, value in points[len(trials)].items()}
        study.enqueue_trial(point)
    trial = study.ask()
    claim = Claim(plan.trial_folder(trial.number))
    claim.take()
    return _begun(plan, trial, claim)


def _begun(plan: Plan, trial: Any, claim: Claim) -> Work:
    """Choose once: a worker that takes it up later finds the same values."""
    kept = trial.user_attrs.get(CHOSEN)
    chosen = dict(kept) if kept is not None else plan.space.suggest(trial)
    if kept is None:
        trial.set_user_attr(CHOSEN, chosen)
    return Work(trial.number, trial, chosen, claim)


def kind_of(trial: Any) -> str:
    """How it ended, or running."""
    return str(trial.user_attrs.get(KIND, "running")) if trial.state.is_finished() else "running"


def begun(trials: list[Any]) -> int:
    """Trials that count: trained, or being trained."""
    return sum(kind_of(trial) in (*COUNTED, "running") for trial in trials)


def refuse_hopeless(plan: Plan, trials: list[Any]) -> None:
    """What cannot come to an end, or has failed from the start."""
    kinds = [kind_of(trial) for trial in trials]
    if len(kinds) >= MOST_IN_VAIN and not any(kind in (*COUNTED, "running") for kind in kinds[-MOST_IN_VAIN:]):
        reason = trials[-1].user_attrs.get(REASON, "")
        raise ConfigError(
            f"{MOST_IN_VAIN} models in a row could not be tried, the last one because {reason}. Raise search.limits, "
            "or change search.space."
        )
    if len(kinds) >= _ALL_IMPOSSIBLE and all(kind == "impossible" for kind in kinds):
        raise ConfigError(
            f"None of {len(kinds)} models could be made; the last one: {trials[-1].user_attrs.get(REASON)}"
        )
    if len(kinds) >= 3 and all(kind == "failed" for kind in kinds):
        raise ConfigError(
            f"The first {len(kinds)} trials all failed, the last one with {trials[-1].user_attrs.get(REASON, '')}. Its "
            f"events are in {plan.trial_folder(trials[-1].number)}."
        )


def settle(study: Any, work: Work, ending: Ending) -> None:
    """Tell the study how a trial ended. Within :func:`alone`."""
    states = import_optuna().trial.TrialState
    work.trial.set_user_attr(KIND, ending.kind)
    if ending.reason is not None:
        work.trial.set_user_attr(REASON, ending.reason)
    if ending.kind == "done":
        study.tell(work.number, ending.values)
    else:
        # The samplers learn from those that went nowhere, and not from those that failed.
        state = states.FAIL if ending.kind in ("failed", "impossible") else states.PRUNED
        study.tell(work.number, state=state)
    work.claim.release()


def best_numbers(study: Any) -> list[int]:
    """The best trial, or with several metrics those that no other beats in all; none before one is done."""
    states = import_optuna().trial.TrialState
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state == states.COMPLETE]
    if not done:
        return []
    if len(study.directions) > 1:
        return sorted(trial.number for trial in study.best_trials)
    sign = 1 if study.direction == import_optuna().study.StudyDirection.MINIMIZE else -1
    # Of equals the first.
    return [min(done, key=lambda trial: (sign * trial.value, trial.number)).number]
