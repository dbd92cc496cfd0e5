"""``adapter:`` of an experiment: the model with small matrices that are trained in its place (PEFT)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from trainwright.config.errors import ConfigError
from trainwright.config.experiment import AdapterSection
from trainwright.config.extras import install
from trainwright.config.loading import Loaded
from trainwright.config.registry import split_reference
from trainwright.experiment.sources import resolve

_KINDS = ("lora", "dora", "rslora")
#: What PEFT should know of a task: it then keeps heads whole that are new.
_TASK_TYPES = {
    "chat": "CAUSAL_LM",
    "causal-lm": "CAUSAL_LM",
    "seq2seq": "SEQ_2_SEQ_LM",
    "text-classification": "SEQ_CLS",
}


def refuse_unusable(loaded: Loaded) -> None:
    """Before data and model are read: an adapter that could not be trained, or not be found again."""
    _refuse_adapter_as_model(loaded)
    section = loaded.experiment.adapter
    if section is None:
        return
    if section.kind not in _KINDS:
        raise loaded.error(("adapter", "kind"), f"{section.kind!r} is none of {', '.join(_KINDS)}.")
    if section.r < 1:
        raise loaded.error(("adapter", "r"), f"{section.r} should be at least 1.")
    if not 0 <= section.dropout < 1:
        raise loaded.error(("adapter", "dropout"), f"{section.dropout} should lie between 0 and 1.")
    if section.alpha is not None and section.alpha <= 0:
        raise loaded.error(("adapter", "alpha"), f"{section.alpha} should be more than 0.")
    if loaded.experiment.model.ensemble is not None:
        raise loaded.error(("adapter",), "members of an ensemble are trained whole: leave out one of the two.")
    if not loaded.experiment.model.pretrained:
        raise loaded.error(
            ("adapter",),
            "model.pretrained: false starts from new weights, which no checkpoint of an adapter would hold: leave out "
            "one of the two.",
        )
    _library(loaded)


def _refuse_adapter_as_model(loaded: Loaded) -> None:
    """A folder that holds an adapter alone: its model would be read without it, or with nothing to train."""
    name = loaded.experiment.model.name
    if not name or split_reference(name) is not None:
        return
    folder = Path(resolve(loaded, ("model", "name"), name))
    if not (folder / "adapter_config.json").is_file():
        return
    merged = f"{folder.name}-merged"
    if any((place / "experiment.yaml").is_file() for place in (folder, folder.parent)):
        way = (
            f"add it to its model first (trainwright export {name} --to merged --output {merged}) and set model.name: "
            f"{merged}, or go on with the run that trained it, by its own experiment and with more epochs."
        )
    else:
        way = "add it to its model first (merge_and_unload of PEFT, then save_pretrained) and name the folder of that."
    raise loaded.error(("model", "name"), f"{name} holds an adapter and not a whole model, and it would be lost: {way}")


def with_adapter(loaded: Loaded, task: str, model: nn.Module) -> nn.Module:
    """``model`` with the adapter that the experiment describes, if it describes one."""
    section = loaded.experiment.adapter
    if section is None:
        return model
    peft = _library(loaded)
    try:
        with warnings.catch_warnings():
            # It asks transformers for a name that is going out of use.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            return peft.get_peft_model(model, _config(peft, section, task))
    except (ValueError, TypeError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise loaded.error(("adapter",), f"PEFT refuses it: {said}") from error


def _config(peft: Any, section: AdapterSection, task: str) -> Any:
    return peft.LoraConfig(
        r=section.r,
        lora_alpha=2 * section.r if section.alpha is None else section.alpha,
        lora_dropout=section.dropout,
        target_modules=section.targets,
        modules_to_save=section.also_train or None,
        use_dora=section.kind == "dora",
        use_rslora=section.kind == "rslora",
        task_type=_TASK_TYPES.get(task),
    )


def described(model: nn.Module) -> str:
    """How much of a model with an adapter is trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, whole = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    return (
        f"adapter: {trained:,} of {whole:,} weights are trained ({trained / whole:.2%}); checkpoints hold these alone"
    )


def _library(loaded: Loaded) -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"{loaded.where(('adapter',))}: adapters need the package peft: {install('peft')}") from error
    return peft
