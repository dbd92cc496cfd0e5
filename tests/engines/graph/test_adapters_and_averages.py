"""What people put around a model goes with other engines too: adapters, averaged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.contract.engines import close, train
from tests.engines.contract.zoo import bert
from tests.engines.graph.torch_framework import TorchFramework
from trainwright import EMACallback
from trainwright.config import probe
from trainwright.training import engine_choice

pytestmark = pytest.mark.full


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["lora", "ema"])
def test_adapters_and_averages(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "framework_for", lambda args: TorchFramework())
    monkeypatch.setitem(probe._PROBES, "mindspore", probe._PROBES["torch"])
    probe._load.cache_clear()
    model, data = bert()
    if kind == "lora":
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=4, target_modules=["query", "value"], lora_dropout=0.1, task_type="SEQ_CLS")
        model = get_peft_model(model, config)
    done = []
    for engine in ("torch", "mindspore"):
        options: dict[str, Any] = {"callbacks": [EMACallback(decay=0.5)]} if kind == "ema" else {}
        options |= {"eval_dataset": data[:6], "eval_strategy": "steps", "eval_steps": 2, "learning_rate": 1e-2}
        done.append(train(tmp_path / engine, engine, model, data, **options))
    probe._load.cache_clear()
    for name in ("loss", "eval_loss"):
        assert close(done[1].logged(name), done[0].logged(name))
