"""Mistakes that would show only at the first evaluation, or after a resume, found before the first step."""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

from trainwright.checkpoint.left_out import LeftOut
from trainwright.checkpoint.optimizer_state import flatten_optimizer
from trainwright.core.errors import MissingMetricError, NotMetricsError
from trainwright.data.own_data import may_ask_the_clock, unknown_in
from trainwright.data.position import LastBatch, starts_by_index
from trainwright.data.seeding import MapFetch
from trainwright.engines.torch.ema import EMACallback
from trainwright.loop.fit import best_metric_key
from trainwright.training.hooks import is_users_own
from trainwright.training.optimizers import optimizer_parameter_names
from trainwright.training.random_state import random_now, restore_random_state, watch_generators
from trainwright.training.run import TrainingRun
from trainwright.training.save import may_save_unasked
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


#: Where generators are that are drawn from in every step.
_DRAWING = ("model", "compute_loss_func", "optimizer", "trainer.", "teacher ")


def refuse_unknown_best_metric(setup: Setup) -> None:
    """Raise if no evaluation will produce ``metric_for_best_model``, which HF notices only after the first one."""
    args = setup.args
    if args.metric_for_best_model is None or args.eval_strategy == "no":
        return
    decides = ("evaluate", "evaluation_loop", "_evaluate", "_determine_best_metric")
    if any(is_users_own(setup.hooks(), name) for name in decides):
        return
    wanted = best_metric_key(args)
    sets = setup.eval_dataset
    names = [f"eval_{name}" for name in sets] if isinstance(sets, dict) else ["eval"]
    if wanted in {f"{name}_loss" for name in names}:
        return
    if setup.compute_metrics is None and setup.module is None:
        raise MissingMetricError(wanted, [f"{name}_loss" for name in names])
    prefix = max((name for name in names if wanted.startswith(f"{name}_")), key=len, default=None)
    if prefix is None:
        raise MissingMetricError(wanted, [f"{name}_<metric>" for name in names])
    produced = _metrics_of_one_batch(setup, prefix)
    if produced is not None and wanted not in produced:
        raise MissingMetricError(wanted, produced)


def _metrics_of_one_batch(setup: Setup, prefix: str) -> list[str] | None:
    """Names that ``compute_metrics`` gives for a first batch; None if it cannot work on so little."""
    chosen = prefix.removeprefix("eval_") if isinstance(setup.eval_dataset, dict) else None
    watch_generators(setup)
    before = random_now(setup)
    setup.evaluation.is_trial = True
    try:
        loader = setup.hooks().get_eval_dataloader(setup.eval_dataset if chosen is None else chosen)
        output = setup.hooks().evaluation_loop(_first_batch(loader), "Looking ahead", metric_key_prefix=prefix)
    except (MissingMetricError, NotMetricsError):
        raise
    except Exception as error:
        # One batch may be too little for a metric, for instance if it holds only one class.
        logger.info("compute_metrics could not be tried on one batch before training: %s", error)
        return None
    finally:
        setup.evaluation.is_trial = False
        restore_random_state(setup, before)
    speed = [f"{prefix}_{name}" for name in ("runtime", "samples_per_second", "steps_per_second")]
    return [*output.metrics, *speed]


class _FirstBatch:
    """A loader of one batch."""

    #: Each process tries its own: what matters are the names of the metrics.
    splits_by_process = True

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.dataset = getattr(loader, "dataset", None)

    def __iter__(self) -> Any:
        return islice(iter(self.loader), 1)

    def __len__(self) -> int:
        return 1


def _first_batch(loader: Any) -> _FirstBatch:
    return _FirstBatch(loader)


def warn_if_inexact(run: TrainingRun, loader: Any) -> None:
    """Say why a resume of this run will not be exact, where that can be seen; refuse, if exactness is required."""
    setup = run.setup
    is_required = setup.args.exact == "require"
    if not is_required and not may_save_unasked(setup):
        return
    reasons = _reasons_to_be_inexact(run, loader, thoroughly=is_required)
    if not reasons:
        return
    text = "; ".join(reasons)
    if is_required:
        raise ValueError(f"exact='require', and a resume of this run would not be exact: {text}.")
    if setup.hooks().is_world_process_zero():
        run.events.record("not_exact", f"A resume of this run will not be exact: {text}.")


def _reasons_to_be_inexact(run: TrainingRun, loader: Any, *, thoroughly: bool) -> list[str]:
    setup = run.setup
    own, by_index = setup.engine.own_generators, starts_by_index(loader)
    reasons = unknown_in(loader, by_index=by_index)
    reasons += [f"{path}: {reason}" for path, reason in own.unknown.items()]
    reasons += [f"checkpoints are saved without {what}" for what in _unstorable_in_optimizer(setup)]
    # A callback may hold a sampler without drawing from it.
    drawn = {id(generator): path for path, generator in own.found.items() if path.startswith(_DRAWING)}
    reasons += [
        f"{drawn[id(generator)]} is the generator of the sampler too: give each its own"
        for generator in run.feed.sampler_generators()
        if id(generator) in drawn
    ]
    if by_index and (thoroughly or may_ask_the_clock(loader)) and not _repeats_itself(loader):
        reasons.append(
            f"{type(loader.dataset).__name__} (or the collator) gives another batch each time it is asked for the same "
            "one: draw from random, numpy or torch generators, and not by the clock"
        )
    return reasons


def _unstorable_in_optimizer(setup: Setup) -> list[str]:
    """What a checkpoint cannot hold of the optimizer as it is now: most states begin with the first step."""
    left_out = LeftOut()
    state = left_out.attempt("the optimizer", setup.optimizer.state_dict, None)
    if state is not None:
        flatten_optimizer(state, optimizer_parameter_names(setup), left_out)
    return left_out.reasons


def _repeats_itself(loader: Any) -> bool:
    """Return True when a sample, fetched twice for the same epoch, is the same."""
    _, batch = next(loader.batch_sampler.numbered(0), (0, []))
    digests = {
        LastBatch(MapFetch(loader.dataset, loader.collate_fn, loader.fetch_seed)(0, list(batch)[:1])).digest()
        for _ in range(2)
    }
    return len(digests) == 1


def refuse_for_strategy(setup: Setup) -> None:
    """Callbacks that want whole weights, where no process has them between steps."""
    if not setup.engine.weights.layout.empty_between_passes:
        return
    for callback in setup.callbacks.everyone:
        if isinstance(callback, EMACallback):
            raise ValueError(
                "EMACallback averages weights, and with ZeRO stage 3 no process has them between steps: use stage 2, "
                "or backend='fsdp'."
            )
