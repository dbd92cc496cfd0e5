"""An experiment -> a Trainer with its model and data."""

from __future__ import annotations

import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.callbacks.progress import ProgressCallback
from trainwright.callbacks.run_directory import RunDirectoryCallback
from trainwright.checkpoint.manifest import holds, only_listed
from trainwright.config.arguments import TrainingArguments
from trainwright.config.backends import rank_from_environment
from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded, arguments_of
from trainwright.config.options import fitting_options
from trainwright.config.registry import find, load_object, split_reference
from trainwright.config.seq2seq import Seq2SeqTrainingArguments
from trainwright.config.trust import loss_name
from trainwright.core.data_words import DataWords
from trainwright.core.modifier import Modifier
from trainwright.core.phases import Phase
from trainwright.data.labels import labels_in
from trainwright.engines.torch.loss_functions.base import Loss
from trainwright.engines.torch.loss_functions.choosing import made_loss
from trainwright.engines.torch.loss_functions.ordinal import OrdinalLoss
from trainwright.engines.torch.randomness import set_seed
from trainwright.experiment.adapters import described, refuse_unusable, with_adapter
from trainwright.experiment.ensembles import make_ensemble, numbered_for_bags, refuse_no_held_out
from trainwright.experiment.media import with_whole_paths
from trainwright.experiment.row_numbers import with_row_numbers
from trainwright.experiment.sources import (
    BUILT_IN,
    as_dataset,
    eval_split,
    first,
    folder_of_rows,
    hold_out,
    load_rows,
    resolve,
)
from trainwright.experiment.tasks import task_kit, task_name
from trainwright.experiment.tasks.base import Given, MissingValues, Prepared
from trainwright.experiment.unused import refuse_idle_settings, unused_keys
from trainwright.trackers import build_tracker
from trainwright.trainer.seq2seq import Seq2SeqTrainer
from trainwright.trainer.trainer import Trainer
from trainwright.training.recipe_folder import restore_recipe

#: Options that people write for the longer names of the classes.
_SHORT_OPTIONS = {"early_stopping": {"patience": "early_stopping_patience", "threshold": "early_stopping_threshold"}}
#: Share of the built-in data that is held out.
_HOLDOUT = 0.2


@dataclass
class Built:
    """A Trainer that is ready, and how its data and predictions are read."""

    loaded: Loaded
    task: str
    args: TrainingArguments
    prepared: Prepared
    trainer: Trainer
    #: Of a trained model: those of its recipe, with their state.
    modifiers: list[Modifier] = dataclasses.field(default_factory=list)


def arguments_for(loaded: Loaded, **more: object) -> tuple[str, TrainingArguments]:
    """The task, and the experiment's TrainingArguments with what suits the task where it says nothing."""
    task = task_name(loaded)
    kind = Seq2SeqTrainingArguments if task == "seq2seq" else TrainingArguments
    settings = {**_usual(loaded), **task_kit(task).defaults(loaded), **more}
    if loaded.experiment.phases:
        settings["num_train_epochs"] = sum(_phase(loaded, name).epochs for name in loaded.experiment.phases)
    if not _evaluates(loaded):
        for name in ("metric_for_best_model", "load_best_model_at_end"):
            settings.pop(name, None)
    return task, arguments_of(loaded, kind, **settings)


def run_name(loaded: Loaded) -> str:
    """What a run is called: by the experiment, or by its file."""
    return loaded.experiment.name or Path(loaded.document.source).stem


def run_folder(loaded: Loaded) -> Path:
    """Where a run writes."""
    for section in (loaded.experiment.training, loaded.experiment.checkpoint):
        if section.get("output_dir") is not None:
            return Path(str(section["output_dir"])).expanduser()
    name = run_name(loaded)
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise loaded.error(("name",), f"{name!r} leads out of runs/: choose another, or set training.output_dir.")
    return Path("runs") / name


def _usual(loaded: Loaded) -> dict[str, Any]:
    """What a run from a file does unless it is told otherwise: it logs, evaluates, saves and keeps two checkpoints."""
    said = {name for section in (loaded.experiment.training, loaded.experiment.checkpoint) for name in section}
    usual: dict[str, Any] = {"output_dir": str(run_folder(loaded)), "run_name": run_name(loaded)}
    if not said & {"logging_strategy", "logging_steps", "log_every"}:
        usual["log_every"] = "5%"
    if not said & {"save_strategy", "save_steps", "checkpoint_every"}:
        usual["checkpoint_every"] = "1 epoch or 10 minutes"
    if not said & {"save_total_limit"}:
        usual["save_total_limit"] = 2
    if not said & {"eval_strategy", "evaluation_strategy", "eval_steps", "evaluate_every"} and _evaluates(loaded):
        usual["evaluate_every"] = "1 epoch"
    return usual


def _evaluates(loaded: Loaded) -> bool:
    data = loaded.experiment.data
    return bool(data.eval or data.holdout or data.train in BUILT_IN or (data.train and eval_split(loaded)))


def build(loaded: Loaded, *, facts: dict[str, Any] | None = None, **more: Any) -> Built:
    """Everything that training needs; ``more`` are TrainingArguments that the experiment leaves open."""
    if loaded.experiment.data.train is None:
        raise ConfigError(f"{loaded.where(('data', 'train'))}: data.train is missing: what should it learn from?")
    refuse_unusable(loaded)
    task, args = arguments_for(loaded, **more)
    refuse_idle_settings(loaded, args)
    for line in unused_keys(loaded, task) if rank_from_environment().rank == 0 else []:
        logging.getLogger("trainwright").warning(line)
    # Before the model is made: its first weights are part of what a seed gives.
    set_seed(args.seed)
    train, evaluation = training_rows(loaded, args)
    refuse_no_held_out(loaded, evaluation)
    prepared = _prepared(task, args.seed, Given(loaded, train, facts), train, evaluation)
    try:
        trainer = _trainer(loaded, args, prepared, training=True)
    except ConfigError:
        raise
    except ValueError as error:
        # What a Trainer refuses before any work is a matter of its settings.
        raise ConfigError(f"{loaded.document.source}: {error}") from error
    return Built(loaded, task, args, prepared, trainer)


def _prepared(task: str, seed: int, given: Given, train: object = None, evaluation: object = None) -> Prepared:
    try:
        kit = task_kit(task)
        prepared = kit.prepare(given)
        if given.loaded.experiment.adapter is not None:
            prepared.model = with_adapter(given.loaded, task, prepared.model)
            prepared.notes.append(described(prepared.model))
        encode = prepared.encode_train or prepared.encode
        prepared.train = None if train is None else numbered_for_bags(given.loaded, encode(train))
        if given.loaded.experiment.model.ensemble is not None:
            make_ensemble(kit, given, prepared, seed=seed, loss=_loss(given.loaded, prepared))
        prepared.eval = None if evaluation is None else prepared.encode(evaluation)
        return prepared
    except ConfigError:
        raise
    except MissingValues as error:
        told = with_row_numbers(given.loaded, error)
        raise ConfigError(f"{given.loaded.where(('data',))}: {told}") from error
    except ValueError as error:
        raise ConfigError(f"{given.loaded.where(('data',))}: {error}") from error


def build_trained(loaded: Loaded, weights: Path, facts: dict[str, Any] | None) -> Built:
    """A Trainer with the model of an earlier run, for evaluation and prediction; ``weights`` is its folder."""
    task, training = arguments_for(loaded)
    args = without_training(training)
    set_seed(args.seed)
    is_folder_of_hf = holds(weights, "config.json")
    train = None
    if facts is None:
        train, _ = training_rows(loaded, args)
    with only_listed(weights) as source:
        prepared = _prepared(task, args.seed, Given(loaded, train, facts, str(source) if is_folder_of_hf else None))
    built = Built(loaded, task, args, prepared, _trainer(loaded, args, prepared, training=False))
    # Its metrics.jsonl is the curve of the training.
    built.trainer.remove_callback(RunDirectoryCallback)
    if not sys.stdout.isatty():
        # The result is what is asked for, perhaps by a program.
        built.trainer.remove_callback(ProgressCallback)
    # Fake quantization and smaller layers are part of the model that was trained.
    built.modifiers = restore_recipe(built.prepared.model, weights)
    if not is_folder_of_hf:
        try:
            built.trainer._load_from_checkpoint(str(weights))
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return built


def without_training(args: TrainingArguments) -> TrainingArguments:
    """``args`` for a Trainer that only looks: nothing is due while training, because there is none."""
    off: dict[str, Any] = {"evaluate_every": None, "eval_strategy": "no", "save_strategy": "no"}
    off |= {"save_best": False, "load_best_model_at_end": False, "resume": None, "rewind_on_nonfinite": False}
    off |= {"checkpoint_every": None, "report_to": "none", "lr_scheduler_type": "linear"}
    return dataclasses.replace(args, **off)


def rows_of(loaded: Loaded, part: str, **chosen: Any) -> Any:
    """Rows as tasks take them, with columns; a model of one's own gets what one's code gives."""
    task = task_name(loaded)
    rows = load_rows(loaded, part, as_written=getattr(task_kit(task), "reads_as_written", False), **chosen)
    rows = as_dataset(rows) if isinstance(rows, (list, tuple, dict)) and task != "own" else rows
    if getattr(task_kit(task), "reads_files", False):
        return with_whole_paths(rows, folder_of_rows(loaded, part, name=chosen.get("name"), phase=chosen.get("phase")))
    return rows


def training_rows(loaded: Loaded, args: TrainingArguments) -> tuple[Any, Any]:
    """(train, evaluation or None)."""
    data = loaded.experiment.data
    train = rows_of(loaded, "train")
    evaluation = None
    if data.eval is not None:
        evaluation = rows_of(loaded, "eval")
    elif data.holdout is not None or data.train in BUILT_IN:
        share = data.holdout if data.holdout is not None else _HOLDOUT
        if not 0 < share < 1:
            raise loaded.error(("data", "holdout"), f"{share} should be a share between 0 and 1, such as 0.1.")
        try:
            train, evaluation = hold_out(train, share, seed=0)
        except ValueError as error:
            raise loaded.error(("data", "holdout"), str(error)) from None
    elif (split := eval_split(loaded)) is not None:
        evaluation = rows_of(loaded, "train", split=split)
    return first(train, data.limit_train), first(evaluation, data.limit_eval) if evaluation is not None else None


def _trainer(loaded: Loaded, args: TrainingArguments, prepared: Prepared, *, training: bool) -> Trainer:
    kind = prepared.trainer or (Seq2SeqTrainer if isinstance(args, Seq2SeqTrainingArguments) else Trainer)
    metrics = prepared.metrics
    if loaded.experiment.model.metrics is not None:
        if split_reference(loaded.experiment.model.metrics) is None:
            raise loaded.error(("model", "metrics"), "write my_file.py:function.")
        reference = resolve(loaded, ("model", "metrics"), loaded.experiment.model.metrics)
        metrics = load_object(reference, "model.metrics")
    if training and loaded.experiment.trackers:
        args.report_to = [*_named_trackers(args), *trackers_of(loaded)]
    trainer = kind(
        model=prepared.model,
        args=args,
        data_collator=prepared.collator,
        train_dataset=prepared.train,
        eval_dataset=prepared.eval,
        processing_class=prepared.processor,
        # Members have it for themselves.
        compute_loss_func=None if loaded.experiment.model.ensemble else _loss(loaded, prepared),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=prepared.preprocess_logits,
        callbacks=_callbacks(loaded) if training else None,
        phases=_phases(loaded, prepared) if training else None,
        **(_recipe(loaded) if training else {}),
    )
    trainer.data_words = _words_of(prepared.facts)
    return trainer


def _words_of(facts: dict[str, Any]) -> DataWords:
    """What a task knows of its data, for reports and the like."""
    unit: dict[str, Any] = facts.get("target_scale") or {}
    columns = [column for column in facts.get("columns") or [] if isinstance(column, dict)]
    return DataWords(facts.get("classes") or (), unit.get("mean", 0.0), unit.get("scale", 1.0), columns)


def _loss(loaded: Loaded, prepared: Prepared) -> Any:
    place, name = loss_name(loaded.experiment.model)
    if name is None:
        return None
    said = loaded.experiment.model.loss
    options = {key: value for key, value in said.items() if key != "name"} if isinstance(said, dict) else {}
    if split_reference(name) is None:
        found = find("loss", name, f"{loaded.where(place)}: model.loss")
    else:
        found = load_object(resolve(loaded, place, name), "model.loss")
    try:
        loss = made_loss(found, options)
        if isinstance(loss, OrdinalLoss) and loss.outputs == "borders" and task_name(loaded) != "own":
            raise ValueError("outputs: borders is for a network with one output less than classes; take classes here.")
        if isinstance(loss, Loss) and loss.counts_labels:
            _weigh_classes(loss, prepared)
        return loss
    except (ValueError, TypeError) as error:
        starts = {key: (key, f"there is no option {key!r}") for key in options}
        wrong = next((key for key in options if str(error).startswith(starts[key])), None)
        raise loaded.error(place[:2] if wrong is None else (*place[:2], wrong), str(error)) from error


def _weigh_classes(loss: Loss, prepared: Prepared) -> None:
    """Weights from the data, kept with the run: it is evaluated without what it was trained on."""
    if prepared.train is not None:
        loss.take_labels(labels_in(prepared.train))
        prepared.facts["loss_weights"] = loss.found_weights
    elif prepared.facts.get("loss_weights") is not None:
        loss.take_weights(prepared.facts["loss_weights"])


def _phases(loaded: Loaded, prepared: Prepared) -> list[Phase] | None:
    """The phases that the experiment lists, with the data of those that have their own."""
    found = []
    encode = prepared.encode_train or prepared.encode
    for name, said in loaded.experiment.phases.items():
        rows = None
        if said.data is not None:
            try:
                rows = numbered_for_bags(loaded, encode(first(rows_of(loaded, "train", phase=name), said.limit)))
            except ConfigError:
                raise
            except ValueError as error:
                raise loaded.error(("phases", name), str(error)) from error
        found.append(_phase(loaded, name, rows))
    return found or None


def _phase(loaded: Loaded, name: str, rows: Any = None) -> Phase:
    said, place = loaded.experiment.phases[name], ("phases", name)
    settings = {one.name: getattr(said, one.name) for one in dataclasses.fields(said)}
    own, limit = settings.pop("data"), settings.pop("limit")
    if own is None and limit is not None:
        raise loaded.error((*place, "limit"), "it counts rows of the phase's own data: add data:.")
    try:
        return Phase(name, train_dataset=rows, **settings)
    except ValueError as error:
        raise loaded.error(place, str(error)) from error


def _recipe(loaded: Loaded) -> dict[str, Any]:
    """What the experiment says about a recipe; files are looked for beside the experiment's."""
    experiment = loaded.experiment
    if experiment.teacher is not None and experiment.distill_teacher is not None:
        raise loaded.error(("distill_teacher",), "teacher: says the same; keep one.")
    place = ("teacher",) if experiment.teacher is not None else ("distill_teacher",)
    teacher = experiment.teacher or experiment.distill_teacher
    if teacher is not None and teacher not in ("self", "disable"):
        teacher = resolve(loaded, place, teacher)
    recipe = experiment.recipe
    return {
        "recipe": resolve(loaded, ("recipe",), recipe) if isinstance(recipe, str) and "\n" not in recipe else recipe,
        "recipe_args": experiment.recipe_args,
        "metadata_args": experiment.metadata_args or None,
        "teacher": teacher,
    }


def _named_trackers(args: TrainingArguments) -> list[Any]:
    named: Any = args.report_to
    return list(named) if isinstance(named, list) else []


def trackers_of(loaded: Loaded) -> list[Any]:
    """The trackers that ``trackers:`` lists, none of them started."""
    found = []
    for name, options in loaded.experiment.trackers.items():
        place = ("trackers", name)
        try:
            found.append(build_tracker(resolve(loaded, place, name) if split_reference(name) else name, options))
        except (ValueError, TypeError) as error:
            raise loaded.error(place, str(error)) from error
    return found


def _callbacks(loaded: Loaded) -> list[Any]:
    found = []
    for name, options in loaded.experiment.callbacks.items():
        place = ("callbacks", name)
        if split_reference(name) is None:
            make: Any = find("callback", name, f"{loaded.where(place)}: callbacks")
        else:
            make = load_object(resolve(loaded, place, name), f"callbacks.{name}")
        longer = _SHORT_OPTIONS.get(name, {})
        shorter = {long: short for short, long in longer.items()}
        try:
            named = {longer.get(key, key): value for key, value in options.items()}
            found.append(make(**fitting_options(make, named, shorter)))
        except (ValueError, TypeError) as error:
            raise loaded.error(place, str(error)) from error
    return found
