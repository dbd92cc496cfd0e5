"""Optimizers of other packages, imported only when their name is used; a missing package is named with its pip name."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainwright.config.errors import MissingPackage
from trainwright.config.patterns import Pattern

ClassAndKwargs = tuple[Any, dict[str, Any]]


def _package(request: Any, module: str, pip_name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(f"optim={request.name!r} needs the package {pip_name}: pip install {pip_name}.") from error


def needed_model(request: Any) -> nn.Module:
    """The model, for optimizers that choose parameters by their place in it."""
    if request.model is None:
        raise ValueError(f"optim={request.name!r} chooses parameters by their place: pass the model.")
    return request.model


def is_target(module_name: str, targets: Any) -> bool:
    """transformers' rule: a string is a regular expression for the whole name, a list also matches parts."""
    if targets is None or (isinstance(targets, str) and targets.replace("_", "-") == "all-linear"):
        return True
    if isinstance(targets, str):
        return Pattern(targets).fullmatch(module_name)
    return any(target in module_name or Pattern(target).fullmatch(module_name) for target in targets)


def bitsandbytes(request: Any) -> ClassAndKwargs:
    """Those of bitsandbytes, whose states have 8 or 32 bits, or are paged."""
    package = _package(request, "bitsandbytes.optim", "bitsandbytes")
    name, args = request.name, request.args
    kwargs: dict[str, Any] = {"lr": args.learning_rate, "optim_bits": 8 if "8bit" in name else 32}
    if "rmsprop" in name:
        return package.RMSprop, {**kwargs, **request.take("alpha", "eps", "momentum", "centered")}
    kwargs["is_paged"] = name.startswith("paged")
    if "ademamix" in name:
        options = request.take("beta1", "beta2", "beta3", "alpha", "eps", "t_alpha", "t_beta3")
        betas = (options.pop("beta1", args.adam_beta1), options.pop("beta2", args.adam_beta2))
        kwargs |= {"betas": (*betas, options.pop("beta3", 0.9999)), "alpha": 5.0, "eps": args.adam_epsilon}
        return package.AdEMAMix, {**kwargs, **options}
    request.take()
    if "lion" in name:
        return package.Lion, {**kwargs, "betas": (args.adam_beta1, args.adam_beta2)}
    return package.AdamW, {**kwargs, **request.adam}


def keep_embeddings_in_full_precision(model: nn.Module) -> None:
    """8-bit states are too coarse for embeddings, whose rows see few gradients."""
    manager = importlib.import_module("bitsandbytes").optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def _low_rank_groups(request: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Linear layers named by optim_target_modules get the projection's options; the rest trains as usual."""
    model, targets = needed_model(request), request.args.optim_target_modules
    if targets is None:
        raise ValueError(f'optim={request.name!r} needs optim_target_modules: module names, or "all-linear".')
    chosen = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and is_target(name, targets)
    }
    if not chosen:
        raise ValueError(f"optim_target_modules={targets!r} names no linear layer of the model.")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if id(parameter) not in chosen]},
        {"params": [parameter for parameter in trained if id(parameter) in chosen], **options},
    ]


def layerwise(request: Any) -> ClassAndKwargs:
    """Refuse what updates each layer during the backward pass."""
    plain = request.name.removesuffix("_layerwise")
    raise ValueError(
        f"optim={request.name!r} updates weights inside the backward pass, where gradients can neither be accumulated, "
        f"clipped nor weighted: use optim={plain!r}."
    )


def galore(request: Any) -> ClassAndKwargs:
    """GaLore: gradients projected to a low rank."""
    package = _package(request, "galore_torch", "galore-torch")
    cls_name = {
        "galore_adamw": "GaLoreAdamW",
        "galore_adamw_8bit": "GaLoreAdamW8bit",
        "galore_adafactor": "GaLoreAdafactor",
    }[request.name]
    defaults = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    options = {**defaults, **request.take(*defaults)}
    kwargs = {"lr": request.args.learning_rate, "params": _low_rank_groups(request, options)}
    if request.name == "galore_adafactor":
        kwargs |= {"scale_parameter": False, "relative_step": False}
    return getattr(package, cls_name), kwargs


def apollo(request: Any) -> ClassAndKwargs:
    """APOLLO: learning rates from a random projection."""
    package = _package(request, "apollo_torch", "apollo-torch")
    defaults = {
        "rank": 128,
        "proj": "random",
        "scale_type": "channel",
        "update_proj_gap": 200,
        "scale": 1.0,
        "proj_type": "std",
    }
    options = {**defaults, **request.take(*defaults), **request.adam}
    return package.APOLLOAdamW, {"lr": request.args.learning_rate, "params": _low_rank_groups(request, options)}


def lomo(request: Any) -> ClassAndKwargs:
    """LOMO and AdaLomo."""
    package = _package(request, "lomo_optim", "lomo-optim")
    request.take()
    cls = package.AdaLomo if request.name == "adalomo" else package.Lomo
    return cls, {"lr": request.args.learning_rate, "model": needed_model(request)}


def grokadamw(request: Any) -> ClassAndKwargs:
    """GrokAdamW."""
    package = _package(request, "grokadamw", "grokadamw")
    defaults = {
        "alpha_init": 0.98,
        "lamb": 2.0,
        "gamma": 0.1,
        "grokking_signal_decay_rate": 0.1,
        "gradient_clipping": 1.0,
    }
    return package.GrokAdamW, {"lr": request.args.learning_rate, **defaults, **request.take(*defaults)}


def adamw_torchao(request: Any) -> ClassAndKwargs:
    """AdamW of torchao, whose states have 4 or 8 bits."""
    package = _package(request, "torchao.optim", "torchao")
    defaults = {"block_size": 256, "bf16_stochastic_round": False}
    cls = package.AdamW4bit if request.name.endswith("4bit") else package.AdamW8bit
    return cls, {"lr": request.args.learning_rate, **request.adam, **defaults, **request.take(*defaults)}


def schedule_free(request: Any) -> ClassAndKwargs:
    """Optimizers that need no schedule."""
    package = _package(request, "schedulefree", "schedulefree")
    args = request.args
    kwargs: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    known = ["weight_lr_power", "r", "foreach"]
    if request.name == "schedule_free_radam":
        return package.RAdamScheduleFree, {**kwargs, **request.adam, **request.take(*known, "silent_sgd_phase")}
    kwargs["warmup_steps"] = _whole_warmup(request)
    if request.name == "schedule_free_sgd":
        return package.SGDScheduleFree, {**kwargs, **request.take(*known, "momentum")}
    return package.AdamWScheduleFree, {**kwargs, **request.adam, **request.take(*known)}


def _whole_warmup(request: Any) -> int:
    """These optimizers warm up by themselves and count in steps."""
    args = request.args
    total = request.total_steps or (args.max_steps if args.max_steps > 0 else None)
    if 0 < args.warmup_steps < 1 and total is None:
        raise ValueError(
            f"optim={request.name!r} needs to know its warm-up in steps: give warmup_steps as a whole number, or "
            "set max_steps."
        )
    return args.get_warmup_steps(total or 0)


def stable_adamw(request: Any) -> ClassAndKwargs:
    """StableAdamW of optimi."""
    package = _package(request, "optimi", "torch-optimi")
    options = {"decouple_lr": False, **request.take("decouple_lr", "max_lr", "kahan_sum")}
    common = {"lr": request.args.learning_rate, "weight_decay": request.args.weight_decay}
    return package.StableAdamW, {**common, **request.adam, **options}


def adamw_anyprecision(request: Any) -> ClassAndKwargs:
    """AdamW whose states have the precision that is asked for."""
    package = _package(request, "torchdistx.optimizers", "torchdistx")
    dtypes = {
        "momentum_dtype": "float32",
        "variance_dtype": "float32",
        "compensation_buffer_dtype": "bfloat16",
    }
    options = {"use_kahan_summation": False, **dtypes, **request.take("use_kahan_summation", *dtypes)}
    for key in dtypes:
        dtype = getattr(torch, str(options[key]), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"optim_args: {key}={options[key]!r} is no torch dtype; write for example float32.")
        options[key] = dtype
    return package.AnyPrecisionAdamW, {"lr": request.args.learning_rate, **request.adam, **options}


def _adamw_of(module: str, pip_name: str, cls_name: str) -> Callable[[Any], ClassAndKwargs]:
    def handler(request: Any) -> ClassAndKwargs:
        package = _package(request, module, pip_name)
        request.take()
        return getattr(package, cls_name), {"lr": request.args.learning_rate, **request.adam}

    return handler


adamw_xla = _adamw_of("torch_xla.amp.syncfree", "torch_xla", "AdamW")
adamw_npu = _adamw_of("torch_npu.optim", "torch_npu", "NpuFusedAdamW")
