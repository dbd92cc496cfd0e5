"""Trainer methods for the Hugging Face Hub, through ``huggingface_hub``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from trainwright.checkpoint.directory import checkpoint_path
from trainwright.config.run_directory import run_directory
from trainwright.config.secrets import redacted
from trainwright.core.state import TrainerState
from trainwright.trainer.restoring import RestoringMethods

#: What a model's reader has no use for.
STATE = [
    "callbacks.safetensors",
    "manifest.json",
    "optimizer.pt",
    "optimizer.safetensors",
    "optimizer-*-of-*.safetensors",
    "optimizer.safetensors.index.json",
    "random.safetensors",
    "rng_state*.pth",
    "scaler.pt",
    "scheduler.pt",
    "trainer_state.json",
    "training_state.json",
]


class HubMethods(RestoringMethods):
    """Model card and upload of a Trainer."""

    hub_model_id: str | None = None
    _upload: Any = None

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Write the model so that ``from_pretrained`` reads it, and upload it if ``push_to_hub`` is set."""
        super().save_model(output_dir, _internal_call)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def init_hf_repo(self, token: str | None = None) -> None:
        """Create the repository that ``hub_model_id`` (or the output directory's name) stands for."""
        if not self.is_world_process_zero():
            return
        name = self.args.hub_model_id or run_directory(self.args).name
        url = _hub_api(token or self.args.hub_token).create_repo(
            name, private=self.args.hub_private_repo, exist_ok=True
        )
        self.hub_model_id = url.repo_id

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model and its card, and upload the output directory without its checkpoints."""
        if self.hub_model_id is None:
            self.init_hf_repo(token)
        self._fire("on_push_begin")
        # Of weights in parts every process writes some; one uploads them.
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**kwargs)
        return _hub_api(token or self.args.hub_token).upload_folder(
            repo_id=self.hub_model_id,
            folder_path=str(run_directory(self.args)),
            commit_message=commit_message,
            run_as_future=not blocking,
            revision=revision or self.args.hub_revision,
            ignore_patterns=["checkpoint-*", ".checkpoint-*", "previous-*", "runs/*", *STATE],
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Save, then upload as ``hub_strategy`` says."""
        super()._save_checkpoint(model, trial)
        written = checkpoint_path(self._run_directory(), self.state.global_step)
        # Waited for in this case; a disk that refused it has been reported.
        is_there = self.args.push_to_hub and self.args.hub_strategy != "end" and self._saver.last_saved == written
        if is_there and self.is_world_process_zero():
            self._push_checkpoint(written)

    def _push_checkpoint(self, checkpoint: Path) -> None:
        """Upload in the background; skipped while an earlier upload is under way, unless ``hub_always_push``."""
        if self._upload is not None and not self._upload.done() and not self.args.hub_always_push:
            return
        self._fire("on_push_begin")
        strategy = self.args.hub_strategy
        folders = {"checkpoint": "last-checkpoint", "all_checkpoints": checkpoint.name}
        options: dict[str, Any] = (
            {"path_in_repo": folders[strategy]} if strategy in folders else {"ignore_patterns": STATE}
        )
        self._upload = _hub_api(self.args.hub_token).upload_folder(
            repo_id=self.hub_model_id,
            folder_path=str(checkpoint),
            commit_message=f"Training in progress, step {self.state.global_step}",
            run_as_future=True,
            revision=self.args.hub_revision,
            **options,
        )

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write ``README.md`` into the output directory: what was trained, how, and what came out."""
        front = {
            "library_name": "transformers",
            "language": language,
            "license": license,
            "base_model": finetuned_from,
            "tags": [*_listed(tags), "trainwright"],
            "pipeline_tag": (_listed(tasks) or [None])[0],
            "datasets": _listed(dataset_tags) or _listed(dataset),
        }
        if not self.is_world_process_zero():
            return
        text = model_card(front, model_name or run_directory(self.args).name, self.args, self.state)
        run_directory(self.args).mkdir(parents=True, exist_ok=True)
        (run_directory(self.args) / "README.md").write_text(redacted(text), encoding="utf-8")


def model_card(front: dict[str, Any], name: str, args: Any, state: TrainerState) -> str:
    """Markdown with YAML front matter."""
    import yaml

    header = yaml.safe_dump({key: value for key, value in front.items() if value}, sort_keys=False)
    settings = (
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "seed",
    )
    rows = [f"- {setting}: {getattr(args, setting)}" for setting in settings]
    evaluations = [entry for entry in state.log_history if any(key.startswith("eval_") for key in entry)]
    results = [f"- {key}: {value}" for key, value in (evaluations[-1] if evaluations else {}).items()]
    return "\n".join(
        [
            f"---\n{header}---\n\n# {name}\n",
            f"Trained for {state.global_step} steps with trainwright.\n",
            "## Settings\n",
            *rows,
            f"- optimizer: {args.optim}",
            f"- schedule: {args.lr_scheduler_type}",
            "\n## Results\n",
            *(results or ["No evaluation was run."]),
            "",
        ]
    )


def _listed(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _hub_api(token: str | None) -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ValueError("push_to_hub needs the package huggingface_hub: pip install huggingface_hub") from error
    return HfApi(token=token)
