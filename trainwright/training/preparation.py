"""What is done to a model for the time of one ``train()``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainwright.engines.torch.model_setup import (
    add_neftune,
    apply_liger_kernels,
    compiled,
    compiled_in_place,
    enable_gradient_checkpointing,
    watch_for_overflow,
)
from trainwright.engines.torch.module import Module, main_model
from trainwright.engines.torch.strategies.choice import places_model
from trainwright.training.hooks import is_overridden
from trainwright.training.setup import Setup


def compiled_again(setup: Setup) -> nn.Module:
    """The model as it is called in training, after its layers were changed."""
    if not setup.args.torch_compile:
        return setup.model_wrapped
    torch.compiler.reset()
    return setup.model if isinstance(setup.model, Module) else compiled(setup.model, setup.args)


def place_model(setup: Setup, model: nn.Module) -> None:
    """Move the model to the device of the run, unless all of it is there."""
    device = setup.args.device
    if not is_overridden(setup.hooks(), "_move_model_to_device"):
        model.to(device)
    elif any(tensor.device.type != device.type for tensor in (*model.parameters(), *model.buffers())):
        setup.hooks()._move_model_to_device(model, device)


@contextmanager
def prepared_model(setup: Setup) -> Iterator[nn.Module]:
    """The model as it is called in training: on the device, with what the arguments ask for; hooks go afterwards."""
    args, model = setup.args, setup.model
    if not hasattr(model, "hf_device_map") and args.place_model_on_device is not False and not places_model(args):
        place_model(setup, model)
    # A Module's own forward is nobody's business; the network is in its `model`.
    network = main_model(model)
    if args.use_liger_kernel:
        apply_liger_kernels(network, args.liger_kernel_config)
    # Other engines cut the captured graph themselves.
    if args.gradient_checkpointing and args.engine == "torch":
        enable_gradient_checkpointing(network, args.gradient_checkpointing_kwargs)
    handles = []
    if "underflow_overflow" in args.debug:
        handles += watch_for_overflow(model)
    if args.neftune_noise_alpha is not None:
        handles.append(add_neftune(network, args.neftune_noise_alpha))
    try:
        if args.torch_compile and isinstance(model, Module) and not places_model(args):
            with compiled_in_place(model, args):
                yield model
        elif args.torch_compile and not places_model(args):
            yield compiled(model, args)
        else:
            yield model
    finally:
        for handle in handles:
            handle.remove()
