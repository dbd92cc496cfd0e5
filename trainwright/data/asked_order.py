"""The order of samples, and the batches cut from it, that the arguments ask for."""

from __future__ import annotations

from typing import Any

from trainwright.config.arguments import TrainingArguments
from trainwright.config.fields import ours
from trainwright.data.balance import balanced_order
from trainwright.data.batches import FixedBatches, TokenBudgetBatches
from trainwright.data.lengths import sample_lengths
from trainwright.data.order import (
    LengthGroupedOrder,
    LengthSortedOrder,
    Order,
    RandomOrder,
    SequentialOrder,
    seeded,
)


def eval_order(dataset: Any, args: TrainingArguments, model_input_name: str = "input_ids") -> Order:
    """As the samples stand or, where training groups by length, longest first, to save padding."""
    if args.train_sampling_strategy == "group_by_length":
        return LengthSortedOrder(sample_lengths(dataset, args.length_column_name, model_input_name))
    return SequentialOrder(len(dataset))


def train_order(dataset: Any, batch_size: int, args: TrainingArguments, model_input_name: str = "input_ids") -> Order:
    """The order that ``train_sampling_strategy`` asks for."""
    strategy = args.train_sampling_strategy
    if strategy == "sequential" or ours(args).overfit_batches is not None:
        return SequentialOrder(len(dataset))
    if strategy == "group_by_length" and not ours(args).max_tokens_per_batch:
        lengths = sample_lengths(dataset, args.length_column_name, model_input_name)
        # The batches of one optimizer step are padded apart but counted together, so they are grouped together.
        together = args.gradient_accumulation_steps * args.data_processes
        return LengthGroupedOrder(lengths, batch_size * together, data_seed(args))
    if strategy == "balanced":
        column, temperature = ours(args).sampling_column, ours(args).sampling_temperature
        return balanced_order(dataset, data_seed(args), column, temperature, args.label_names)
    if strategy not in ("random", "group_by_length"):
        known = "random, sequential, group_by_length, balanced"
        raise ValueError(f"train_sampling_strategy={strategy!r} is not one of {known}")
    return RandomOrder(len(dataset), data_seed(args))


def train_batches(
    dataset: object,
    batch_size: int,
    args: TrainingArguments,
    *,
    sampler: Any | None = None,
    model_input_name: str = "input_ids",
    pad_to_multiple_of: int | None = None,
) -> FixedBatches | TokenBudgetBatches:
    """The batches of training that ``args`` ask for, over the samples in the order of ``sampler``.

    ``max_tokens_per_batch`` makes batches by token budget instead of ``batch_size``. ``dataset`` must still have its
    length column.
    """
    seed = data_seed(args)
    order = train_order(dataset, batch_size, args, model_input_name) if sampler is None else seeded(sampler, seed)
    budget = ours(args).max_tokens_per_batch
    if budget:
        lengths = sample_lengths(dataset, args.length_column_name, model_input_name)
        return TokenBudgetBatches(order, lengths, budget, seed, args.dataloader_drop_last, pad_to_multiple_of)
    return FixedBatches(order, batch_size, args.dataloader_drop_last)


def data_seed(args: TrainingArguments) -> int:
    """``args.data_seed`` where set, else ``args.seed``."""
    chosen = args.data_seed
    return int(args.seed if chosen is None else chosen)
