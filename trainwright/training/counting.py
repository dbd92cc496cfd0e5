"""Count the tokens and floating point operations of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trainwright.engines.torch.targets import base_model
from trainwright.training.hooks import is_overridden
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup


def batch_observer(setup: Setup) -> Callable[[Any], None] | None:
    """A function that counts tokens and FLOPs of each micro-batch, or None when there is nothing to count."""
    per_token = flops_per_token(setup)
    own_flops = is_overridden(setup.hooks(), "floating_point_ops")
    own_tokens = is_overridden(setup.hooks(), "_track_num_input_tokens")
    tokens_wanted = str(setup.args.include_num_input_tokens_seen)
    if not per_token and not own_flops and not own_tokens and tokens_wanted == "no":
        return None
    main_input = getattr(setup.model, "main_input_name", "input_ids")

    def observe(batch: object) -> None:
        if own_flops:
            setup.current_flos += float(setup.hooks().floating_point_ops(batch))
        elif per_token and isinstance(batch, Mapping) and isinstance(batch.get(main_input), Tensor):
            setup.current_flos += per_token * batch[main_input].numel()
        if own_tokens:
            setup.hooks()._track_num_input_tokens(batch)
        elif tokens_wanted != "no":
            setup.state.num_input_tokens_seen += count_input_tokens(batch, main_input, tokens_wanted)

    return observe


def track_input_tokens(setup: Setup, batch: object) -> None:
    """Add the tokens of a micro-batch to the state, where the arguments ask for it."""
    wanted = str(setup.args.include_num_input_tokens_seen)
    if wanted != "no":
        main_input = getattr(setup.model, "main_input_name", "input_ids")
        setup.state.num_input_tokens_seen += count_input_tokens(batch, main_input, wanted)


def count_input_tokens(batch: object, main_input: str, how: str) -> int:
    if not isinstance(batch, Mapping) or not isinstance(batch.get(main_input), Tensor):
        return 0
    mask = batch.get("attention_mask")
    if how == "non_padding" and isinstance(mask, Tensor):
        return int(mask.sum())
    return batch[main_input].numel()


def flops_per_token(setup: Setup) -> float:
    """6 x parameters without embeddings, HF's estimate; counted once and not at every step."""
    count = getattr(base_model(setup.model), "num_parameters", None)
    return 6.0 * count(exclude_embeddings=True) if callable(count) else 0.0


def floating_point_ops(setup: Setup, inputs: object) -> int:
    """Estimated floating point operations of forward and backward for ``inputs``."""
    main_input = getattr(setup.model, "main_input_name", "input_ids")
    if not isinstance(inputs, Mapping) or main_input not in inputs:
        return 0
    return int(flops_per_token(setup)) * inputs[main_input].numel()


def store_flos(setup: Setup) -> None:
    """Add the operations counted since the last call to the state, those of all processes."""
    counted = float(setup.current_flos)
    setup.state.total_flos += counted if setup.engine.is_alone else setup.backend.sum(counted)
    setup.current_flos = 0


def step_observer(run: TrainingRun) -> Callable[[list[Any]], None] | None:
    """Counts each step's batches, and knows what was counted before it; None when there is nothing to count."""
    setup = run.setup
    observe, run.counts_before = batch_observer(setup), None
    if observe is None:
        return None
    # An override counts as it wants to; transformers' asks all processes by itself.
    is_counted = setup.args.include_num_input_tokens_seen != "no"
    is_shared = is_counted and not setup.engine.is_alone
    is_shared = is_shared and not is_overridden(setup.hooks(), "_track_num_input_tokens")

    def observe_step(batches: list[Any]) -> None:
        state = setup.state
        if run.counts_before is None or run.counts_before[0] != state.global_step:
            operations = state.total_flos + setup.current_flos
            run.counts_before = (state.global_step, state.num_input_tokens_seen, operations)
        before = state.num_input_tokens_seen
        for batch in batches:
            observe(batch)
        if is_shared:
            # Samples that only keep this process in step with the others are counted where they belong.
            own = 0 if run.feed.on_filler() else state.num_input_tokens_seen - before
            state.num_input_tokens_seen = before + _over_data_processes(setup, own)

    return observe_step


def _over_data_processes(setup: Setup, count: int) -> int:
    """The sum over processes; those that hold parts of one model have the same samples, which count once."""
    return int(setup.backend.sum(float(count))) * setup.args.data_processes // setup.backend.world_size
