"""A folder that is saved to again holds the new model only, whether that is one file or several."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.models import Plain
from trainwright.checkpoint.weights import INDEX, WEIGHTS, keep_newer_form, load_weights, save_weights

SHARD = "model-00001-of-00002.safetensors"


def several(folder: Path, model: Plain) -> None:
    names = list(model.state_dict())
    save_file({names[0]: model.state_dict()[names[0]]}, folder / SHARD)
    save_file({n: model.state_dict()[n] for n in names[1:]}, folder / "model-00002-of-00002.safetensors")
    files = {name: SHARD if name == names[0] else "model-00002-of-00002.safetensors" for name in names}
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))


def test_one_file_in_place_of_several_and_back(tmp_path: Path) -> None:
    old, new = Plain(seed=1), Plain(seed=2)
    several(tmp_path, old)
    (tmp_path / "mine.safetensors").write_bytes((tmp_path / SHARD).read_bytes())
    save_weights(new, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.safetensors", WEIGHTS]
    several(tmp_path, old)
    os.utime(tmp_path / WEIGHTS, ns=(0, 0))
    keep_newer_form(tmp_path)
    assert not (tmp_path / WEIGHTS).exists()
    load_weights(new, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(new.parameters(), old.parameters(), strict=True))
    assert load_file(tmp_path / SHARD)
