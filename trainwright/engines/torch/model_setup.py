"""Changes to a model before training that arguments ask for: checkpointing, NEFTune, compile, Liger kernels."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.config.arguments import TrainingArguments
from trainwright.engines.torch.module import Module, main_model
from trainwright.engines.torch.targets import base_model

logger = logging.getLogger("trainwright")


def enable_gradient_checkpointing(model: nn.Module, kwargs: dict[str, Any] | str | None) -> None:
    """Recompute activations in the backward pass instead of keeping them; text has become a dict when it was read."""
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if not callable(enable):
        raise ValueError(
            f"gradient_checkpointing=True, but {type(model).__name__} has no gradient_checkpointing_enable(): define "
            "it (wrap blocks in torch.utils.checkpoint.checkpoint), or set gradient_checkpointing=False."
        )
    assert not isinstance(kwargs, str)
    options = dict(kwargs or {})
    own = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
    # The reentrant variant needs inputs that require gradients and runs hooks twice; torch advises against it.
    options.setdefault("use_reentrant", False)
    if callable(newer := getattr(model, "activation_checkpointing_enable", None)):
        # Its name from transformers 5.23 on, which calls an override of the older one too.
        newer(activation_checkpointing_kwargs=options, **own)
    else:
        enable(gradient_checkpointing_kwargs=options, **own)
    require_grads = getattr(model, "enable_input_require_grads", None)
    if hasattr(model, "peft_config") and callable(require_grads):
        # With a frozen base the first block's inputs need no gradient, and checkpointing would cut the graph there.
        require_grads()


def add_neftune(model: nn.Module, alpha: float) -> Any:
    """Add uniform noise to the embeddings while training; returns the handle that removes it."""
    find = getattr(base_model(model), "get_input_embeddings", None)
    embeddings = find() if callable(find) else None
    if embeddings is None:
        raise ValueError(
            f"neftune_noise_alpha is set, but {type(model).__name__} has no get_input_embeddings(): define it to "
            "return the embedding layer, or leave neftune_noise_alpha unset."
        )

    def noisy(module: nn.Module, args: object, output: Tensor) -> Tensor:
        if not module.training:
            return output
        scale = alpha / math.sqrt(output.shape[1] * output.shape[2])
        return output + torch.empty_like(output).uniform_(-scale, scale)

    return embeddings.register_forward_hook(noisy)


def compiled(model: nn.Module, args: TrainingArguments) -> nn.Module:
    """``model`` through torch.compile, as the arguments say."""
    wrapped: Any = torch.compile(model, backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)
    return wrapped


@contextmanager
def compiled_in_place(module: Module, args: TrainingArguments) -> Iterator[None]:
    """``module.model`` through torch.compile for a while: step methods go on calling it by its name."""
    network = main_model(module)
    if network is module:
        raise ValueError(
            f"torch_compile=True compiles self.model, and {type(module).__name__} has none: put the network there, or "
            "set torch_compile=False and compile its parts with their compile() in __init__."
        )
    before = network._compiled_call_impl
    network.compile(backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)
    try:
        yield
    finally:
        network._compiled_call_impl = before


def apply_liger_kernels(model: nn.Module, config: dict[str, bool] | None) -> None:
    """Swap in Liger's fused kernels for a transformers model."""
    try:
        liger: Any = importlib.import_module("liger_kernel.transformers")
    except ImportError as error:
        raise ValueError("use_liger_kernel=True needs the package liger-kernel: pip install liger-kernel") from error
    liger._apply_liger_kernel_to_instance(model=base_model(model), **(config or {}))


def watch_for_overflow(model: nn.Module) -> list[Any]:
    """``debug="underflow_overflow"``: stop at the first module whose output is NaN or infinite, and name it.

    Returns the handles that end the watch.
    """

    def check(name: str) -> Any:
        def hook(module: nn.Module, args: object, output: object) -> None:
            for value in output if isinstance(output, (tuple, list)) else [output]:
                if isinstance(value, Tensor) and value.is_floating_point() and not torch.isfinite(value).all():
                    largest = value.nan_to_num(posinf=math.inf).abs().max().item()
                    raise ValueError(
                        f"{name or 'the model'} ({type(module).__name__}) put out NaN or infinity (largest magnitude "
                        f"{largest}). Lower the learning rate, or use bf16 instead of fp16."
                    )

        return hook

    return [module.register_forward_hook(check(name)) for name, module in model.named_modules()]
