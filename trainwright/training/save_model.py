"""Write a model so that from_pretrained reads it."""

from __future__ import annotations

import contextlib
import copy
import logging
from pathlib import Path

import torch
from torch import Tensor

from trainwright.checkpoint.pack import TensorPack
from trainwright.checkpoint.shared_files import SharedFiles, gathered, saved_by_all
from trainwright.checkpoint.weights import WEIGHTS, copied_apart, save_config, save_weights
from trainwright.checkpoint.writer_group import WriterGroup
from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.config.stored_arguments import FILE as CONFIG
from trainwright.core.dtensors import is_dtensor
from trainwright.engines.torch.targets import unwrap
from trainwright.recipes.pruning.layers import PassThrough
from trainwright.training.checkpoint_texts import arguments_text
from trainwright.training.hooks import is_users_own
from trainwright.training.recipe_folder import state_file, write_recipe_files
from trainwright.training.setup import Setup

logger = logging.getLogger("trainwright")


def save_model(setup: Setup, output_dir: str | Path | None = None) -> None:
    """Write the model (and tokenizer or processor) so that ``from_pretrained`` reads it.

    Without ``output_dir`` it goes to the checkpointer, if the Trainer was given one. Where the weights are in
    parts (FSDP, DeepSpeed), every process must call this; with FSDP each writes some of them.
    """
    setup.engine.weights.settle()
    output_dir = place_of_a_try(setup, output_dir)
    if takes_all_to_save(setup):
        save_by_all(setup, Path(output_dir or run_folder(setup)))
        return
    with setup.engine.weights.whole(setup.model, keep=setup.args.should_save):
        if not setup.args.should_save:
            return
        if output_dir is None and setup.checkpointer is not None:
            setup.checkpointer.save_model(unwrap(setup.model), setup.state.global_step)
        else:
            setup.hooks()._save(str(output_dir or run_folder(setup)))


def place_of_a_try(setup: Setup, output_dir: str | Path | None) -> str | Path | None:
    """``output_dir``; of a ``fast_dev_run`` the temporary folder, whatever folder a script names."""
    if not setup.args.fast_dev_run or output_dir is None or Path(output_dir) == run_folder(setup):
        return output_dir
    logger.warning("fast_dev_run: nothing is written to %s; the model goes into a temporary folder.", output_dir)
    return None


def write_model(
    setup: Setup, output_dir: str | Path | None = None, state_dict: dict[str, Tensor] | None = None
) -> None:
    folder = Path(output_dir or run_folder(setup))
    folder.mkdir(parents=True, exist_ok=True)
    model = unwrap(setup.model)
    save_weights(model, folder, state_dict)
    save_beside(setup, folder)
    _let_the_same_people_read(folder)
    if hasattr(model, "config") and any(isinstance(layer, PassThrough) for layer in model.modules()):
        logger.warning(
            "The recipe dropped layers that the configuration still counts: from_pretrained would give them random "
            "weights. `trainwright export FOLDER --to safetensors` writes the shorter model."
        )


def save_beside(setup: Setup, folder: Path) -> None:
    """What a saved model has besides weights and configuration."""
    setup.hooks().save_processor(folder)
    (folder / CONFIG).write_text(arguments_text(setup.given_args)(), encoding="utf-8")
    if setup.args.checkpoint_format == "hf":
        write_arguments_file(setup.given_args, folder)
    write_recipe_files(folder, setup.hooks().recipe_text(), setup.gathered_recipe_state or state_file(setup.modifiers))


def write_arguments_file(args: TrainingArguments, folder: Path) -> None:
    """``training_args.bin``, which tools around transformers look for; without secrets. It is never read here."""
    told = copy.copy(args)
    # What the arguments were made from is in the resolution, a token too; trackers' options may hold keys.
    told.__dict__.update(hub_token=None, push_to_hub_token=None, tracker_options=None, _resolution=None)
    torch.save(told, folder / "training_args.bin")


def _let_the_same_people_read(folder: Path) -> None:
    """The weights as well as the configuration: safetensors 0.8 writes them for their owner alone."""
    readers = (folder / CONFIG).stat().st_mode & 0o044
    for path in (path for path in folder.glob("*.safetensors") if not path.is_symlink()):
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | readers)


def takes_all_to_save(setup: Setup) -> bool:
    """Whether no process has all the weights."""
    return setup.engine.weights.layout.in_parts and any(is_dtensor(parameter) for parameter in setup.model.parameters())


def shared_writers(setup: Setup) -> WriterGroup | None:
    """The processes that write together, where it takes all of them."""
    if not setup.engine.weights.layout.in_parts:
        return None
    if setup.writers is None:
        setup.backend.start(setup.given_args)
        setup.writers = WriterGroup(setup.args.ddp_timeout)
    return setup.writers


def save_by_all(setup: Setup, folder: Path) -> None:
    writers = shared_writers(setup)
    assert writers is not None
    # While all are here: a mask may be in parts too.
    setup.gathered_recipe_state = state_file(setup.modifiers)
    try:
        save_parts(setup, folder, writers)
    finally:
        setup.gathered_recipe_state = None


def save_parts(setup: Setup, folder: Path, writers: WriterGroup) -> None:
    model = None if is_users_own(setup.hooks(), "_save") else copied_apart(unwrap(setup.model))
    if model is None:
        # Only somebody else's code knows how to write it, and that wants everything in one place.
        whole = gathered(unwrap(setup.model).state_dict(), keep=setup.args.should_save)
        if setup.args.should_save:
            setup.hooks()._save(str(folder), state_dict=whole)
        setup.backend.barrier()
        return
    files = SharedFiles(writers, {WEIGHTS: model[0]}, model[1], lambda kind, tensors: TensorPack(tensors))
    if setup.args.should_save:
        folder.mkdir(parents=True, exist_ok=True)
        save_config(unwrap(setup.model), folder)
        save_beside(setup, folder)
    saved_by_all(folder, files)


def save_processor(setup: Setup, folder: Path) -> None:
    processor = setup.processing_class or getattr(setup.data_collator, "tokenizer", None)
    if hasattr(processor, "save_pretrained"):
        processor.save_pretrained(str(folder))


def run_folder(setup: Setup) -> Path:
    return run_directory(setup.args)
