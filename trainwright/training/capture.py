"""A running training as a checkpoint: what is copied, what is written as it is, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trainwright.checkpoint.adapters import BESIDE, adapter_files, left_out_by_adapters
from trainwright.checkpoint.durable import Chunk, discard
from trainwright.checkpoint.interchange.to_transformers import write_transformers_files
from trainwright.checkpoint.left_out import LeftOut, clear_the_way
from trainwright.checkpoint.optimizer_state import OWN_TYPE, flatten_optimizer, of_own_type
from trainwright.checkpoint.pack import TensorPack, file_chunks
from trainwright.checkpoint.save_room import SMALLEST, RoomToucher, there_is_room
from trainwright.checkpoint.saver import SaveJob
from trainwright.checkpoint.shared_files import SharedFiles, gathered
from trainwright.checkpoint.stored_log import LOG
from trainwright.checkpoint.training_state import CALLBACKS, OPTIMIZER, RANDOM, TRAINING
from trainwright.checkpoint.weights import (
    WEIGHTS,
    Convert,
    copied_apart,
    save_generation_config,
    save_model_config,
    stored_once,
)
from trainwright.core.config_history import FILE as HISTORY
from trainwright.core.config_history import history_text
from trainwright.core.log_history import LogFiles
from trainwright.engines.torch.optim import not_held
from trainwright.engines.torch.samples import sample
from trainwright.engines.torch.targets import unwrap
from trainwright.training.checkpoint_texts import Snapshot, arguments_text, callback_tensors, state_text, training_text
from trainwright.training.hooks import is_ours, is_users_own
from trainwright.training.log_keeping import log_for_checkpoint
from trainwright.training.optimizers import optimizer_parameter_names
from trainwright.training.recipe_folder import STATE, state_file
from trainwright.training.run import TrainingRun
from trainwright.training.save_model import run_folder
from trainwright.training.setup import Setup

#: Key, in a parameter's optimizer state, of the weight that training goes on with.
IN_TRAINING = "weight_in_training"


#: Bytes of weights that no update changes and that are copied before training goes on all the same.
_COPIED_AT_ONCE = 256 * 2**20


class Capture:
    """Builds save jobs; keeps the room in main memory between saves.

    Weights, optimizer, random numbers and the place in the data are in every checkpoint. What other people's objects
    add (tokenizers, configurations, states of callbacks) is added if it can be, and named if it cannot.
    """

    def __init__(self) -> None:
        self._packs: dict[str, TensorPack] = {}
        self._processor_files: dict[str, bytes] | None = None
        self._turn = 0
        self._toucher: RoomToucher | None = None

    def prepare(self, setup: Setup) -> None:
        """Make the room that the first checkpoint will need, and touch it in the background."""
        left_out, model = LeftOut(), _model_tensors(setup)
        parts = {} if model is None else {WEIGHTS: model[0]}
        if not setup.args.save_only_model:
            parts[OPTIMIZER] = _optimizer_state(setup, left_out)[0]
        size = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values())
        on_cpu = all(tensor.is_cpu for tensors in parts.values() for tensor in tensors.values())
        if not on_cpu or size < SMALLEST or not there_is_room(size):
            return
        toucher = RoomToucher([self._pack(name, tensors).room for name, tensors in parts.items()])
        self._toucher = toucher if toucher.start() else None

    def _stop_touching(self) -> None:
        if self._toucher is not None:
            self._toucher.stop()
            self._toucher = None

    def job(self, run: TrainingRun, target: Path, snapshot: Snapshot | None) -> SaveJob:
        """Everything of ``run`` at ``snapshot`` (None for a checkpoint of the model alone)."""
        self._stop_touching()
        setup = run.setup
        left_out = LeftOut()
        model = _model_tensors(setup)
        parts, texts, files = self._contents(run, model, snapshot, left_out)
        convert = _forgiving(model[1], left_out) if model is not None else None
        job = SaveJob(
            target=target,
            step=setup.state.global_step,
            fill=lambda folder: self._fill(run, folder, left_out, model_too=model is None),
            tensors=files,
            texts=texts,
            run=run.owner.run,
            left_out=left_out,
            refers_to=LogFiles(run_folder(setup)).both if LOG in texts else (),
        )
        if setup.writers is not None:
            shared = SharedFiles(setup.writers, parts, convert, self._pack)
            job.shared, job.size = shared, shared.size
            job.copy = self._copier(run, shared.packs, shared.parts)
            return job
        packs = {name: self._pack(name, tensors) for name, tensors in parts.items()}
        for name, pack in packs.items():
            files[name] = _reader(pack, convert if name == WEIGHTS else None)
        too_for_transformers = snapshot is not None and setup.args.checkpoint_format == "hf"
        job.size = sum(pack.size for pack in packs.values()) + (packs[OPTIMIZER].size if too_for_transformers else 0)
        job.copy = self._copier(run, packs, parts)
        if too_for_transformers:
            # From the files just written: what transformers reads is what we would read.
            job.finish = lambda folder: write_transformers_files(folder, folder)
        return job

    def _contents(
        self,
        run: TrainingRun,
        model: tuple[dict[str, Tensor], Convert | None] | None,
        snapshot: Snapshot | None,
        left_out: LeftOut,
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, Callable[[], str]], dict[str, Callable[[], list[Chunk]]]]:
        """Large tensors by file, texts, and files that are small enough to be made at once."""
        setup = run.setup
        parts: dict[str, dict[str, Tensor]] = {}
        if model is not None:
            parts[WEIGHTS] = _with_buffers(model[0], snapshot)
        texts: dict[str, Callable[[], str]] = {}
        if (arguments := left_out.attempt("config.yaml", lambda: arguments_text(setup.given_args), None)) is not None:
            texts["config.yaml"] = arguments
        if run.history:
            texts[HISTORY] = partial(history_text, list(run.history))
        if (recipe := setup.hooks().recipe_text()) is not None:
            texts["recipe.yaml"] = lambda: recipe
        files: dict[str, Callable[[], list[Chunk]]] = {}
        log, noted = log_for_checkpoint(setup)
        texts |= {"trainer_state.json": state_text(setup, snapshot, left_out, log), **noted}
        if snapshot is not None:
            parts[OPTIMIZER], optimizer = _optimizer_state(setup, left_out)
            parts[OPTIMIZER] |= {f"state.{name}.{IN_TRAINING}": t for name, t in snapshot.in_training.items()}
            tensors, values = callback_tensors(setup.callbacks.everyone, left_out)
            if tensors:
                parts[CALLBACKS] = tensors
            files[RANDOM] = _constant_chunks({name: tensor.cpu() for name, tensor in snapshot.random[0].items()})
            texts[TRAINING] = training_text(run, snapshot, optimizer, values, left_out)
        else:
            files |= _recipe_state(setup.modifiers)
        return parts, texts, files

    def forget(self) -> None:
        """Give the memory back; the next save asks for it again."""
        self._stop_touching()
        self._packs.clear()

    def _pack(self, name: str, tensors: dict[str, Tensor]) -> TensorPack:
        pack = self._packs.get(name)
        if pack is None or not pack.fits(tensors):
            self._packs.pop(name, None)
            pack = self._packs[name] = TensorPack(tensors)
        return pack

    def _copier(
        self, run: TrainingRun, packs: dict[str, TensorPack], parts: dict[str, dict[str, Tensor]]
    ) -> Callable[[], bool] | None:
        """Copies now, or returns how to copy in the background, up to the next update."""
        setup = run.setup
        if not may_copy_later(setup, parts):
            for name, pack in packs.items():
                pack.copy(parts[name])
            return None
        # A forward pass writes buffers, so these are copied at once; parameters only an update should change.
        at_once = {name for name, _ in unwrap(setup.model).named_buffers()} | _not_updated(setup)
        now = {name: t for name, t in parts.get(WEIGHTS, {}).items() if name in at_once}
        if now:
            packs[WEIGHTS].copy(now)
        later = {file: {n: t for n, t in tensors.items() if n not in now} for file, tensors in parts.items()}
        versions = [t._version for tensors in later.values() for t in tensors.values()]
        self._turn += 1
        samples = {file: {n: sample(t, self._turn) for n, t in tensors.items()} for file, tensors in later.items()}

        def copy() -> bool:
            for file, tensors in later.items():
                packs[file].copy(tensors)
            if versions != [t._version for tensors in later.values() for t in tensors.values()]:
                return False
            # Writes through `.data` are counted nowhere.
            return all(seen.matches(packs[file].views[n]) for file, own in samples.items() for n, seen in own.items())

        return copy

    def _fill(self, run: TrainingRun, folder: Path, left_out: LeftOut, *, model_too: bool) -> None:
        """The small files, and whatever only the user's or the model's own code can write."""
        setup = run.setup
        if model_too:
            _save_by_its_own_code(setup, folder, left_out)
            return
        model = unwrap(setup.model)
        left_out.add_files("the model's config.json", folder, lambda: save_model_config(model, folder))
        left_out.add_files("the model's generation_config.json", folder, lambda: save_generation_config(model, folder))
        if self._processor_files is None:
            self._add_processor(run, folder, left_out)
        else:
            for name, contents in self._processor_files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(contents)

    def _add_processor(self, run: TrainingRun, folder: Path, left_out: LeftOut) -> None:
        """Let the tokenizer or processor write its files, and keep them: it does not change while a model trains."""
        before = set(folder.rglob("*"))
        what = "the files of the tokenizer or processor"
        if left_out.add_files(what, folder, lambda: run.setup.hooks().save_processor(folder)):
            added = [path for path in folder.rglob("*") if path not in before and path.is_file()]
            self._processor_files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in added}


def _save_by_its_own_code(setup: Setup, folder: Path, left_out: LeftOut) -> None:
    """A model that only the user's or its own code knows how to write; our own form where that fails."""
    model = unwrap(setup.model)

    def write() -> bool:
        setup.hooks().save_model(str(folder), _internal_call=True)
        clear_the_way(folder)
        return True

    if left_out.attempt("the files that its own code writes of the model", write, False):
        if adapter_files(model, folder):
            rest = gathered(left_out_by_adapters(model, folder), keep=setup.args.should_save)
            if rest and setup.args.should_save:
                save_file({name: tensor.contiguous().clone() for name, tensor in rest.items()}, folder / BESIDE)
        return
    whole = gathered(stored_once(model.state_dict()), keep=setup.args.should_save)
    if setup.args.should_save:
        for path in list(folder.iterdir()):
            discard(path) if path.is_dir() else path.unlink()
        save_file({name: tensor.contiguous() for name, tensor in whole.items()}, folder / WEIGHTS, {"format": "pt"})


def may_copy_later(setup: Setup, parts: dict[str, dict[str, Tensor]]) -> bool:
    """Whether nothing but our own update changes weights before the next boundary.

    Callbacks and methods that somebody else wrote may do anything; then the copy is made at once. From a GPU it is only
    queued, which costs nothing, and comes before later work by itself.
    """
    if not all(tensor.is_cpu for tensors in parts.values() for tensor in tensors.values()):
        return False
    if callable(getattr(setup.optimizer, "eval", None)) or setup.engine.boundary.written_parameters:
        return False
    return is_ours(setup.hooks()) and all(is_ours(callback) for callback in setup.callbacks.everyone)


def _not_updated(setup: Setup) -> set[str]:
    """Parameters that no update changes, the smaller ones: if they change, the model writes them by itself.

    It may do so in a few elements (queues, codebooks), and in late steps only, where a sample would miss it.
    """
    found, size = set[str](), 0
    names = {id(parameter): name for name, parameter in unwrap(setup.model).named_parameters()}
    for parameter in sorted(not_held(setup.optimizer, setup.model.parameters()), key=lambda p: p.nbytes):
        size += parameter.nbytes
        if size > _COPIED_AT_ONCE:
            break
        found.add(names[id(parameter)])
    return found


def _model_tensors(setup: Setup) -> tuple[dict[str, Tensor], Convert | None] | None:
    if is_users_own(setup.hooks(), "_save") or is_users_own(setup.hooks(), "save_model"):
        return None
    return copied_apart(unwrap(setup.model))


def _optimizer_state(setup: Setup, left_out: LeftOut) -> tuple[dict[str, Tensor], dict[str, Any]]:
    names = optimizer_parameter_names(setup)
    tensors, values = flatten_optimizer(setup.optimizer.state_dict(), names, left_out)
    parameters = (parameter for group in setup.optimizer.param_groups for parameter in group["params"])
    return tensors, {**values, OWN_TYPE: of_own_type(tensors, dict(zip(names, parameters, strict=True)))}


def _with_buffers(tensors: dict[str, Tensor], snapshot: Snapshot | None) -> dict[str, Tensor]:
    earlier = snapshot.buffers if snapshot is not None else {}
    return tensors | {name: tensor for name, tensor in earlier.items() if name in tensors}


def _forgiving(convert: Convert | None, left_out: LeftOut) -> Convert | None:
    """``convert``, or the weights under the names they have in memory where it fails."""
    if convert is None:
        return None
    what = "the names that transformers stores weights under"
    return lambda copies: left_out.attempt(what, lambda: convert(copies), copies)


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

    state = state_file(modifiers)
    return {} if state is None else {STATE: lambda: file_chunks(*state)}
