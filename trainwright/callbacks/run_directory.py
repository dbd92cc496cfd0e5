"""The run directory: ``config.yaml``, ``env.json``, ``metrics.jsonl``, ``trainer_state.json``."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import yaml

from trainwright.callbacks.environment import environment_facts
from trainwright.core.callback import TrainerCallback
from trainwright.core.state import TrainerControl, TrainerState


class RunDirectoryCallback(TrainerCallback):
    """Writes what a run was told, what it ran on, and what it logged; one JSON object a line."""

    listens_last = True

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(_plain(args.to_dict()), sort_keys=False), encoding="utf-8")
        facts = environment_facts(kwargs.get("model"), kwargs.get("train_dataloader"))
        (folder / "env.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        keep_until(folder / "metrics.jsonl", state.global_step)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = Path(args.output_dir)
        if not folder.is_dir():
            return
        line = {"step": state.global_step, "time": round(time.time(), 3), **kwargs["logs"]}
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: _json_number(value) for name, value in line.items()}, default=str) + "\n")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        state.save_to_json(Path(args.output_dir) / "trainer_state.json")


def keep_until(metrics: Path, step: int) -> None:
    """Drop lines past ``step``: a new run starts its own curve, a resumed one goes on where its checkpoint was."""
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() and step else []
    kept = [line for line in lines if _step_of(line) <= step]
    metrics.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def _step_of(line: str) -> float:
    """The step a line belongs to; a line cut short when the run was killed belongs nowhere."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


def _json_number(value: Any) -> Any:
    """NaN and infinity as strings: bare ``NaN`` is not JSON and breaks other readers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Only what YAML's safe writer knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(getattr(value, "value", value))
