"""``adapter:`` in an experiment: trained alone, saved alone, resumed exactly, loaded by PEFT, merged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.chat.chats import ONE
from tests.chat.test_experiments import place, run, weights
from trainwright import load_experiment
from trainwright.cli.app import app
from trainwright.config.errors import ConfigError
from trainwright.experiment.estimating import estimate
from trainwright.experiment.running import evaluate

__all__ = ["place"]


def logits(model: torch.nn.Module, folder: Path) -> torch.Tensor:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    asked = tokenizer.apply_chat_template(ONE, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        return model.eval()(**asked).logits


@pytest.mark.parametrize("kind", ["lora", "dora", "rslora"])
def test_checkpoints_hold_the_adapter_alone_and_peft_and_transformers_read_it(place: Path, kind: str) -> None:
    done = run(f"adapter={{kind: {kind}, r: 2, dropout: 0.1}}")
    config = json.loads((done.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 4, 0.1)
    assert (config["use_dora"], config["use_rslora"]) == (kind == "dora", kind == "rslora")
    for folder in (done.folder, *done.folder.glob("checkpoint-*")):
        assert not (folder / "model.safetensors").exists()
        assert all("lora_" in name for name in weights(folder))
    base = transformers.AutoModelForCausalLM.from_pretrained(str(place / "base"))
    plain = logits(base, done.folder)
    adapted = logits(peft.PeftModel.from_pretrained(base, str(done.folder)), done.folder)
    assert not torch.allclose(plain, adapted, atol=1e-4)
    assert evaluate(done.folder)["eval_loss"] == pytest.approx(done.metrics["eval_loss"], rel=1e-5)
    told = CliRunner().invoke(app, ["export", str(done.folder), "--to", "merged", "--output", "merged"])
    assert told.exit_code == 0, told.output
    merged = transformers.AutoModelForCausalLM.from_pretrained("merged")
    assert torch.allclose(logits(merged, place / "merged"), adapted, atol=1e-5)
    told = CliRunner().invoke(app, ["export", str(done.folder), "--to", "safetensors"])
    assert told.exit_code == 2
    assert "holds an adapter" in told.output
    told = CliRunner().invoke(app, ["export", "merged", "--to", "safetensors"])
    assert told.exit_code == 0, told.output


def test_a_run_with_an_adapter_goes_on_to_the_bit(place: Path) -> None:
    adapter = "adapter={kind: lora, r: 2, dropout: 0.1, targets: [q_proj, v_proj]}"
    run(adapter, "training.num_train_epochs=1")
    gone_on, whole = run(adapter).folder, run(adapter, "name=whole").folder
    assert all(torch.equal(one, weights(whole)[name]) for name, one in weights(gone_on).items())


def test_another_model_under_the_adapter_is_refused(place: Path) -> None:
    run("adapter={r: 2}", "training.num_train_epochs=1")
    file = place / "base/model.safetensors"
    before = file.read_bytes()
    state = load_file(file)
    save_file({name: tensor + 1 for name, tensor in state.items()}, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"is not what it was when the run in .* go on with the same model"):
        run("adapter={r: 2}")
    file.write_bytes(before)
    run("adapter={r: 2}")


def test_another_adapter_is_another_experiment(place: Path) -> None:
    run("adapter={r: 2}", "training.num_train_epochs=1")
    for change in ("adapter={r: 3}", "adapter={r: 2, kind: dora}"):
        with pytest.raises(ConfigError, match="holds another experiment"):
            run(change)


def test_a_missing_peft_is_named_before_any_work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"adapters need the package peft: pip install 'trainwright\[lora\]'"):
        run("adapter=lora")
    assert not (place / "runs/chat").exists()


def test_layers_can_be_trained_whole_beside_it(place: Path) -> None:
    done = run("adapter={r: 2, also_train: [lm_head]}", "training.num_train_epochs=1")
    assert any("lm_head" in name for name in weights(done.folder))


def test_what_is_no_adapter_is_not_merged(place: Path) -> None:
    done = run("training.num_train_epochs=1")
    for folder, words in ((done.folder, "a plain model already"), (place / "base", "is no run of an experiment")):
        told = CliRunner().invoke(app, ["export", str(folder), "--to", "merged"])
        assert told.exit_code == 2
        assert words in told.output


@pytest.mark.parametrize("adapter", ["null", "{r: 2}"])
def test_an_adapter_is_no_model_to_train_on(place: Path, adapter: str) -> None:
    run("adapter={r: 2}", "name=first", "training.num_train_epochs=1", "callbacks={}")
    words = r"holds an adapter and not a whole model.*trainwright export runs/first --to merged"
    with pytest.raises(ConfigError, match=words):
        run(f"adapter={adapter}", "model.name=runs/first")
    assert not (place / "runs/chat").exists()
    (place / "foreign").mkdir()
    (place / "foreign/adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="merge_and_unload"):
        run(f"adapter={adapter}", "model.name=foreign")


def test_an_adapter_folder_says_where_generation_stops(place: Path) -> None:
    folder = run("adapter={r: 2}", "training.num_train_epochs=1", "callbacks={}").folder
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder))
    stops = transformers.GenerationConfig.from_pretrained(str(folder)).eos_token_id
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in stops


def test_an_estimate_knows_what_is_trained(place: Path) -> None:
    plan = estimate(load_experiment("chat.yaml", ["adapter={r: 2}"]))
    assert 0 < plan.trained < plan.parameters / 4


@pytest.mark.full
@pytest.mark.parametrize("parallel", ["{}", "{fsdp: full_shard}"], ids=["ddp", "fsdp2"])
def test_two_processes_train_the_adapter_that_one_trains(place: Path, parallel: str) -> None:
    adapter = "adapter={kind: lora, r: 2}"
    alone = run(adapter, "name=alone", "callbacks={}").folder
    words = [adapter, "name=both", "callbacks={}", f"parallel={parallel}", "training.per_device_train_batch_size=2"]
    command = [sys.executable, "-m", "trainwright", "launch", "-N", "2", "--cpu", "chat.yaml", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    both, one = weights(place / "runs/both"), weights(alone)
    assert both.keys() == one.keys()
    assert all(torch.allclose(both[name], one[name], atol=1e-5) for name in one)
