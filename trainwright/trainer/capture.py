"""A running training as a checkpoint: what is copied, what is written as it is, and by whom."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from trainwright.checkpoint.durable import Chunk
from trainwright.checkpoint.interchange.to_transformers import write_transformers_files
from trainwright.checkpoint.pack import TensorPack, file_chunks
from trainwright.checkpoint.saver import SaveJob
from trainwright.checkpoint.training_state import CALLBACKS, OPTIMIZER, RANDOM, TRAINING, flatten_optimizer, only_json
from trainwright.checkpoint.weights import WEIGHTS, Convert, copied_apart, save_config
from trainwright.config.fields import ours
from trainwright.core.state import callback_states
from trainwright.engines.torch.targets import unwrap
from trainwright.trainer.shared_capture import SharedFiles
from trainwright.trainer.signatures import is_ours, is_users_own

#: Key, in a parameter's optimizer state, of the weight that training goes on with.
IN_TRAINING = "weight_in_training"


@dataclass(frozen=True)
class Moment:
    """The parts of a run that are not in its weights: they may be those of the last boundary instead of now."""

    random: tuple[dict[str, Tensor], dict[str, Any]]
    position: dict[str, Any]
    #: Buffers as they were, where a step that is under way has changed them.
    buffers: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    #: Input tokens and floating point operations so far, where a step that is under way has added to them.
    counts: tuple[int, float] | None = None
    #: Weights as training goes on with them, by parameter, where those that are saved are not the same.
    in_training: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    #: A callback had ended the run (early stopping) when something else interrupted it.
    was_ending: bool = False


class Capture:
    """Builds save jobs; keeps the room in main memory between saves."""

    def __init__(self) -> None:
        self._packs: dict[str, TensorPack] = {}
        self._processor_files: dict[str, bytes] | None = None

    def job(self, trainer: Any, target: Path, moment: Moment | None) -> SaveJob:
        """Everything of ``trainer`` at ``moment`` (None for a checkpoint of the model alone)."""
        model = _model_tensors(trainer)
        parts, texts, files = self._contents(trainer, model, moment)
        convert = model[1] if model is not None else None
        job = SaveJob(
            target=target,
            step=trainer.state.global_step,
            fill=lambda folder: self._fill(trainer, folder, model_too=model is None),
            tensors=files,
            texts=texts,
        )
        if trainer.together is not None:
            shared = SharedFiles(trainer.together, parts, convert, self._pack)
            job.shared, job.size = shared, shared.size
            job.copy = self._copier(trainer, shared.packs, shared.parts)
            return job
        packs = {name: self._pack(name, tensors) for name, tensors in parts.items()}
        for name, pack in packs.items():
            files[name] = _reader(pack, convert if name == WEIGHTS else None)
        too_for_transformers = moment is not None and ours(trainer.args, "checkpoint_format") == "hf"
        job.size = sum(pack.size for pack in packs.values()) + (packs[OPTIMIZER].size if too_for_transformers else 0)
        job.copy = self._copier(trainer, packs, parts)
        if too_for_transformers:
            # From the files just written: what transformers reads is what we would read.
            job.finish = lambda folder: write_transformers_files(folder, folder)
        return job

    def _contents(
        self, trainer: Any, model: tuple[dict[str, Tensor], Convert | None] | None, moment: Moment | None
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, Callable[[], str]], dict[str, Callable[[], list[Chunk]]]]:
        """Large tensors by file, texts, and files that are small enough to be made at once."""
        parts: dict[str, dict[str, Tensor]] = {}
        if model is not None:
            parts[WEIGHTS] = _with_buffers(model[0], moment)
        texts: dict[str, Callable[[], str]] = {"config.yaml": arguments_text(trainer.args)}
        if (recipe := trainer._recipe_text()) is not None:
            texts["recipe.yaml"] = lambda: recipe
        files: dict[str, Callable[[], list[Chunk]]] = {}
        if moment is not None:
            parts[OPTIMIZER], optimizer = flatten_optimizer(
                trainer.optimizer.state_dict(), trainer._optimizer_parameter_names()
            )
            parts[OPTIMIZER] |= {f"state.{name}.{IN_TRAINING}": t for name, t in moment.in_training.items()}
            tensors, values = callback_tensors(trainer.callback_handler.callbacks)
            if tensors:
                parts[CALLBACKS] = tensors
            files[RANDOM] = _constant_chunks({name: tensor.cpu() for name, tensor in moment.random[0].items()})
            texts[TRAINING] = _training_text(trainer, moment, optimizer, values)
        else:
            files |= _recipe_state(trainer.modifiers)
        texts["trainer_state.json"] = _state_text(trainer, moment)
        return parts, texts, files

    def forget(self) -> None:
        """Give the memory back; the next save asks for it again."""
        self._packs.clear()

    def _pack(self, name: str, tensors: dict[str, Tensor]) -> TensorPack:
        pack = self._packs.get(name)
        if pack is None or not pack.fits(tensors):
            self._packs.pop(name, None)
            pack = self._packs[name] = TensorPack(tensors)
        return pack

    def _copier(
        self, trainer: Any, packs: dict[str, TensorPack], parts: dict[str, dict[str, Tensor]]
    ) -> Callable[[], bool] | None:
        """Copies now, or returns how to copy in the background, up to the next update."""
        if not may_copy_later(trainer, parts):
            for name, pack in packs.items():
                pack.copy(parts[name])
            return None
        # A forward pass writes buffers, so these are copied at once; parameters only an update changes.
        buffers = {name for name, _ in unwrap(trainer.model).named_buffers()}
        now = {name: t for name, t in parts.get(WEIGHTS, {}).items() if name in buffers}
        if now:
            packs[WEIGHTS].copy(now)
        later = {file: {n: t for n, t in tensors.items() if n not in now} for file, tensors in parts.items()}
        versions = [t._version for tensors in later.values() for t in tensors.values()]

        def copy() -> bool:
            for file, tensors in later.items():
                packs[file].copy(tensors)
            return versions == [t._version for tensors in later.values() for t in tensors.values()]

        return copy

    def _fill(self, trainer: Any, folder: Path, *, model_too: bool) -> None:
        """The small files, and whatever only the user's or the model's own code can write."""
        if model_too:
            trainer.save_model(str(folder), _internal_call=True)
            return
        save_config(unwrap(trainer.model), folder)
        if self._processor_files is None:
            before = set(folder.iterdir())
            trainer._save_processor(folder)
            added = [path for path in folder.iterdir() if path not in before and path.is_file()]
            # A tokenizer does not change while a model is trained, and writing one takes a while.
            self._processor_files = {path.name: path.read_bytes() for path in added}
        else:
            for name, contents in self._processor_files.items():
                (folder / name).write_bytes(contents)


def may_copy_later(trainer: Any, parts: dict[str, dict[str, Tensor]]) -> bool:
    """Whether nothing but our own update changes weights before the next boundary.

    Callbacks and methods that somebody else wrote may do anything; then the copy is made at once. From a GPU it is only
    queued, which costs nothing, and comes before later work by itself.
    """
    if not all(tensor.is_cpu for tensors in parts.values() for tensor in tensors.values()):
        return False
    if callable(getattr(trainer.optimizer, "eval", None)):
        return False
    return is_ours(trainer) and all(is_ours(callback) for callback in trainer.callback_handler.callbacks)


def _model_tensors(trainer: Any) -> tuple[dict[str, Tensor], Convert | None] | None:
    if is_users_own(trainer, "_save") or is_users_own(trainer, "save_model"):
        return None
    return copied_apart(unwrap(trainer.model))


def _with_buffers(tensors: dict[str, Tensor], moment: Moment | None) -> dict[str, Tensor]:
    earlier = moment.buffers if moment is not None else {}
    return tensors | {name: tensor for name, tensor in earlier.items() if name in tensors}


def _reader(pack: TensorPack, convert: Convert | None) -> Callable[[], list[Chunk]]:
    def chunks() -> list[Chunk]:
        plain = pack.chunks()
        if convert is None:
            return plain
        converted = convert(dict(pack.views))
        same = list(converted) == list(pack.views) and all(converted[n] is t for n, t in pack.views.items())
        return plain if same else file_chunks(converted)

    return chunks


def _constant_chunks(tensors: dict[str, Tensor]) -> Callable[[], list[Chunk]]:
    return lambda: file_chunks(tensors)


def _recipe_state(modifiers: list[Any]) -> dict[str, Callable[[], list[Chunk]]]:
    """Masks and ranges of a checkpoint that holds the model alone: it has no other place for them."""
    from trainwright.trainer.recipe_folder import STATE, state_file

    state = state_file(modifiers)
    return {} if state is None else {STATE: lambda: file_chunks(*state)}


def arguments_text(args: Any) -> Callable[[], str]:
    """The arguments as they are now; writing them as YAML, which takes longer, is left to the call of the answer."""
    frozen = args.to_dict()
    return lambda: yaml.safe_dump(frozen, sort_keys=False)


def _training_text(
    trainer: Any, moment: Moment, optimizer: dict[str, Any], callbacks: dict[str, Any]
) -> Callable[[], str]:
    engine = trainer.engine
    scaler = engine.precision.scaler
    scheduler = trainer.lr_scheduler
    # Turned into text at once: schedulers go on changing their lists while the checkpoint is written.
    settled = json.dumps(
        only_json(
            {
                "optimizer": optimizer,
                "scheduler": scheduler.state_dict() if scheduler is not None else None,
                "scaler": scaler.state_dict() if scaler is not None else None,
                "random": moment.random[1],
                "data": moment.position,
                "callbacks": callbacks,
                "parameters": _parameter_names(trainer),
                "imported_from": trainer._imported_from,
                "was_ending": moment.was_ending,
                "tools": tool_names(trainer),
                "processes": trainer._backend.world_size,
                "micro_batch": trainer._micro.state_dict() if trainer._micro.automatic else None,
            }
        )
    )
    loss, last_step = engine.meter.state(), engine.last_step()

    def text() -> str:
        rest = {**json.loads(settled), "loss": loss(), "last_step": last_step()}
        return json.dumps(rest, indent=2, sort_keys=True) + "\n"

    return text


def tool_names(trainer: Any) -> dict[str, str]:
    """What made the states of optimizer and schedule, by class and, for a schedule of ours, by its name."""
    schedule = _kind(trainer.lr_scheduler)
    chosen = trainer.args.lr_scheduler_type
    ours = trainer._own_scheduler and not is_users_own(trainer, "create_scheduler")
    return {
        "optimizer": _kind(trainer.optimizer),
        "schedule_class": schedule,
        "schedule": str(getattr(chosen, "value", chosen)) if ours else schedule,
    }


def _kind(tool: Any) -> str:
    """The name of a class; several that are driven as one name themselves."""
    return str(getattr(tool, "kind", type(tool).__name__))


def _parameter_names(trainer: Any) -> dict[str, Any]:
    """How parameters are ordered, which of them decay, and how the optimizer numbers them: export needs no model."""
    model = unwrap(trainer.model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    decays = set(trainer.get_decay_parameter_names(model))
    return {
        "order": trained,
        "decay": [name for name in trained if name in decays],
        "numbered": trainer._optimizer_parameter_names(),
        "groups_are_ours": trainer._own_optimizer and not is_users_own(trainer, "create_optimizer"),
    }


def _state_text(trainer: Any, moment: Moment | None) -> Callable[[], str]:
    """``trainer_state.json``; entries of the log are never changed once made, so a copy of the list will do."""
    state = trainer.state
    state.stateful_callbacks = callback_states([*trainer.callback_handler.callbacks, trainer.control])
    only_json({"callbacks": state.stateful_callbacks})
    stateful = json.loads(json.dumps(state.stateful_callbacks))
    counts = moment.counts if moment is not None else None
    tokens, operations = counts or (state.num_input_tokens_seen, state.total_flos + trainer.current_flos)
    frozen = dataclasses.replace(
        state,
        log_history=list(state.log_history),
        stateful_callbacks=stateful,
        num_input_tokens_seen=tokens,
        total_flos=operations,
    )
    return frozen.to_json


def callback_tensors(callbacks: list[Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """``state_dict()`` of callbacks that have one: tensors as ``<class>.<number>.<name>``, and the values."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, callback in numbered(callbacks).items():
        state = callback.state_dict()
        tensors |= {f"{key}.{name}": tensor.detach() for name, tensor in state.get("tensors", {}).items()}
        values[key] = state.get("values", {})
    return tensors, values


def numbered(callbacks: list[Any]) -> dict[str, Any]:
    """Callbacks with a ``state_dict`` under names that a second one of the same class does not take away."""
    found: dict[str, Any] = {}
    for callback in callbacks:
        if callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None)):
            name = type(callback).__name__
            found[f"{name}.{sum(key.startswith(f'{name}.') for key in found)}"] = callback
    return found
