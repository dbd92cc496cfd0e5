"""Nothing of the user's is overwritten, nothing leaves the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainwright.trying.plan import Plan, save_every

#: Trackers that a script starts by itself stay on this machine, or do nothing.
_QUIET = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DVCLIVE_SAVE_DVC_EXP": "false",
    "TOKENIZERS_PARALLELISM": "false",
}
#: A try is one process, also where it was started from a job of several.
_OF_A_LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"),
)


def environment(folder: str | Path) -> dict[str, str]:
    """Environment of a run: the user's, with trackers switched off, one process and one GPU."""
    found = {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}
    found |= _QUIET
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        found.pop(name, None)
    for name in ("MLFLOW_TRACKING_URI", "TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR"):
        found[name] = str(Path(folder) / "trackers")
    # A report is no part of a training, and transformers makes none.
    found["TRAINWRIGHT_REPORT"] = "0"
    # The order of a set of strings, of labels say, is the same in each run.
    found.setdefault("PYTHONHASHSEED", "0")
    # With several GPUs transformers would use nn.DataParallel, which makes the batch larger.
    found["CUDA_VISIBLE_DEVICES"] = found.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    found.pop("TRAINWRIGHT_CHECKPOINT_FORMAT", None)
    found["PYTHONUNBUFFERED"] = "1"
    return found


def upload_nothing() -> None:
    """Refuse what would write to the Hub; called before transformers takes these names from their modules."""
    try:
        import huggingface_hub
        from huggingface_hub import HfApi, hf_api
    except ImportError:
        return

    def refuse(*args: object, **kwargs: object) -> Any:
        raise RuntimeError("trainwright try uploads nothing, and this script would: it wants to write to the Hub.")

    for name in (name for name, member in vars(HfApi).items() if callable(member) and not _only_reads(name)):
        for home in (HfApi, hf_api, huggingface_hub):
            if hasattr(home, name):
                setattr(home, name, refuse)


def _only_reads(name: str) -> bool:
    """Return True for methods of the Hub's client that change nothing there; an unknown one may."""
    begins = ("_", "get_", "list_", "hf_hub_", "snapshot_download", "whoami", "auth_check", "parse_", "verify_")
    return name.startswith(begins) or name.endswith(("_info", "_exists")) or name == "run_as_future"


def pin_output_dir(kind: type, plan: Plan) -> None:
    """Let ``output_dir`` of arguments be the run's own folder, whatever is assigned to it, and whenever."""

    def get(args: Any) -> str:
        return str(plan.output_dir)

    def keep(args: Any, value: object) -> None:
        vars(args)["output_dir"] = str(plan.output_dir)

    for one in kind.__mro__:
        # A subclass with a default of its own has a second one.
        if "output_dir" in vars(one) or "output_dir" in vars(one).get("__annotations__", {}):
            one.output_dir = property(get, keep)  # type: ignore[attr-defined]


def redirect(args: Any, plan: Plan) -> None:
    """Let arguments write into the run's own folder only, and report to nobody."""
    pin_output_dir(type(args), plan)
    args.output_dir = str(plan.output_dir)
    if getattr(args, "logging_dir", None):
        args.logging_dir = str(Path(plan.folder) / "trackers")
    args.report_to = ["none"]
    args.push_to_hub = False


def shorten(args: Any, plan: Plan) -> None:
    """Let a training take the steps of the try, log each of them, save twice, and evaluate never."""
    if args.max_steps <= 0 or args.max_steps > plan.steps:
        args.max_steps = plan.steps
    args.logging_strategy = type(args.logging_strategy)("steps")
    args.logging_steps = 1
    args.save_strategy = type(args.save_strategy)("no" if plan.probe else "steps")
    args.save_steps = save_every(args.max_steps)
    args.save_total_limit = 1
    args.save_only_model = False
    if plan.single:
        args.gradient_accumulation_steps = 1
    # Callbacks such as EarlyStopping insist on evaluations; with this delay there are none.
    args.eval_delay = 10**9
    args.eval_on_start = False
    args.load_best_model_at_end = False
    args.disable_tqdm = True
    # Said already; in the form that it has after the arguments were made.
    args.report_to = []
