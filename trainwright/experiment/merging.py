"""``trainwright export RUN --to merged``: a trained adapter added to its model, as a plain folder of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.config.errors import ConfigError
from trainwright.experiment.building import build_trained
from trainwright.experiment.exporting import refuse_existing
from trainwright.experiment.running import weights_of
from trainwright.experiment.stored import EXPERIMENT, load_stored, refuse_masked, stored_facts

MERGED = "merged"


def merge(source: Path, output: Path | None = None, *, trust: bool = False) -> Path:
    """Write the model of a run, or of one of its checkpoints, with its adapter added; returns the folder."""
    target = output if output is not None else source.parent / "exported" / f"{source.name}-{MERGED}"
    refuse_existing(target)
    run = next((folder for folder in (source, source.parent) if (folder / EXPERIMENT).is_file()), None)
    if run is None:
        raise ConfigError(
            f"{source} is no run of an experiment: name the folder that trainwright train wrote, or a checkpoint in it."
        )
    loaded = load_stored(run, [], trust=trust)
    refuse_masked(loaded, "model", "data")
    if loaded.experiment.adapter is None:
        raise ConfigError(f"{source} was trained without an adapter: its folder is a plain model already.")
    built = build_trained(loaded, weights_of(source, None), stored_facts(run))
    model: Any = built.prepared.model
    merged = model.merge_and_unload()
    target.mkdir(parents=True, exist_ok=True)
    merged.save_pretrained(str(target))
    if hasattr(built.prepared.processor, "save_pretrained"):
        built.prepared.processor.save_pretrained(str(target))
    for path in target.glob("*.safetensors"):
        # safetensors writes weights for their owner alone; whoever reads the configuration may read them.
        path.chmod(path.stat().st_mode | (target / "config.json").stat().st_mode & 0o044)
    return target
