"""Trainer methods that turn datasets into loaders; each may be overridden."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from trainwright.core.modifier import TEACHER_COLUMNS
from trainwright.data.batches import FixedBatches
from trainwright.data.columns import forward_columns, use_columns
from trainwright.data.curriculum import Curriculum, CurriculumOrder, joined
from trainwright.data.loader import (
    data_seed,
    eval_loader,
    eval_order,
    has_length,
    is_iterable,
    num_examples,
    train_batches,
    train_loader,
    train_order,
)
from trainwright.data.order import SequentialOrder
from trainwright.data.teacher_columns import TeacherColumnsCollator
from trainwright.trainer.module_methods import ModuleMethods, is_loader, refuse_with_own_loader
from trainwright.trainer.signatures import accepted_keywords


class DataMethods(ModuleMethods):
    """Loaders and samplers of a Trainer."""

    #: Whether samples may carry columns that only a teacher takes.
    _has_teacher = False

    @cached_property
    def _columns_said(self) -> set[str]:
        """What was said of columns that are dropped; not again at every evaluation."""
        return set()

    def get_train_dataloader(self) -> Any:
        """Loader over ``self.train_dataset`` in an order that is a function of (seed, epoch)."""
        if self.train_dataset is None:
            self.train_dataset = self._data_of_module("train")
        if self.train_dataset is None:
            raise ValueError(
                "train() needs data: pass train_dataset= to the Trainer, or override get_train_dataloader()."
            )
        if is_loader(self.train_dataset, "train_dataset"):
            refuse_with_own_loader(self.args)
            return self.train_dataset
        size = self.args.train_batch_size
        if isinstance(self.train_dataset, Curriculum):
            return self._curriculum_loader(self.train_dataset, size)
        # Before columns are dropped: the length column is not the model's, but the sampler's.
        batches = None if is_iterable(self.train_dataset) else self._train_batches(size)
        dataset, collate = self._with_used_columns(self.train_dataset, "training")
        if batches is None:
            self._refuse_for_streams()
        return train_loader(dataset, batch_sampler=batches, batch_size=size, collate=collate, args=self.args)

    def _train_batches(self, size: int) -> Any:
        dataset = self.train_dataset
        takes_dataset = accepted_keywords(self._get_train_sampler, ("train_dataset",))
        sampler = self._get_train_sampler(dataset) if takes_dataset else self._get_train_sampler()
        if sampler is None:
            sampler = SequentialOrder(len(dataset))
        padding = getattr(self.data_collator, "pad_to_multiple_of", None)
        return train_batches(
            dataset, size, self.args, sampler=sampler, model_input_name=self._input_name(), pad_to_multiple_of=padding
        )

    def _curriculum_loader(self, curriculum: Curriculum, size: int) -> Any:
        """The whole training as one epoch over all datasets."""
        stages = curriculum.stages(self.args.max_steps)
        samples = size * self.args.gradient_accumulation_steps * self.args.data_processes
        order = CurriculumOrder(stages, samples, data_seed(self.args))
        dataset, collate = self._with_used_columns(joined(stages), "training")
        batches = FixedBatches(order, size)
        return train_loader(dataset, batch_sampler=batches, batch_size=size, collate=collate, args=self.args)

    def _refuse_for_streams(self) -> None:
        """Options that need to know every sample beforehand."""
        if self.args.max_tokens_per_batch is not None:
            raise ValueError(
                "max_tokens_per_batch needs the samples' lengths; a dataset without a length has none. Unset it."
            )
        if self.args.train_sampling_strategy == "group_by_length":
            raise ValueError("group_by_length needs a dataset with a length; use train_sampling_strategy='random'.")

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Order of the training samples; None for a dataset without a length."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or not has_length(dataset):
            return None
        return train_order(dataset, self.args.train_batch_size, self.args, self._input_name())

    def _input_name(self) -> str:
        """The model input whose length is a sample's length."""
        names = getattr(self.processing_class, "model_input_names", None)
        return names[0] if names else "input_ids"

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Loader over an evaluation set: the one given, the one of that name, or ``self.eval_dataset``."""
        self._use_own_eval_data()
        if eval_dataset is None and self.eval_dataset is None:
            raise ValueError("evaluate() needs data: pass eval_dataset= to the Trainer or to evaluate().")
        if isinstance(eval_dataset, str):
            if not isinstance(self.eval_dataset, dict) or eval_dataset not in self.eval_dataset:
                known = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else []
                raise ValueError(f"There is no evaluation set named {eval_dataset!r}; there are: {known}.")
            eval_dataset = self.eval_dataset[eval_dataset]
        return self._eval_loader(self.eval_dataset if eval_dataset is None else eval_dataset, "evaluation")

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Loader over ``test_dataset``, in its own order."""
        return self._eval_loader(test_dataset, "test")

    def _eval_loader(self, dataset: Any, description: str) -> Any:
        if is_loader(dataset, description):
            return dataset
        sampler = self._get_eval_sampler(dataset)
        dataset, collate = self._with_used_columns(dataset, description)
        return eval_loader(dataset, sampler=sampler, collate=collate, args=self.args)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Order of the evaluation samples: as they stand, or longest first when training groups by length."""
        if eval_dataset is None or is_iterable(eval_dataset):
            return None
        return eval_order(eval_dataset, self.args, self._input_name())

    def _with_used_columns(self, dataset: Any, description: str) -> tuple[Any, Callable[[list[Any]], Any]]:
        # A Module's step methods get the whole batch: what they use of it nobody knows.
        if not self.args.remove_unused_columns or self._module is not None:
            if not self._has_teacher:
                return dataset, self.data_collator
            is_wanted = description == "training"
            return dataset, TeacherColumnsCollator(self.data_collator, self.data_collator, is_wanted=is_wanted)
        keep = forward_columns(self.model, self.label_names)
        if not self._has_teacher:
            return use_columns(dataset, self.data_collator, keep, description, self._columns_said)
        if keep is not None:
            known = getattr(dataset, "column_names", None) or []
            keep += [name for name in known if str(name).startswith(TEACHER_COLUMNS)]
        dataset, collate = use_columns(dataset, self.data_collator, keep, description, self._columns_said)
        both = TeacherColumnsCollator(collate, self.data_collator, is_wanted=description == "training")
        return dataset, both

    def num_examples(self, dataloader: Any) -> int:
        """Samples that ``dataloader`` goes through."""
        return num_examples(dataloader)
