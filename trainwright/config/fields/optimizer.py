"""Which optimizer, and what is done to the loss and the gradients around it."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class OptimizerFields:
    learning_rate: float = 5e-5
    """The highest learning rate the schedule reaches."""

    weight_decay: float = 0.0
    """Decay applied to weight matrices; biases and normalisation layers are left out."""

    adam_beta1: float = 0.9
    """Memory of Adam's running mean of gradients."""

    adam_beta2: float = 0.999
    """Memory of Adam's running mean of squared gradients."""

    adam_epsilon: float = 1e-8
    """Small number that keeps Adam's division stable."""

    max_grad_norm: float = 1.0
    """Gradients longer than this are scaled down to it; 0 switches clipping off."""

    # Not the enum: HfArgumentParser would refuse registered names on a command line.
    optim: str = "adamw_torch_fused"
    """Name of the optimizer, ours or registered; "auto" takes the fastest AdamW the device offers."""

    optim_args: str | None = None
    """Further options of the optimizer as "key=value,key=value"."""

    # HfArgumentParser takes the second member of a union as the type, so None comes first on purpose.
    optim_target_modules: None | str | list[str] = None  # noqa: RUF036
    """Modules the optimizer treats specially (GaLore, APOLLO, Muon): names, a regular expression, or "all-linear"."""

    label_smoothing_factor: float = 0.0
    """Share of the target probability that is spread over all classes."""

    neftune_noise_alpha: float | None = None
    """Strength of the noise added to embeddings while training (NEFTune); unset means none."""
