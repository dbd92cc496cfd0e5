"""Batches of texts without their padding: the same loss and gradients, in many models; and when it is left alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.acceleration.networks import PADDED, lengths_batch, llama, made_padded, small
from tests.acceleration.test_runs import same, told, weights
from tests.acceleration.test_techniques import check_equal, situation
from trainwright import Trainer, TrainerCallback, TrainingArguments
from trainwright.engines.torch.acceleration import padding
from trainwright.engines.torch.acceleration.blocks import compilations
from trainwright.engines.torch.acceleration.padding import NoPadding
from trainwright.engines.torch.acceleration.read_tokens import trains_on_padding

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each call of the attention without padding was given."""
    seen: list[int] = []
    attend = padding.attend

    def watched(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(query.shape[2])
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(padding, "attend", watched)
    return seen


@pytest.mark.parametrize("name", PADDED)
def test_gradients_are_those_of_the_padded_batch(name: str, attended: list[int]) -> None:
    network, batch = made_padded(name)
    assert NoPadding().why_not(situation(network, lengths_vary=True)) is None
    check_equal(network, batch, NoPadding())
    assert set(attended) == {26}, "as many tokens as there are without padding"


@pytest.mark.parametrize("name", ["llama", "opt", "qwen3"])
def test_padding_may_stand_in_front(name: str, attended: list[int]) -> None:
    network, batch = made_padded(name, is_left=True)
    check_equal(network, batch, NoPadding())
    assert set(attended) == {26}


def test_single_texts_give_what_they_give_together() -> None:
    """Nobody sees another text: each alone has the same logits as in the row of all."""
    network, batch = made_padded("llama")
    network.double()
    undo = NoPadding().install(situation(network))
    together = network(**batch).logits
    undo()
    for row, length in enumerate((5, 12, 1, 8)):
        alone = network(input_ids=batch["input_ids"][row : row + 1, :length]).logits
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-10, atol=1e-10)


def test_a_batch_that_trains_on_padding_stays_as_it_is(attended: list[int]) -> None:
    network, batch = made_padded("llama")
    wrong = {**batch, "labels": torch.where(batch["labels"] == -100, 7, batch["labels"])}
    plain = network(**wrong).loss
    undo = NoPadding().install(situation(network))
    try:
        assert torch.equal(network(**wrong).loss, plain)
        assert attended == []
        assert network(**batch).loss.isfinite()
        assert attended
        attended.clear()
        network.eval()
        network(**batch)
        assert attended == []
    finally:
        undo()


def test_a_copy_of_the_network_is_a_plain_one(attended: list[int]) -> None:
    network, batch = made_padded("llama")
    undo = NoPadding().install(situation(network))
    other = copy.deepcopy(network)
    expected = other(**batch).loss
    assert attended == []
    assert other.config._attn_implementation == "sdpa"
    undo()
    assert torch.equal(network(**batch).loss, expected)
    assert network.config._attn_implementation == "sdpa"


def test_another_network_of_the_same_configuration_is_a_plain_one() -> None:
    network, batch = made_padded("llama")
    other = type(network)(network.config).double()
    plain = other(**batch).loss
    undo = NoPadding().install(situation(network))
    torch.testing.assert_close(other(**batch).loss, plain)
    undo()


def test_texts_without_any_token_do_no_harm() -> None:
    network, batch = made_padded("llama")
    undo = NoPadding().install(situation(network))
    batch["attention_mask"][2] = 0
    batch["labels"][2] = -100
    assert network(**batch).loss.isfinite()
    nothing = {**batch, "attention_mask": torch.zeros_like(batch["attention_mask"])}
    del nothing["labels"]
    assert network(**nothing).logits.shape == (4, 12, 96)
    undo()


def later_calls() -> dict[str, tuple[str, dict[str, Any]]]:
    """Calls that are not like the first: whose model, and what is another."""
    tags, left = lengths_batch(labels="texts"), lengths_batch(labels="texts", is_left=True)
    hole = tags["attention_mask"].clone()
    hole[1, -1] = 0
    return {
        "a column that nobody knows": ("llama", {"weights": torch.ones(4, 12)}),
        "routers are asked for": ("mixtral", {"output_router_logits": True}),
        "hidden states are asked for": ("llama", {"output_hidden_states": True}),
        "the first token is padding": ("bert classifier", {"attention_mask": left["attention_mask"]}),
        "the last token is masked": ("llama classifier", {"attention_mask": hole}),
        "no labels": ("llama", {"labels": None}),
    }


@pytest.mark.parametrize("what", later_calls())
def test_a_call_that_might_give_another_result_is_computed_as_it_is(what: str, attended: list[int]) -> None:
    name, other = later_calls()[what]
    network, batch = made_padded(name)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = {**batch, **other}
    plain = network(**batch)
    undo = NoPadding().install(situation(network))
    found = network(**batch)
    undo()
    assert attended == []
    assert torch.equal(found.logits, plain.logits)


def test_what_is_done_to_the_network_later_is_seen(attended: list[int]) -> None:
    network, batch = made_padded("llama")
    undo = NoPadding().install(situation(network))
    seen: list[torch.Size] = []
    hook = network.model.layers[1].register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    network(**batch)
    assert seen == [torch.Size((4, 12, 32))]
    hook.remove()
    network.config._attn_implementation = "eager"
    network(**batch)
    assert attended == []
    undo()
    assert network.config._attn_implementation == "eager", "and stays as it was chosen"


def reasons() -> dict[str, tuple[Any, dict[str, Any]]]:
    return {
        "samples are stacked as they are": (llama, {"lengths_vary": False}),
        "does not go with fsdp": (llama, {"layout": "fsdp"}),
        "not a model of transformers": (lambda: nn.TransformerEncoderLayer(8, 2), {}),
        "attention is not torch's": (lambda: small("LlamaForCausalLM", attn_implementation="eager"), {}),
        "look only at tokens nearby": (lambda: small("MistralForCausalLM", sliding_window=8), {}),
        "an encoder and a decoder": (lambda: small("T5ForConditionalGeneration", d_model=32, d_kv=8), {}),
        "leaves out blocks at random": (lambda: small("OPTForCausalLM", ffn_dim=48, layerdrop=0.1), {}),
        "at which tokens the head of Headed looks": (headed, {}),
        "could see it": (llama, {"onlookers": ("MyTrainer.compute_loss",)}),
        "compiled already": (compiled, {}),
        "somebody's hook": (listened_to, {}),
        "gains nothing on a CPU": (llama, {"is_asked_for": False}),
    }


def compiled() -> Any:
    network = llama()
    for layer in network.model.layers:
        layer.compile(backend="eager")
    return network


def headed() -> Any:
    network = llama()
    network.__class__ = type("Headed", (type(network),), {})
    return network


def listened_to() -> Any:
    network = llama()
    network.model.layers[1].mlp.register_forward_hook(lambda module, args, output: None)
    return network


@pytest.mark.parametrize("why", reasons())
def test_it_says_why_not(why: str) -> None:
    build, options = reasons()[why]
    said = NoPadding().why_not(situation(build(), **{"lengths_vary": True, **options}))
    assert said is not None
    assert why in said


# ---- in a training


def texts(count: int = 48) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [2 + (number * 37) % 29 for number in range(count)]
    return [{"input_ids": (ids := torch.randint(3, 96, (n,), generator=generator)), "labels": ids} for n in lengths]


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids = [sample["input_ids"] for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": pad(ids, batch_first=True, padding_value=-100),
    }


def seeded(**options: Any) -> Any:
    torch.manual_seed(0)
    return llama(**options)


def trainer(folder: Path, model: Any = None, data: Any = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = TrainingArguments(str(folder), **{**settings, **options})
    network = seeded(attention_dropout=0.1) if model is None else model
    return Trainer(network, args, train_dataset=data or texts(), data_collator=collate)


def losses(run: Trainer) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_checkpointing": True}, {"gradient_accumulation_steps": 2}, {"micro_batch": 2}],
    ids=["plain", "gradient checkpointing", "accumulation", "micro_batch"],
)
def test_a_training_has_the_same_losses(options: dict[str, Any], tmp_path: Path, attended: list[int]) -> None:
    found = []
    for wanted in ("off", ["padding"]):
        run = trainer(tmp_path / str(wanted), seeded(), acceleration=wanted, **options)
        run.train()
        found.append(losses(run))
    assert told(tmp_path / "['padding']")["used"] == ["padding"]
    assert attended
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", acceleration=["padding"], save_strategy="steps", save_steps=2)
    whole.train()
    network: Any = whole.model
    assert network.config._attn_implementation == "sdpa", "and the model is as it was"
    saved = json.loads((tmp_path / "whole" / "checkpoint-6" / "config.json").read_text(encoding="utf-8"))
    assert "trainwright" not in json.dumps(saved)
    again = trainer(tmp_path / "again", acceleration=["padding"])
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert same(weights(again.model), weights(whole.model))


class Leaking(nn.Module):
    """Adds what the row has on average: with padding a text, without it all of them."""

    def forward(self, states: Tensor) -> Tensor:
        return states + states.mean(1, keepdim=True)


def test_a_layer_that_looks_over_all_tokens_is_noticed_before_the_first_step(tmp_path: Path) -> None:
    model = llama()
    model.model.layers[1].mlp = nn.Sequential(model.model.layers[1].mlp, Leaking())
    model.model.layers[2].mlp = nn.Sequential(model.model.layers[2].mlp, Leaking())
    run = trainer(tmp_path, model, acceleration=["padding"], max_steps=1)
    run.train()
    event = told(tmp_path)
    assert event["used"] == []
    assert "its gradient of" in event["left_out"]["padding"]


def test_by_default_it_is_used_on_a_cpu_where_much_is_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "LEAST_PARAMETERS_ON_CPU", 1000)
    run = trainer(tmp_path / "padded", llama(), max_steps=padding.LEAST_STEPS_ON_CPU)
    run.train()
    event = told(tmp_path / "padded")
    # Few words: with logits there is nothing to gain.
    assert event["used"] == ["padding"]
    even = [{"input_ids": one, "labels": one} for one in torch.randint(3, 96, (16, 9))]
    found = []
    for wanted in ("auto", "off"):
        run = trainer(tmp_path / wanted, seeded(), even, max_steps=padding.LEAST_STEPS_ON_CPU, acceleration=wanted)
        run.train()
        found.append(weights(run.model))
    assert same(*found), "without padding not a bit is another"
    assert not (tmp_path / "auto" / "events.jsonl").exists(), "and nothing is said"


def test_labels_behind_padding_are_training_on_it() -> None:
    batch = lengths_batch(is_left=True)
    assert not trains_on_padding(batch["labels"], batch["attention_mask"])
    first_words = torch.where(batch["attention_mask"].bool(), batch["input_ids"], -100)
    assert trains_on_padding(first_words, batch["attention_mask"])


@pytest.mark.full
@pytest.mark.timeout(600)
def test_compiled_blocks_serve_rows_of_any_length(tmp_path: Path) -> None:
    """And a batch that keeps its padding in between costs one more compilation, not one each time."""
    torch.compiler.reset()
    seen: list[int] = []

    class Count(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(compilations())

    samples = texts(120)
    run = trainer(tmp_path, seeded(), samples, max_steps=24, acceleration=["blocks", "padding"])
    run.add_callback(Count())
    run.train()
    assert told(tmp_path)["used"] == ["blocks", "padding"]
    assert seen[-1] == seen[9], seen
