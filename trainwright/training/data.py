"""Turn datasets into loaders, in an order that a resume can find again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.core.modifier import TEACHER_COLUMNS
from trainwright.core.signatures import accepted_keywords
from trainwright.data.batches import FixedBatches
from trainwright.data.columns import forward_columns, use_columns
from trainwright.data.curriculum import Curriculum, CurriculumOrder, joined
from trainwright.data.loader import (
    data_seed,
    eval_loader,
    eval_order,
    has_length,
    is_iterable,
    train_batches,
    train_loader,
    train_order,
)
from trainwright.data.order import SequentialOrder
from trainwright.data.teacher_columns import TeacherColumnsCollator
from trainwright.training.modules import data_of_module, is_loader, refuse_with_own_loader, use_own_eval_data
from trainwright.training.setup import Setup


def train_dataloader(setup: Setup) -> Any:
    """Loader over ``self.train_dataset`` in an order that is a function of (seed, epoch)."""
    if setup.train_dataset is None:
        setup.train_dataset = data_of_module(setup, "train")
    if setup.train_dataset is None:
        raise ValueError("train() needs data: pass train_dataset= to the Trainer, or override get_train_dataloader().")
    if is_loader(setup.train_dataset, "train_dataset"):
        refuse_with_own_loader(setup.args)
        return setup.train_dataset
    size = setup.args.train_batch_size
    if isinstance(setup.train_dataset, Curriculum):
        return curriculum_loader(setup, setup.train_dataset, size)
    # Before columns are dropped: the length column is not the model's, but the sampler's.
    batches = None if is_iterable(setup.train_dataset) else batches_for_training(setup, size)
    dataset, collate = with_used_columns(setup, setup.train_dataset, "training")
    if batches is None:
        refuse_for_streams(setup)
    return train_loader(dataset, batch_sampler=batches, batch_size=size, collate=collate, args=setup.args)


def batches_for_training(setup: Setup, size: int) -> Any:
    dataset = setup.train_dataset
    takes_dataset = accepted_keywords(setup.hooks()._get_train_sampler, ("train_dataset",))
    sampler = setup.hooks()._get_train_sampler(dataset) if takes_dataset else setup.hooks()._get_train_sampler()
    if sampler is None:
        sampler = SequentialOrder(len(dataset))
    padding = getattr(setup.data_collator, "pad_to_multiple_of", None)
    return train_batches(
        dataset, size, setup.args, sampler=sampler, model_input_name=input_name(setup), pad_to_multiple_of=padding
    )


def curriculum_loader(setup: Setup, curriculum: Curriculum, size: int) -> Any:
    """The whole training as one epoch over all datasets."""
    stages = curriculum.stages(setup.args.max_steps)
    samples = size * setup.args.gradient_accumulation_steps * setup.args.data_processes
    order = CurriculumOrder(stages, samples, data_seed(setup.args))
    dataset, collate = with_used_columns(setup, joined(stages), "training")
    batches = FixedBatches(order, size)
    return train_loader(dataset, batch_sampler=batches, batch_size=size, collate=collate, args=setup.args)


def refuse_for_streams(setup: Setup) -> None:
    """Options that need to know every sample beforehand."""
    if setup.args.max_tokens_per_batch is not None:
        raise ValueError(
            "max_tokens_per_batch needs the samples' lengths; a dataset without a length has none. Unset it."
        )
    if setup.args.train_sampling_strategy == "group_by_length":
        raise ValueError("group_by_length needs a dataset with a length; use train_sampling_strategy='random'.")


def train_sampler(setup: Setup, train_dataset: object = None) -> Any:
    """Order of the training samples; None for a dataset without a length."""
    dataset = setup.train_dataset if train_dataset is None else train_dataset
    if dataset is None or not has_length(dataset):
        return None
    return train_order(dataset, setup.args.train_batch_size, setup.args, input_name(setup))


def input_name(setup: Setup) -> str:
    """The model input whose length is a sample's length."""
    names = getattr(setup.processing_class, "model_input_names", None)
    return names[0] if names else "input_ids"


def eval_dataloader(setup: Setup, eval_dataset: object = None) -> Any:
    """Loader over an evaluation set: the one given, the one of that name, or ``self.eval_dataset``."""
    use_own_eval_data(setup)
    if eval_dataset is None and setup.eval_dataset is None:
        raise ValueError("evaluate() needs data: pass eval_dataset= to the Trainer or to evaluate().")
    if isinstance(eval_dataset, str):
        if not isinstance(setup.eval_dataset, dict) or eval_dataset not in setup.eval_dataset:
            known = list(setup.eval_dataset) if isinstance(setup.eval_dataset, dict) else []
            raise ValueError(f"There is no evaluation set named {eval_dataset!r}; there are: {known}.")
        eval_dataset = setup.eval_dataset[eval_dataset]
    return evaluation_loader(setup, setup.eval_dataset if eval_dataset is None else eval_dataset, "evaluation")


def test_dataloader(setup: Setup, test_dataset: object) -> Any:
    """Loader over ``test_dataset``, in its own order."""
    return evaluation_loader(setup, test_dataset, "test")


def evaluation_loader(setup: Setup, dataset: object, description: str) -> Any:
    if is_loader(dataset, description):
        return dataset
    sampler = setup.hooks()._get_eval_sampler(dataset)
    dataset, collate = with_used_columns(setup, dataset, description)
    return eval_loader(dataset, sampler=sampler, collate=collate, args=setup.args)


def eval_sampler(setup: Setup, eval_dataset: object) -> Any:
    """Order of the evaluation samples: as they stand, or longest first when training groups by length."""
    if eval_dataset is None or is_iterable(eval_dataset):
        return None
    return eval_order(eval_dataset, setup.args, input_name(setup))


def with_used_columns(setup: Setup, dataset: object, description: str) -> tuple[Any, Callable[[list[Any]], Any]]:
    # A Module's step methods get the whole batch: what they use of it nobody knows.
    if not setup.args.remove_unused_columns or setup.module is not None:
        if not setup.has_teacher:
            return dataset, setup.data_collator
        is_wanted = description == "training"
        return dataset, TeacherColumnsCollator(setup.data_collator, setup.data_collator, is_wanted=is_wanted)
    keep = forward_columns(setup.model, setup.label_names)
    if not setup.has_teacher:
        return use_columns(dataset, setup.data_collator, keep, description, setup.columns_said)
    if keep is not None:
        known = getattr(dataset, "column_names", None) or []
        keep += [name for name in known if str(name).startswith(TEACHER_COLUMNS)]
    dataset, collate = use_columns(dataset, setup.data_collator, keep, description, setup.columns_said)
    both = TeacherColumnsCollator(collate, setup.data_collator, is_wanted=description == "training")
    return dataset, both
