"""The Trainer: Hugging Face's shape, our loop.

It is a face. What it was given, and what was made of it, is its ``Setup``; a training is a ``TrainingRun``; what
happens to both are functions in ``trainwright/training``, and the loop is ``trainwright/loop/fit.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from trainwright.callbacks.tracking import TrackerCallback
from trainwright.checkpoint.delivery import delivery_to
from trainwright.config import TrainingArguments, adopt_arguments, check_device
from trainwright.config.fields import AllFields
from trainwright.config.keywords import suggests_keywords
from trainwright.config.run_directory import make_run_directory
from trainwright.core.backend import Backend
from trainwright.core.checkpointer import Checkpointer
from trainwright.core.phases import Phase
from trainwright.core.results import BestRun, PredictionOutput, TrainOutput
from trainwright.engines.torch.loss_functions.choosing import chosen_loss
from trainwright.engines.torch.memory import MemoryReport
from trainwright.engines.torch.precision import full_eval_dtype
from trainwright.proving.prove import prove
from trainwright.proving.result import Proof
from trainwright.trackers.pictures import png
from trainwright.trainer.hub import create_repo, listed, upload_model, write_model_card
from trainwright.trainer.methods import Methods
from trainwright.trainer.notes import set_up_notes
from trainwright.trainer.search import default_objective, default_space, search_hyperparameters
from trainwright.trainer.start_up import leaves_at_once
from trainwright.training import evaluation
from trainwright.training.construction import (
    choose_backend,
    choose_collator,
    choose_processor,
    one_teacher,
    resolve_model,
    with_backend,
)
from trainwright.training.dev_run import arguments_to_try
from trainwright.training.given import refuse_other_forms
from trainwright.training.given_modifiers import take_modifiers
from trainwright.training.overrides import look_at_overrides
from trainwright.training.phases import take_phases
from trainwright.training.recipe import take_recipe
from trainwright.training.reporting import reported
from trainwright.training.save_model import save_model
from trainwright.training.setup import require_model
from trainwright.training.start import adopt_another_model, adopt_first_model, handler_of, seed_everything
from trainwright.training.train import locked, new_run, train

logger = logging.getLogger("trainwright")


def _belongs_to_arguments(name: str) -> str:
    is_one = name in AllFields.__dataclass_fields__
    return f" (it is an argument: Trainer(args=TrainingArguments({name}=...)))" if is_one else ""


class Trainer(Methods):
    """Train, evaluate and predict with a torch model.

    Takes what ``transformers.Trainer`` takes; subclasses may override the same methods.

    >>> import torch
    >>> data = [{"x": torch.randn(4), "labels": torch.tensor(i % 2)} for i in range(16)]
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.layer(x)
    >>> args = TrainingArguments("runs/example", max_steps=2, save_strategy="no", disable_tqdm=True)
    >>> output = Trainer(Net(), args, train_dataset=data).train()  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    >>> output.global_step
    2
    """

    @suggests_keywords(_belongs_to_arguments)
    @leaves_at_once("the Trainer was built", marks=True)
    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | str | Mapping[str, Any] | None = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        *,
        tokenizer: Any = None,
        backend: Backend | str | None = None,
        checkpointer: Checkpointer | None = None,
        recipe: Any = None,
        recipe_args: dict[str, Any] | str | None = None,
        metadata_args: list[str] | None = None,
        teacher: nn.Module | str | Path | None = None,
        distill_teacher: nn.Module | str | Path | None = None,
        phases: Sequence[Phase] | None = None,
    ) -> None:
        setup = self._setup
        refuse_other_forms(train_dataset, eval_dataset, data_collator, callbacks, optimizers)
        setup.take_arguments(arguments_to_try(setup, with_backend(adopt_arguments(args), backend)))
        setup.backend = choose_backend(setup.args, backend)
        seed_everything(setup)
        check_device(setup.args)
        set_up_notes(setup.args)
        take_recipe(setup, recipe, recipe_args, metadata_args, one_teacher(teacher, distill_teacher))
        take_phases(setup, phases)
        callbacks = take_modifiers(setup, callbacks)
        given = setup.given_args
        setup.processing_class = choose_processor(processing_class, tokenizer)
        setup.model_init, setup.train_dataset, setup.eval_dataset = model_init, train_dataset, eval_dataset
        setup.compute_loss_func, setup.compute_metrics = chosen_loss(compute_loss_func), compute_metrics
        setup.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        setup.optimizer, setup.lr_scheduler = optimizers
        setup.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        setup.own_optimizer, setup.own_scheduler = setup.optimizer is None, setup.lr_scheduler is None
        setup.checkpointer = delivery_to(given, None if setup.args.fast_dev_run else checkpointer)
        look_at_overrides(setup)
        setup.memory = MemoryReport(not given.skip_memory_metrics)
        setup.memory.start("init")
        setup.place_model_on_device = given.place_model_on_device is not False and full_eval_dtype(given) is None
        adopt_first_model(setup, resolve_model(model, setup))
        setup.data_collator = data_collator or choose_collator(setup.processing_class)
        self._validate_args()
        self.create_accelerator_and_postprocess()
        setup.callbacks = handler_of(setup, callbacks)
        if given.push_to_hub:
            self.init_hf_repo()
        if given.should_save:
            make_run_directory(given)
        setup.fire("on_init_end")
        setup.memory.stop("init")

    # ---- training

    def fit(
        self,
        module: nn.Module | None = None,
        train: Any = None,
        val: Any = None,
        *,
        resume_from_checkpoint: str | Path | bool | None = None,
    ) -> TrainOutput:
        """:meth:`train`, with the model and the data given here: datasets or loaders, ``val`` also a dict of them.

        What is left out stays what the Trainer got, or comes from the Module's ``train_dataloader`` and
        ``val_dataloader``.
        """
        if module is not None:
            if self.model_init is not None:
                raise ValueError("fit(model) and model_init= name two models: which one should be trained?")
            adopt_another_model(self._setup, module)
        require_model(self._setup)
        self.train_dataset = self.train_dataset if train is None else train
        self.eval_dataset = self.eval_dataset if val is None else val
        return self.train(resume_from_checkpoint=resume_from_checkpoint)

    @leaves_at_once("the training was prepared", marks=True)
    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; ``resume_from_checkpoint=True`` continues from the newest good checkpoint of this run.

        ``"auto"`` (or ``TrainingArguments(resume="auto")``) continues if there is one and starts otherwise. A signal
        or ``max_hours`` ends it with ``Preempted`` (Ctrl-C: ``KeyboardInterrupt``) once everything is saved.

        Returns ``TrainOutput(global_step, training_loss, metrics)``.
        """
        self._run = new_run(self._setup, trial, ignore_keys_for_eval)
        with reported(self._run), locked(self._run):
            output = self._inner_training_loop(
                batch_size=self._train_batch_size,
                args=self.args,
                resume_from_checkpoint=resume_from_checkpoint,
                trial=trial,
                ignore_keys_for_eval=ignore_keys_for_eval,
            )
        if isinstance(output, TrainOutput):
            output.report = self._run.report
        return output

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | Path | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """The training that :meth:`train` has begun, from its first step, or a checkpoint, to its end."""
        return train(self._present_run(), resume_from_checkpoint)

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun:
        """Train ``n_trials`` times with arguments from ``hp_space(trial)`` and return the best.

        ``compute_objective`` turns evaluation metrics into the number to optimise: the loss by default, or the sum of
        the metrics where ``compute_metrics`` gives any. ``kwargs`` go to ``optuna.create_study``; without a ``sampler``
        among them the choices follow from ``seed``, and the same call makes them again. ``trainwright.sweep`` searches
        experiments, goes on after a kill, and uses several processes.
        """
        if self.model_init is None:
            raise ValueError("hyperparameter_search needs a new model for each trial: pass model_init= to the Trainer.")
        if backend not in (None, "optuna"):
            raise ValueError(f"backend={backend!r} is not supported; the choices are: 'optuna'.")
        self.hp_name, self.hp_search_backend = hp_name, "optuna"
        try:
            return search_hyperparameters(
                self, hp_space or default_space, compute_objective or default_objective, n_trials, direction, kwargs
            )
        finally:
            self.hp_search_backend = None

    @leaves_at_once("proving")
    def prove(self, budget: float = 60.0, *, seed: int | None = None) -> Proof:
        """What must not change a training (how batches are cut, processes, a resume, ...) is changed, and compared.

        Copies are trained, for about ``budget`` seconds, on the first samples; the Trainer stays as it is. ``seed``
        chooses the step to resume after. Print the answer, or ask it: ``proof.holds``, ``proof.rows``.
        """
        return prove(self._setup, budget, seed)

    # ---- evaluation

    @leaves_at_once("evaluating")
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Metrics over ``eval_dataset``, or the Trainer's own; several sets give ``eval_<name>_...`` keys.

        The loss is the mean over all targets: it does not depend on the evaluation batch size.
        """
        return evaluation.evaluate(self._setup, eval_dataset, ignore_keys, metric_key_prefix)

    @leaves_at_once("evaluating")
    def test(
        self,
        test_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> dict[str, float]:
        """Metrics over a held-out dataset or loader, or a dict of them by name; of a Module, by its ``test_step``.

        Without data, what the Module's ``test_dataloader`` gives.
        """
        return evaluation.measure_test(self._setup, test_dataset, ignore_keys, metric_key_prefix)

    @leaves_at_once("predicting")
    def predict(
        self,
        test_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_time_augmentation: Sequence[Callable[[Any], Any]] | None = None,
    ) -> PredictionOutput:
        """Predictions over ``test_dataset``, its labels, and metrics where it has labels.

        Of a Module, by its ``predict_step``; without data, over what its ``predict_dataloader`` gives.
        ``test_time_augmentation`` is a list of functions on a batch of inputs; the outputs for each are averaged. Put
        ``lambda inputs: inputs`` into the list to count the inputs as they are.
        """
        return evaluation.predict(
            self._setup, test_dataset, ignore_keys, metric_key_prefix, test_time_augmentation=test_time_augmentation
        )

    # ---- saving and sharing

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Write the model (and tokenizer or processor) so that ``from_pretrained`` reads it.

        Without ``output_dir`` it goes to the checkpointer, if the Trainer was given one. Where the weights are in
        parts (FSDP, DeepSpeed), every process must call this; with FSDP each writes some of them. With ``push_to_hub``
        set it is uploaded too.
        """
        save_model(self._setup, output_dir)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def init_hf_repo(self, token: str | None = None) -> None:
        """Create the repository that ``hub_model_id`` (or the output directory's name) stands for."""
        if self.is_world_process_zero():
            create_repo(self._setup, token)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model and its card, and upload the output directory without its checkpoints."""
        if self.args.fast_dev_run:
            logger.warning("fast_dev_run: nothing is uploaded.")
            return None
        if self.hub_model_id is None:
            self.init_hf_repo(token)
        self._setup.fire("on_push_begin")
        # Of weights in parts every process writes some; one uploads them.
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        return upload_model(self._setup, commit_message, blocking=blocking, token=token, revision=revision)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write ``README.md`` into the output directory: what was trained, how, and what came out."""
        front = {
            "library_name": "transformers",
            "language": language,
            "license": license,
            "base_model": finetuned_from,
            "tags": [*listed(tags), "trainwright"],
            "pipeline_tag": (listed(tasks) or [None])[0],
            "datasets": listed(dataset_tags) or listed(dataset),
        }
        if self.is_world_process_zero():
            write_model_card(self._setup, front, model_name)

    def log_artifact(self, path: str | Path, name: str | None = None) -> None:
        """Hand a file or a folder to every tracker of ``report_to``, during or after training.

        Trackers read it a moment later, so it should stay as it is.
        """
        found = Path(path)
        if not found.exists():
            raise ValueError(f"log_artifact: there is no file or folder {path}.")
        self._tell_trackers("log_artifact", found, name)
        self._note_logged("artifact", name or found.name, str(found))

    def log_image(self, name: str, image: Any) -> None:
        """Show a picture in every tracker of ``report_to``: a file, or an array of uint8, height x width [x 3]."""
        if not isinstance(image, (str, Path)):
            # A copy: it is read a moment later. What is no picture is refused now.
            image = np.array(image)
            png(image)
        elif not Path(image).is_file():
            raise ValueError(f"log_image: there is no file {image}.")
        self._tell_trackers("log_image", name, image, self.state.global_step)
        self._note_logged("image", name, str(image) if isinstance(image, (str, Path)) else None)

    def _tell_trackers(self, verb: str, *values: Any) -> None:
        if self._run is None:
            raise ValueError(f"{verb} belongs to a run: call it from a callback during train(), or after it.")
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, TrackerCallback):
                callback.tell(verb, *values)

    def _note_logged(self, kind: str, name: str, path: str | None) -> None:
        if self.is_world_process_zero():
            message, step = f"Logged the {kind} {name}.", self.state.global_step
            self._present_run().events.record(kind, message, step=step, level=logging.INFO, name=name, path=path)
