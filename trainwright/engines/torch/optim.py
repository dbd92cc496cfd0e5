"""Optimizers by name, and which parameters decay.

What a name stands for is in ``config/shipped.py``, or was registered: a class, which gets the learning rate and those
options of ``optim_args`` that it takes, or a function of a :class:`Request`. Functions for torch's own are here; those
for other packages are in ``optim_extra``. An option that an optimizer does not know is refused.
"""

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.config.arguments import TrainingArguments
from trainwright.config.coerce import plain_value
from trainwright.config.registry import find, is_shipped
from trainwright.engines.torch import optim_extra, optim_own

logger = logging.getLogger(__name__)

ClassAndKwargs = tuple[Any, dict[str, Any]]
# Arguments of the run itself; giving them twice would leave one of the two without effect.
_RUN_OWNED = {
    "lr": "learning_rate",
    "weight_decay": "weight_decay",
    "betas": "adam_beta1 and adam_beta2",
}
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def not_held(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """List the ``parameters`` that ``optimizer`` does not update."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [p for p in parameters if id(p) not in held]


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of parameters that decay: all but biases and what belongs to a normalisation layer.

    A layer counts as normalisation by its class (``LayerNorm``) or by its name, as in transformers.
    """
    norms = [name for name, module in model.named_modules() if name and isinstance(module, nn.LayerNorm)]
    inside_norm = tuple(f"{name}." for name in norms)
    return [
        name
        for name, _ in model.named_parameters(remove_duplicate=False)
        if not name.startswith(inside_norm) and not _NO_DECAY.search(name.lower())
    ]


def parameter_groups(
    model: nn.Module, args: TrainingArguments, decay_names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Two groups, with and without weight decay, as in transformers; also where nothing decays, for it may later on."""
    decays = set(decay_parameter_names(model) if decay_names is None else decay_names)
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("No parameter of the model requires a gradient: unfreeze some before training.")
    return [
        {"params": [parameter for name, parameter in trained if name in decays], "weight_decay": args.weight_decay},
        {"params": [parameter for name, parameter in trained if name not in decays], "weight_decay": 0.0},
    ]


def parse_optim_args(text: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """``"momentum=0.9,nesterov=true"`` as typed values."""
    if not isinstance(text, str):
        return dict(text or {})
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f'optim_args has {part!r}; write it as "key=value,key=value".')
        options[key.strip()] = plain_value(value.strip())
    return options


@dataclass
class Request:
    """What is asked for; ``options`` shrinks as handlers take what they know."""

    args: TrainingArguments
    model: nn.Module | None
    options: dict[str, Any] = field(default_factory=dict)
    total_steps: int | None = None
    was_asked_for_options: bool = False

    @property
    def name(self) -> str:
        """The optimizer's name."""
        return str(getattr(self.args.optim, "value", self.args.optim))

    @property
    def adam(self) -> dict[str, Any]:
        """Adam's numbers."""
        return {"betas": (self.args.adam_beta1, self.args.adam_beta2), "eps": self.args.adam_epsilon}

    def take(self, *known: str) -> dict[str, Any]:
        """The given options among ``known``; any other is refused."""
        self.was_asked_for_options = True
        for key in self.options:
            if key in _RUN_OWNED and key not in known:
                raise ValueError(f"optim_args: set `{key}` through {_RUN_OWNED[key]} instead.")
        unknown = sorted(set(self.options) - set(known))
        if unknown:
            valid = f"it knows {sorted(known)}" if known else "it has no options"
            raise ValueError(f"optim_args has {unknown}, but with optim={self.name!r} {valid}.")
        return dict(self.options)


def _own_options(cls: type, *hidden: str) -> tuple[str, ...]:
    """Options in a class's signature, without those the run's arguments own."""
    names = list(inspect.signature(cls).parameters)[1:]
    return tuple(name for name in names if name not in {"lr", "weight_decay", *hidden})


def of_class(cls: type, request: Request) -> ClassAndKwargs:
    """An optimizer that is registered as a class: its learning rate, and the options that it takes."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    known = (name for name in request.options if name not in ("lr", "weight_decay")) if takes_any else _own_options(cls)
    return cls, {"lr": request.args.learning_rate, **request.take(*known)}


def adamw(request: Request) -> ClassAndKwargs:
    """AdamW with the run's numbers."""
    options = request.take(*_own_options(torch.optim.AdamW, "betas", "eps"))
    return torch.optim.AdamW, {"lr": request.args.learning_rate, **request.adam, **options}


def adamw_fused(request: Request) -> ClassAndKwargs:
    """AdamW by its fused kernel, where the device has one."""
    cls, kwargs = adamw(request)
    device = _device_type(request)
    if not {"fused", "foreach"} & set(kwargs):
        if fused_adamw_available(device):
            kwargs["fused"] = True
        else:
            _log_once(f"AdamW has no fused kernel on {device}; the plain one is used.")
    return cls, kwargs


def adamw_auto(request: Request) -> ClassAndKwargs:
    """The fastest AdamW of the device."""
    cls, kwargs = adamw(request)
    if not {"fused", "foreach"} & set(kwargs):
        device = _device_type(request)
        kind = "fused" if fused_adamw_available(device) else "foreach"
        kwargs[kind] = True
        _log_once(f'optim="auto" uses AdamW({kind}=True) on {device}.')
    return cls, kwargs


def _device_type(request: Request) -> str:
    """Where the parameters live, or will live."""
    parameter = next(request.model.parameters(), None) if request.model is not None else None
    return request.args.device.type if parameter is None else parameter.device.type


@cache
def fused_adamw_available(device_type: str) -> bool:
    """Ask torch by taking one step of a single number; it refuses devices without a fused kernel."""
    try:
        parameter = torch.zeros(1, device=device_type, requires_grad=True)
        parameter.grad = torch.zeros_like(parameter)
        torch.optim.AdamW([parameter], fused=True).step()
    except (RuntimeError, NotImplementedError):
        return False
    return True


@cache
def _log_once(message: str) -> None:
    logger.info(message)


def lion(request: Request) -> ClassAndKwargs:
    """Lion, with the run's beta1 and beta2."""
    request.take()
    return optim_own.Lion, {"lr": request.args.learning_rate, "betas": request.adam["betas"]}


def adafactor_torch(request: Request) -> ClassAndKwargs:
    """torch's Adafactor, whose steps are scaled by each parameter's magnitude."""
    options = request.take(*_own_options(torch.optim.Adafactor, "eps"))
    return torch.optim.Adafactor, {"lr": request.args.learning_rate, **options}


_HEADS = {"lm_head", "head", "classifier", "score", "qa_outputs", "output_projection", "fc_out"}


def muon(request: Request) -> ClassAndKwargs:
    """Muon for hidden matrices, AdamW for the rest."""
    model = optim_extra.needed_model(request)
    options = request.take("momentum", "nesterov", "ns_steps", "eps", "adjust_lr_fn")
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    chosen = {id(parameter) for _, parameter in _hidden_matrices(model, request.args.optim_target_modules)}
    decays = set(decay_parameter_names(model))
    groups = []
    for use_muon in (True, False):
        for decay in (True, False):
            members = [p for name, p in trained if (id(p) in chosen) == use_muon and (name in decays) == decay]
            if members:
                weight_decay = request.args.weight_decay if decay else 0.0
                groups.append({"params": members, "weight_decay": weight_decay, "use_muon": use_muon})
    return optim_own.MuonWithAdamW, {
        "params": groups,
        "lr": request.args.learning_rate,
        "muon": options,
        "adamw": request.adam,
    }


def _hidden_matrices(model: nn.Module, targets: object) -> list[tuple[str, nn.Parameter]]:
    """Matrices inside the network: not embeddings, not the output layer, or exactly the modules asked for."""
    outside: set[int] = set()
    for name, module in model.named_modules():
        is_head = name.rpartition(".")[2] in _HEADS
        if targets is None and (is_head or isinstance(module, (nn.Embedding, nn.EmbeddingBag))):
            outside.update(id(parameter) for parameter in module.parameters())
    find_head = getattr(model, "get_output_embeddings", None)  # transformers models know their output layer
    head = find_head() if targets is None and callable(find_head) else None
    if isinstance(head, nn.Module):
        outside.update(id(parameter) for parameter in head.parameters())
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2
        and id(parameter) not in outside
        and optim_extra.is_target(name.rpartition(".")[0], targets)
    ]


def optimizer_class_and_kwargs(
    args: TrainingArguments, model: nn.Module | None = None, total_steps: int | None = None
) -> ClassAndKwargs:
    """The class behind ``args.optim`` and what to build it with.

    As in transformers, ``kwargs`` may hold ``params`` (groups that replace the usual ones) or ``model`` (passed in
    their place). ``total_steps`` is only needed where a fractional warm-up goes into the optimizer itself.
    """
    request = Request(args, model, parse_optim_args(args.optim_args), total_steps)
    found = find("optimizer", request.name, "optim")
    if isinstance(found, type):
        return of_class(found, request)
    return _of_function(found, request) if not is_shipped("optimizer", request.name) else found(request)


def _of_function(function: Callable[[Request], ClassAndKwargs], request: Request) -> ClassAndKwargs:
    """An optimizer that is registered as a function; what it says nothing about is the run's, or refused."""
    given = function(request)
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
        raise ValueError(
            f"optim={request.name!r} is a function, and must return a class and a dict of its arguments; it returned "
            f"{given!r}."
        )
    if not request.was_asked_for_options:
        request.take(*given[1])
    cls, kwargs = given
    return cls, {"lr": request.args.learning_rate, **kwargs}


def build_optimizer(
    model: nn.Module,
    args: TrainingArguments,
    cls_and_kwargs: ClassAndKwargs | None = None,
    *,
    decay_names: Iterable[str] | None = None,
    total_steps: int | None = None,
) -> torch.optim.Optimizer:
    """The optimizer for ``model``: by ``args.optim``, or of the class given (``optimizer_cls_and_kwargs``)."""
    cls, given = optimizer_class_and_kwargs(args, model, total_steps) if cls_and_kwargs is None else cls_and_kwargs
    kwargs = dict(given)  # the caller's dict is used again by the next Trainer
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        return cls()(model, **kwargs)  # transformers' contract for factories
    target = next((kwargs.pop(key) for key in ("params", "model", "optimizer_dict") if key in kwargs), None)
    groups = parameter_groups(model, args, decay_names) if target is None else target
    if target is None and issubclass(cls, torch.optim.LBFGS):
        # It takes no groups, and does not decay.
        groups = [parameter for group in groups for parameter in group["params"]]
    optimizer = cls(groups, **kwargs)
    if kwargs.get("optim_bits") == 8:
        optim_extra.keep_embeddings_in_full_precision(model)
    return optimizer
