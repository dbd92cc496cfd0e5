"""Which engine a Trainer runs on, and what the others cannot do; found out before the first step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from trainwright.config.arguments import TrainingArguments
from trainwright.config.parallel import way_of
from trainwright.core.callback import listens_to
from trainwright.engines.graph.framework import Framework
from trainwright.engines.torch.loss_functions.base import Loss
from trainwright.training.hooks import is_ours, is_users_own
from trainwright.training.setup import Setup
from trainwright.training.step import call_compute_loss


class Feature(NamedTuple):
    """Something that not every engine does."""

    #: As it stands in the table of docs/engines.md.
    words: str
    is_wanted: Callable[[Any], bool]
    #: Why an engine that runs captured graphs cannot do it, and what to do instead.
    reason: str


def _argument(name: str, off: object = None) -> Callable[[Any], bool]:
    return lambda setup: getattr(setup.args, name) not in (off, False)


#: Of these a graph engine does none.
FEATURES: dict[str, Feature] = {
    "processes": Feature(
        "several processes (DDP, FSDP2, DeepSpeed)",
        lambda setup: setup.backend.world_size > 1 or way_of(setup.args) not in (None, "sp", "ddp"),
        "it runs in one process: start the script without a launcher and leave backend, fsdp and deepspeed out",
    ),
    "recipes": Feature(
        "recipes, teachers and modifiers",
        lambda setup: bool(setup.modifiers),
        "a recipe changes torch's tensors within a step: leave recipe= and teacher= out",
    ),
    "modules": Feature(
        "trainwright.Module",
        lambda setup: setup.module is not None,
        "what a Module does in its steps (self.log, several optimizers) is no tensor arithmetic: pass the model itself "
        "and override compute_loss",
    ),
    "training_step": Feature(
        "a training_step of one's own",
        lambda setup: is_users_own(setup.hooks(), "training_step"),
        "loss and gradients are one graph, so training_step is never called: override compute_loss",
    ),
    "clipping": Feature(
        "_clip_grad_norm or _get_grad_norm of one's own",
        lambda setup: any(is_users_own(setup.hooks(), name) for name in ("_clip_grad_norm", "_get_grad_norm")),
        "gradients are the framework's and p.grad stays None: set max_grad_norm",
    ),
    "scaled losses": Feature(
        "loss_is_scaled_for_ga",
        lambda setup: setup.hooks().loss_is_scaled_for_ga is not None or setup.loss_kwargs_by_subclass is False,
        "batches are weighted by their targets: return the mean loss from compute_loss, and leave it out",
    ),
    "half evaluation": Feature(
        "fp16_full_eval, bf16_full_eval",
        lambda setup: setup.args.fp16_full_eval or setup.args.bf16_full_eval,
        "the evaluated graph has the model's own precision: unset it",
    ),
    "torch_compile": Feature(
        "torch_compile", _argument("torch_compile"), "the framework compiles the graph itself: unset it"
    ),
    "checkpointing options": Feature(
        "gradient_checkpointing_kwargs (every_n_layers, offload)",
        lambda setup: bool({"every_n_layers", "offload"} & set(setup.args.gradient_checkpointing_kwargs or {})),
        "every layer of a list is computed again: leave them out",
    ),
    "neftune": Feature(
        "neftune_noise_alpha",
        _argument("neftune_noise_alpha"),
        "NEFTune is a forward hook, and a graph has none: unset it",
    ),
    "tf32": Feature("tf32", _argument("tf32"), "it is a switch of torch's: unset it"),
    "zeroed gradients": Feature(
        "set_grads_to_none=False",
        lambda setup: not setup.args.set_grads_to_none,
        "there are no gradients in torch to fill with zeros: leave it out",
    ),
    "liger": Feature("use_liger_kernel", _argument("use_liger_kernel"), "those kernels are torch's: unset it"),
    "overflow debugging": Feature(
        'debug="underflow_overflow"',
        lambda setup: "underflow_overflow" in setup.args.debug,
        "it looks through forward hooks, and a graph has none: unset it",
    ),
    "automatic micro-batches": Feature(
        'micro_batch="auto", auto_find_batch_size',
        lambda setup: setup.args.micro_batch == "auto",
        "its out-of-memory errors cannot be told from others: set micro_batch to a number",
    ),
    "gradients": Feature(
        "p.grad (callbacks with on_pre_optimizer_step)",
        lambda setup: any(listens_to(each, "on_pre_optimizer_step") for each in _users_callbacks(setup)),
        "gradients are the framework's and p.grad stays None: look at grad_norm in on_log instead",
    ),
    "hooks": Feature(
        "forward and backward hooks",
        lambda setup: setup.model is not None and _has_hooks(setup.model),
        "a graph has no hooks: remove them before training",
    ),
}


def refuse_what_the_engine_lacks(setup: Setup) -> None:
    """A ``ValueError`` for the first thing asked for that the engine cannot do."""
    engine = setup.args.engine
    for name, feature in FEATURES.items():
        if name not in setup.engine.supports and feature.is_wanted(setup):
            raise ValueError(f"engine={engine!r} cannot do this ({feature.words}): {feature.reason}.")


def _users_callbacks(setup: Setup) -> list[Any]:
    # None while the Trainer is being built.
    handler = setup.callbacks
    return [each for each in handler.callbacks if not is_ours(each)] if handler is not None else []


def _has_hooks(model: nn.Module) -> bool:
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, table) for module in model.modules() for table in tables)


def in_torch_form(model: nn.Module, setup: Setup) -> Any:
    """``model``; a Cell of MindSpore with a torch face, and the loss that goes with it made to fit."""
    # Whoever has a Cell has imported MindSpore.
    mindspore = sys.modules.get("mindspore")
    if mindspore is None or not isinstance(model, mindspore.nn.Cell):
        return model
    if setup.args.engine != "mindspore":
        raise ValueError(
            f"{type(model).__name__} is a Cell of MindSpore: train it with TrainingArguments(engine='mindspore')."
        )
    if is_users_own(setup.hooks(), "compute_loss") or setup.args.label_smoothing_factor:
        raise ValueError(
            "The loss of a Cell is computed by MindSpore, where compute_loss and label_smoothing_factor cannot act: "
            "pass compute_loss_func=, a function of the Cell's outputs and the labels in MindSpore's operations."
        )
    asked = [name for name in ("fp16", "bf16", "gradient_checkpointing") if getattr(setup.args, name)]
    if asked:
        raise ValueError(
            f"{asked[0]}=True cannot act on a Cell, which MindSpore computes as it is written: call "
            "cell.to_float(mindspore.float16) or cell.recompute() yourself, and leave it out."
        )
    from trainwright.engines.mindspore.cells import CellModel, for_torch

    if isinstance(setup.compute_loss_func, Loss):
        raise ValueError(
            f"{type(setup.compute_loss_func).__name__} computes with torch, and the loss of a Cell is computed by "
            "MindSpore: pass a function of the Cell's outputs and the labels in MindSpore's operations."
        )
    if setup.compute_loss_func is not None and not hasattr(setup.compute_loss_func, "for_cells"):
        setup.compute_loss_func = for_torch(setup.compute_loss_func)
    return CellModel(model)


def framework_for(args: TrainingArguments) -> Framework:
    """The framework that ``engine=`` names; imported here, so that nobody else pays for it."""
    compiles = args.engine_jit
    if args.engine == "mindspore":
        from trainwright.engines.mindspore.framework import MindSporeFramework

        return MindSporeFramework(jit=compiles, use_cpu=args.use_cpu)
    from trainwright.engines.jax.framework import JaxFramework

    return JaxFramework(jit=compiles, use_cpu=args.use_cpu, devices=args.engine_devices)


def _capture_for(setup: Setup) -> Any:
    # Loaded where a Cell has been given a torch face.
    cells = sys.modules.get("trainwright.engines.mindspore.cells")
    if cells is not None and isinstance(setup.model, cells.CellModel):
        return cells.capture_cell(getattr(setup.compute_loss_func, "for_cells", None), tuple(setup.label_names))
    from trainwright.engines.graph.capture import capture

    return capture


def graph_engine(setup: Setup, **options: object) -> Any:
    """An engine that runs the Trainer's loss on another framework."""
    from trainwright.engines.graph.engine import GraphEngine

    def loss(model: nn.Module, given: tuple[Any, Any]) -> Tensor:
        inputs, targets = given
        found = call_compute_loss(setup, model, inputs, targets)
        return found.mean() if found.ndim else found

    return GraphEngine(
        framework=framework_for(setup.args),
        loss=loss,
        prepare=lambda inputs: setup.hooks()._prepare_inputs(inputs),
        wants_count=lambda: setup.calling.wants_count,
        capture=_capture_for(setup),
        check=setup.args.engine_check,
        recompute=setup.args.gradient_checkpointing,
        **{name: value for name, value in options.items() if name != "training_step"},
    )
