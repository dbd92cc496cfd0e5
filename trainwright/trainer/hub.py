"""Model cards and uploads to the Hugging Face Hub, through ``huggingface_hub``."""

from __future__ import annotations

from typing import Any

from trainwright.checkpoint.directory import checkpoint_path
from trainwright.config.arguments import TrainingArguments
from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted
from trainwright.core.log_history import is_evaluation
from trainwright.core.state import TrainerState
from trainwright.report.page import sections_for_card
from trainwright.training.run import TrainingRun
from trainwright.training.setup import Setup

#: What a model's reader has no use for.
STATE = [
    "callbacks.safetensors",
    "log.json",
    "manifest.json",
    "optimizer.pt",
    "optimizer.safetensors",
    "optimizer-*-of-*.safetensors",
    "optimizer.safetensors.index.json",
    "random.safetensors",
    "rng_state*.pth",
    "run.lease.json",
    "run.lock",
    "scaler.pt",
    "scheduler.pt",
    "trainer_state.json",
    "training_state.json",
]
#: What a run knows of itself, of its machine and of its data.
PRIVATE = [
    "config.history.jsonl",
    "env.json",
    "evaluation.json",
    "events.jsonl",
    "finished.json",
    "histograms.jsonl",
    "layers.json",
    "logs/*",
    "performance.jsonl",
    "predictions.*",
    "preempted.json",
    "profile/*",
    "report.html",
    "report.md",
    "run.json",
    "samples.jsonl",
    "stacks-*",
    "tables.json",
    "tracker.jsonl",
]


def create_repo(setup: Setup, token: str | None) -> None:
    """Create the repository that ``hub_model_id`` (or the output directory's name) stands for."""
    name = setup.args.hub_model_id or run_directory(setup.args).name
    url = _hub_api(token or setup.args.hub_token).create_repo(name, private=setup.args.hub_private_repo, exist_ok=True)
    setup.hub_model_id = url.repo_id


def upload_model(setup: Setup, message: str | None, *, blocking: bool, token: str | None, revision: str | None) -> Any:
    """Upload the output directory without its checkpoints."""
    return _hub_api(token or setup.args.hub_token).upload_folder(
        repo_id=setup.hub_model_id,
        folder_path=str(run_directory(setup.args)),
        commit_message=message,
        run_as_future=not blocking,
        revision=revision or setup.args.hub_revision,
        ignore_patterns=["checkpoint-*", ".checkpoint-*", "previous-*", "runs/*", *STATE, *PRIVATE],
    )


def push_checkpoint(run: TrainingRun) -> None:
    """Upload the checkpoint just saved, in the background, as ``hub_strategy`` says.

    Skipped while an earlier upload is under way, unless ``hub_always_push``.
    """
    setup, args = run.setup, run.setup.args
    written = checkpoint_path(run_directory(args), setup.state.global_step)
    # Waited for in this case; a disk that refused it has been reported.
    is_there = args.push_to_hub and args.hub_strategy != "end" and run.saver.last_saved == written
    if not is_there or not setup.hooks().is_world_process_zero():
        return
    if setup.upload is not None and not setup.upload.done() and not args.hub_always_push:
        return
    setup.fire("on_push_begin")
    folders = {"checkpoint": "last-checkpoint", "all_checkpoints": written.name}
    for_readers: dict[str, Any] = {"ignore_patterns": [*STATE, *PRIVATE]}
    options = {"path_in_repo": folders[args.hub_strategy]} if args.hub_strategy in folders else for_readers
    setup.upload = _hub_api(args.hub_token).upload_folder(
        repo_id=setup.hub_model_id,
        folder_path=str(written),
        commit_message=f"Training in progress, step {setup.state.global_step}",
        run_as_future=True,
        revision=args.hub_revision,
        **options,
    )


def write_model_card(setup: Setup, front: dict[str, Any], name: str | None) -> None:
    """Write ``README.md`` into the output directory: what was trained, how, and what came out."""
    folder = run_directory(setup.args)
    text = model_card(front, name or folder.name, setup.given_args, setup.state)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(redacted(text), encoding="utf-8")


def model_card(front: dict[str, Any], name: str, args: TrainingArguments, state: TrainerState) -> str:
    """Markdown with YAML front matter, and below it what the run's report says of its result, settings and origin."""
    import yaml

    header = yaml.safe_dump({key: value for key, value in front.items() if value}, sort_keys=False)
    begin = f"---\n{header}---\n\n# {name}\n\nTrained for {state.global_step} steps with trainwright.\n\n"
    return begin + (sections_for_card(run_directory(args)) or _settings_and_results(args, state))


def _settings_and_results(args: TrainingArguments, state: TrainerState) -> str:
    """What is known of a model without a run directory."""
    settings = (
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "seed",
    )
    rows = [f"- {setting}: {getattr(args, setting)}" for setting in settings]
    rows += [f"- optimizer: {args.optim}", f"- schedule: {args.lr_scheduler_type}"]
    last = next((entry for entry in reversed(state.log_history) if is_evaluation(entry)), {})
    results = [f"- {key}: {value}" for key, value in last.items()] or ["No evaluation was run."]
    return "\n".join(["## Settings\n", *rows, "\n## Results\n", *results, ""])


def listed(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _hub_api(token: str | None) -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ValueError("push_to_hub needs the package huggingface_hub: pip install huggingface_hub") from error
    return HfApi(token=token)
