"""Turn datasets into loaders, in an order that a resume can find again."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from torch.utils.data import SequentialSampler

from trainwright.config.origin import class_if_imported
from trainwright.core.modifier import TEACHER_COLUMNS
from trainwright.core.phases import PhasePlan
from trainwright.data.asked_order import data_seed, eval_order, train_batches, train_order
from trainwright.data.batches import FixedBatches
from trainwright.data.columns import DropColumnsCollator, forward_columns, remove_unused_columns, use_columns
from trainwright.data.curriculum import Curriculum, CurriculumOrder, joined
from trainwright.data.loader import eval_loader, has_length, is_iterable, train_loader
from trainwright.data.order import SequentialOrder, seeded
from trainwright.data.phased import PhasedOrder, joined_data
from trainwright.data.teacher_columns import TeacherColumnsCollator
from trainwright.data.worker_count import auto_workers
from trainwright.training.hooks import is_users_own
from trainwright.training.loss_groups import group_column, with_groups
from trainwright.training.modules import data_of_module, is_loader, refuse_with_own_loader, use_own_eval_data
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def train_dataloader(setup: Setup) -> Any:
    """Loader over ``self.train_dataset`` in an order that is a function of (seed, epoch)."""
    if setup.train_dataset is None:
        setup.train_dataset = data_of_module(setup, "train")
    settle_workers(setup)
    if setup.train_dataset is None:
        raise ValueError("train() needs data: pass train_dataset= to the Trainer, or override get_train_dataloader().")
    if is_loader(setup.train_dataset, "train_dataset"):
        refuse_with_own_loader(setup.args)
        return setup.train_dataset
    size, hooks = setup.args.train_batch_size, setup.hooks()
    if isinstance(setup.train_dataset, Curriculum):
        return curriculum_loader(setup, setup.train_dataset, size)
    if setup.phases is not None:
        return phased_loader(setup, setup.phases, size)
    if is_users_own(hooks, "_get_dataloader"):
        return hooks._get_dataloader(
            setup.train_dataset, "Training", size, sampler_fn=hooks._get_train_sampler, is_training=True
        )
    return dataloader(setup, setup.train_dataset, "training", size, hooks._get_train_sampler, is_training=True)


def settle_workers(setup: Setup) -> None:
    """Put the number in the place of ``dataloader_num_workers="auto"``, once it is known what is trained on.

    Overrides of the loaders' methods read a number then, and so does whoever reads the run's config.yaml.
    """
    if setup.args.dataloader_num_workers == "auto" and setup.train_dataset is not None:
        count = 0 if isinstance(setup.train_dataset, Curriculum) else auto_workers(setup.train_dataset)
        setup.given_args.dataloader_num_workers = count


def dataloader(
    setup: Setup,
    dataset: Any,
    description: str,
    batch_size: int,
    sampler_fn: Callable[..., Any] | None,
    *,
    is_training: bool,
) -> Any:
    """Loader over ``dataset`` in the order of ``sampler_fn(dataset)``, with the columns that are in use."""
    # Before columns are dropped: the length column is not the model's, but the sampler's.
    sampler = None if sampler_fn is None or is_iterable(dataset) else sampler_for(sampler_fn, dataset)
    narrowed, collate = with_used_columns(setup, dataset, description.lower())
    if not is_training:
        loader = eval_loader(narrowed, sampler=sampler, collate=collate, args=setup.args, batch_size=batch_size)
        return with_total_size(setup, loader, batch_size)
    batches = None
    if is_iterable(dataset):
        refuse_for_streams(setup)
    else:
        batches = batches_for_training(setup, dataset, batch_size, sampler)
    loader = train_loader(narrowed, batch_sampler=batches, batch_size=batch_size, collate=collate, args=setup.args)
    return with_total_size(setup, loader, batch_size)


def with_total_size(setup: Setup, loader: Any, batch_size: int) -> Any:
    """``loader``, which says as accelerate's do how many samples all processes take at once."""
    loader.total_batch_size = batch_size * setup.args.data_processes
    return loader


def sampler_for(sampler_fn: Callable[..., Any], dataset: object) -> Any:
    """Call ``sampler_fn``; until transformers 4.50 ``_get_train_sampler`` took no dataset."""
    return sampler_fn(dataset) if inspect.signature(sampler_fn).parameters else sampler_fn()


def batches_for_training(setup: Setup, dataset: Any, size: int, sampler: Any) -> Any:
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


def phased_loader(setup: Setup, plan: PhasePlan, size: int) -> Any:
    """Each epoch over the data of its phase, each in the order that it would have alone."""
    plan.whole_again()
    given = [setup.train_dataset if phase.train_dataset is None else phase.train_dataset for phase in plan.phases]
    for phase, dataset in zip(plan.phases, given, strict=True):
        if is_iterable(dataset) or not has_length(dataset):
            raise ValueError(
                f"The phase {phase.name!r} has a {type(dataset).__name__} without a length: phases need to know how "
                "many steps an epoch has. Give datasets with a length."
            )
        if len(dataset) == 0:
            raise ValueError(f"The phase {phase.name!r} has no samples.")
    if setup.args.max_tokens_per_batch is not None:
        raise ValueError("max_tokens_per_batch cannot be used with phases=: give batches a number of samples.")
    joined, offsets = joined_data(given)
    seed, sampler_fn = data_seed(setup.args), setup.hooks()._get_train_sampler
    orders = [seeded(sampler_for(sampler_fn, dataset), seed) for dataset in given]
    dataset, collate = with_used_columns(setup, joined, "training")
    order = PhasedOrder(plan, orders, offsets, len(joined))
    batches = FixedBatches(order, size, setup.args.dataloader_drop_last)
    loader = train_loader(dataset, batch_sampler=batches, batch_size=size, collate=collate, args=setup.args)
    return with_total_size(setup, loader, size)


def refuse_for_streams(setup: Setup) -> None:
    """Options that need to know every sample beforehand."""
    if setup.args.max_tokens_per_batch is not None:
        raise ValueError(
            "max_tokens_per_batch needs the samples' lengths; a dataset without a length has none. Unset it."
        )
    strategy = setup.args.train_sampling_strategy
    if strategy in ("group_by_length", "balanced"):
        raise ValueError(f"{strategy} needs a dataset with a length; use train_sampling_strategy='random'.")


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
    if setup.args.overfit_batches is not None and (
        eval_dataset is None or isinstance(eval_dataset, str) or eval_dataset is setup.eval_dataset
    ):
        return overfitted_loader(setup)
    if eval_dataset is None and setup.eval_dataset is None:
        raise ValueError("evaluate() needs data: pass eval_dataset= to the Trainer or to evaluate().")
    if isinstance(eval_dataset, str):
        if not isinstance(setup.eval_dataset, dict) or eval_dataset not in setup.eval_dataset:
            known = list(setup.eval_dataset) if isinstance(setup.eval_dataset, dict) else []
            raise ValueError(f"There is no evaluation set named {eval_dataset!r}; there are: {known}.")
        return kept_loader(setup, eval_dataset, setup.eval_dataset[eval_dataset])
    if eval_dataset is None or eval_dataset is setup.eval_dataset:
        return kept_loader(setup, "eval", setup.eval_dataset)
    return evaluation_loader(setup, eval_dataset, "evaluation")


def overfitted_loader(setup: Setup) -> Any:
    """The batches that are trained on, for an evaluation."""
    dataset = setup.train_dataset
    if dataset is None or is_loader(dataset, "train_dataset"):
        return dataset if dataset is not None else setup.hooks().get_train_dataloader()
    return dataloader(setup, dataset, "evaluation", setup.args.train_batch_size, None, is_training=False)


def refuse_to_limit(setup: Setup, loader: Any) -> None:
    """Refuse limits of training data that has no epochs or no first batches; say where its order is not ours."""
    is_curriculum = isinstance(setup.train_dataset, Curriculum)
    if is_curriculum and setup.args.limit_train_batches is not None and not setup.args.fast_dev_run:
        raise ValueError(
            "limit_train_batches counts batches of an epoch, and a curriculum is a single one: set max_steps instead."
        )
    if setup.args.overfit_batches is None:
        return
    dataset = getattr(loader, "dataset", None)
    if is_curriculum or dataset is None or is_iterable(dataset):
        raise ValueError(
            "overfit_batches trains on the same batches in every epoch, and this training data is "
            f"{'a curriculum' if is_curriculum else 'a stream'}: give a dataset with an index, or use "
            "limit_train_batches with max_steps."
        )
    order = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    if not isinstance(order, SequentialOrder) and not isinstance(getattr(order, "sampler", None), SequentialSampler):
        logger.warning(
            "overfit_batches: the training loader is your own, and so is the order of its samples. If it shuffles, "
            "other batches come in each epoch: let it give them in order."
        )


def kept_loader(setup: Setup, name: str, dataset: object) -> Any:
    """Loader over one of the Trainer's own evaluation sets; the same each time where its workers are kept."""
    if not setup.args.dataloader_persistent_workers:
        return evaluation_loader(setup, dataset, "evaluation")
    if name not in setup.eval_loaders or setup.loaded_eval_sets.get(name) is not dataset:
        setup.eval_loaders[name] = evaluation_loader(setup, dataset, "evaluation")
        setup.loaded_eval_sets[name] = dataset
    return setup.eval_loaders[name]


def test_dataloader(setup: Setup, test_dataset: object) -> Any:
    """Loader over ``test_dataset``, in its own order."""
    return evaluation_loader(setup, test_dataset, "test")


def evaluation_loader(setup: Setup, dataset: object, description: str) -> Any:
    if is_loader(dataset, description):
        return dataset
    hooks, size = setup.hooks(), setup.args.eval_batch_size
    if is_users_own(hooks, "_get_dataloader"):
        shown = "Evaluation" if description == "evaluation" else description
        return hooks._get_dataloader(dataset, shown, size, sampler_fn=hooks._get_eval_sampler)
    return dataloader(setup, dataset, description, size, hooks._get_eval_sampler, is_training=False)


def eval_sampler(setup: Setup, eval_dataset: object) -> Any:
    """Order of the evaluation samples: as they stand, or longest first when training groups by length."""
    if eval_dataset is None or is_iterable(eval_dataset):
        return None
    return eval_order(eval_dataset, setup.args, input_name(setup))


def with_used_columns(setup: Setup, dataset: object, description: str) -> tuple[Any, Callable[[list[Any]], Any]]:
    dataset, collate = _narrowed(setup, dataset, description)
    collate = with_groups(setup, collate, description)
    if not setup.has_teacher:
        return dataset, collate
    return dataset, TeacherColumnsCollator(collate, setup.data_collator, is_wanted=description == "training")


def _narrowed(setup: Setup, dataset: object, description: str) -> tuple[Any, Callable[[list[Any]], Any]]:
    """The dataset and the collator that let the columns in use through, as a subclass wants it where it says so."""
    hooks, collate = setup.hooks(), setup.data_collator
    if isinstance(dataset, class_if_imported("datasets", "Dataset")):
        if is_users_own(hooks, "_remove_unused_columns"):
            return hooks._remove_unused_columns(dataset, description=description), collate
    elif is_users_own(hooks, "_get_collator_with_removed_columns"):
        return dataset, hooks._get_collator_with_removed_columns(collate, description=description)
    return use_columns(dataset, collate, kept_columns(setup, dataset), description, setup.columns_said)


def kept_columns(setup: Setup, dataset: object = None) -> list[str] | None:
    """Columns that are not dropped; None where all stay."""
    # A Module's step methods get the whole batch: what they use of it nobody knows.
    if not setup.args.remove_unused_columns or setup.module is not None:
        return None
    hooks = setup.hooks()
    if setup.signature_columns is None and not is_users_own(hooks, "_set_signature_columns_if_needed"):
        keep = signature_columns(setup)
    else:
        hooks._set_signature_columns_if_needed()
        keep = None if setup.signature_columns is None else list(setup.signature_columns)
    column = group_column(setup)
    if column is not None and keep is not None and column not in keep:
        keep = [*keep, column]
    if setup.has_teacher and keep is not None:
        known = getattr(dataset, "column_names", None) or []
        keep += [name for name in known if str(name).startswith(TEACHER_COLUMNS)]
    return keep


def signature_columns(setup: Setup) -> list[str] | None:
    """Columns that the model's ``forward`` takes, and labels; None where it takes whatever it is given."""
    return forward_columns(setup.model, setup.label_names)


def drop_unused_columns(setup: Setup, dataset: object, description: str | None) -> Any:
    """``dataset`` without columns that are not used, where its columns are known beforehand."""
    return remove_unused_columns(dataset, kept_columns(setup, dataset), description, setup.columns_said)


def dropping_collator(
    setup: Setup, collate: Callable[[list[Any]], Any], description: str | None
) -> Callable[[list[Any]], Any]:
    """``collate`` for samples of which columns that are not used are dropped."""
    keep = kept_columns(setup)
    return collate if keep is None else DropColumnsCollator(collate, keep, description, setup.columns_said)
