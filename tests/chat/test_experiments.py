"""``task: chat`` from a file: trained, evaluated, looked at, gone on with; and mistakes, named before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.chat.chats import TWO
from tests.chat.tiny import CHATML, MARKED, model_folder
from trainwright import load_experiment
from trainwright.config.errors import ConfigError
from trainwright.data.chat.shapes import find_shape
from trainwright.experiment.checking import check
from trainwright.experiment.looking import look
from trainwright.experiment.running import evaluate, predict, train

PLACES = {"fox": "den", "owl": "tree", "bee": "hive", "ant": "hill", "cat": "house", "dog": "kennel", "cow": "barn"}
FILE = """
model: {name: base, task: chat}
data: {train: chats.jsonl, holdout: 0.25}
training: {num_train_epochs: 2, learning_rate: 1e-2, per_device_train_batch_size: 4, use_cpu: true, report_to: none,
  lr_scheduler_type: constant, warmup_steps: 0}
callbacks: {sample_predictions: {count: 2, max_new_tokens: 4}}
"""


def chats() -> list[dict[str, Any]]:
    return [
        {"messages": [{**TWO[0], "content": f"Where does the {animal} live?"}, {**TWO[1], "content": f"In a {home}."}]}
        for animal, home in PLACES.items()
    ] + [{"messages": TWO}]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    model_folder(tmp_path / "base")
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats()))
    (tmp_path / "chat.yaml").write_text(FILE)
    return tmp_path


def run(*overrides: str, said: list[str] | None = None) -> Any:
    return train(load_experiment("chat.yaml", overrides), say=(said if said is not None else []).append)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*model.safetensors")
    return load_file(file)


def test_it_trains_says_what_it_learns_from_and_keeps_it(place: Path) -> None:
    said: list[str] = []
    done = run(said=said)
    assert done.metrics["eval_perplexity"] == pytest.approx(
        torch.tensor(done.metrics["eval_loss"]).exp().item(), rel=1e-3
    )
    assert any("reads OpenAI's shape" in line for line in said)
    assert any("6 conversations, 6 samples" in line and "trained" in line and "masked" in line for line in said)
    assert any("sample 0, trained in «»: <|im_start|>user↵" in line and "«In a" in line for line in said)
    facts = json.loads((done.folder / "preprocessing.json").read_text())["facts"]
    assert "«" in facts["first_samples"][0]
    assert facts["counts"]
    kept = [json.loads(line) for line in (done.folder / "samples.jsonl").read_text().splitlines()]
    assert {line["step"] for line in kept} == {2, 4}
    # It is told to stop where its answers end.
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(done.folder))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in transformers.GenerationConfig.from_pretrained(str(done.folder)).eos_token_id
    again = evaluate(done.folder)
    assert again["eval_loss"] == pytest.approx(done.metrics["eval_loss"], rel=1e-5)


def test_going_on_is_as_if_it_had_never_stopped(place: Path) -> None:
    run("training.num_train_epochs=1")
    gone_on, whole = run().folder, run("name=whole").folder
    assert all(torch.equal(one, weights(whole)[name]) for name, one in weights(gone_on).items())


def test_phases_may_have_conversations_of_their_own(place: Path) -> None:
    (place / "more.jsonl").write_text(json.dumps({"messages": TWO}) + "\n")
    said: list[str] = []
    done = run("phases={first: {epochs: 1}, second: {epochs: 1, data: more.jsonl}}", said=said)
    assert any(line.startswith("chat: a phase: 1 conversations") for line in said)
    assert not any("other samples" in line for line in said)
    assert done.steps == 2 + 1


def test_samples_that_changed_since_the_run_began_are_said(place: Path) -> None:
    run("training.num_train_epochs=1")
    said: list[str] = []
    run(said=said)
    assert not any("other samples" in line for line in said)
    (place / "base/chat_template.jinja").write_text(MARKED)
    run("training.num_train_epochs=3", said=said)
    assert any("these are other samples than those that the run began with" in line for line in said)


@pytest.mark.parametrize(
    "change",
    ["data.train_on=last", "data.max_length=32", "adapter={r: 2}", "data.text=messages", "model.chat_template=t"],
)
def test_what_would_change_the_samples_or_the_weights_is_another_experiment(place: Path, change: str) -> None:
    run("training.num_train_epochs=1")
    (place / "t").write_text(CHATML)
    with pytest.raises(ConfigError, match="holds another experiment"):
        run(change)


def test_answers_at_evaluations_leave_the_weights_as_they_are(place: Path) -> None:
    with_answers, without = run().folder, run("callbacks={}", "name=without").folder
    assert not (without / "samples.jsonl").exists()
    assert all(torch.equal(one, weights(without)[name]) for name, one in weights(with_answers).items())


@pytest.mark.parametrize(("adapter", "epochs"), [("null", 40), ("{r: 2}", 1)])
def test_predictions_are_answers(place: Path, adapter: str, epochs: int) -> None:
    settings = [f"training.num_train_epochs={epochs}", "training.learning_rate=2e-2", "callbacks={}"]
    folder = run(*settings, f"adapter={adapter}").folder
    (place / "asked.jsonl").write_text(
        json.dumps({"messages": TWO[:1]}) + "\n" + json.dumps({"messages": chats()[0]["messages"]}) + "\n"
    )
    file, count = predict(folder, data="asked.jsonl")
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert (count, first["index"], second["label"]) == (2, 0, "In a den.")
    assert "label" not in first
    assert first["prediction"] == second["prediction"] != ""
    assert first["input"] == {"messages": TWO[:1]}
    if adapter == "null":
        assert first["prediction"].startswith("In a")
    (place / "nothing.jsonl").write_text(json.dumps({"messages": TWO[1:2]}) + "\n")
    with pytest.raises(ConfigError, match="row 0: there is nothing to answer"):
        predict(folder, data="nothing.jsonl")


def test_check_and_look_show_what_is_trained(place: Path) -> None:
    lines = check(load_experiment("chat.yaml")).lines
    assert any("«In a" in text for name, text in lines if name == "data")
    view, _ = look(load_experiment("chat.yaml"), rows=2, depth=1)
    assert "«In a" in str(view)


@pytest.mark.parametrize("shape", ["sharegpt.jsonl", "alpaca.parquet", "columns.jsonl"])
def test_other_shapes_and_files_give_the_same_samples(place: Path, shape: str) -> None:
    pairs = [(row["messages"][0]["content"], row["messages"][1]["content"]) for row in chats()[:-1]]
    rows: list[dict[str, Any]] = {
        "sharegpt.jsonl": [
            {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}
            for asked, said in pairs
        ],
        "alpaca.parquet": [{"instruction": asked, "input": "", "output": said} for asked, said in pairs],
        "columns.jsonl": [{"q": asked, "a": said, "unused": 1} for asked, said in pairs],
    }[shape]
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(shape) if shape.endswith("parquet") else table.to_json(shape)
    named = ["data.text=q", "data.target=a"] if shape == "columns.jsonl" else []
    (place / "plain.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats()[:-1]))
    from trainwright.experiment.building import build

    found = build(load_experiment("chat.yaml", [f"data.train={shape}", *named])).prepared
    plain = build(load_experiment("chat.yaml", ["data.train=plain.jsonl"])).prepared
    assert torch.equal(found.train.tokens, plain.train.tokens)
    assert torch.equal(found.train.labels, plain.train.labels)
    assert found.dropped == (["unused"] if shape == "columns.jsonl" else [])


@pytest.mark.parametrize(("ending", "said"), [("jsonl", "row 5 of the file"), ("parquet", "row 4 of the data")])
def test_errors_name_the_row_of_the_file(place: Path, ending: str, said: str) -> None:
    """Rows to train on are shuffled when some are held out."""
    rows = chats()
    rows[4]["messages"][0]["role"] = "robot"
    table = datasets.Dataset.from_list(rows)
    table.to_parquet("bad.parquet") if ending == "parquet" else table.to_json("bad.jsonl")
    with pytest.raises(ConfigError, match=rf"{said}.*: there is no role 'robot'"):
        run(f"data.train=bad.{ending}")


WORDS = ["2024-01-05", "007", "3.10", "TRUE", "NA", "None", "null"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "messages.jsonl"])
def test_texts_of_files_are_learned_to_the_letter(place: Path, word: str, ending: str) -> None:
    """Where all rows have such a word, readers of tables take them for dates, numbers or gaps."""
    from trainwright.experiment.building import rows_of

    pairs = [{"instruction": f"{number}?", "output": word} for number in range(4)]
    told = [{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": word}]}] * 4
    lines = [json.dumps(row) for row in (told if ending.startswith("messages") else pairs)]
    csv = ["instruction,output", *(",".join(row.values()) for row in pairs)]
    (place / f"rows.{ending}").write_text("\n".join(csv if ending == "csv" else lines) + "\n")
    rows = rows_of(load_experiment("chat.yaml", [f"data.train=rows.{ending}"]), "train")
    shape = find_shape(rows.column_names, [rows[0]])
    assert [shape.chat(row).messages[1]["content"] for row in rows] == [word] * 4


def test_a_template_of_ones_own_is_used_and_kept(place: Path) -> None:
    (place / "mine.jinja").write_text(MARKED.replace("{{ '\\n' }}", "{{ '\\n\\n' }}"))
    said: list[str] = []
    done = run("model.chat_template=mine.jinja", "training.num_train_epochs=1", said=said)
    assert any("by the template's markers" in line for line in said)
    saved: Any = transformers.AutoTokenizer.from_pretrained(str(done.folder))
    assert saved.chat_template == (place / "mine.jinja").read_text()
    # A run keeps its own.
    (place / "mine.jinja").write_text("something else")
    assert evaluate(done.folder)["eval_loss"] == pytest.approx(done.metrics["eval_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.train_on=answers"], "data.train_on: 'answers' is none of assistant, last, each, all"),
        (["data.text=talk"], "there is no column 'talk'"),
        (["model.chat_template=gone.jinja"], "gone.jinja"),
        (["model.task=null"], "the column messages holds conversations: set model.task: chat"),
        (["model.task=causal-lm", "data.text=messages"], "set model.task: chat"),
        (["model.chat_template=broken.jinja"], "broken.jinja: line 2: "),
        (["model.name=models/bese"], "there is no folder models/bese .did you mean 'base'"),
        (["model.name=mlp"], "needs a causal language model of transformers"),
        (["data.max_length=1"], "at least 2"),
        (["data.max_length=4"], "the mask is all zero"),
        (["data.max_length=4000"], "more than the 512 tokens"),
        (["model.tokenizer=other"], "it is another model's tokenizer"),
        (["model.tokenizer=untold"], "the tokenizer has no chat template"),
        (["adapter.kind=prefix"], "adapter.kind: 'prefix' is none of lora, dora, rslora"),
        (["adapter.r=0"], "adapter.r: 0 should be at least 1"),
        (["adapter.rank=3"], "rank"),
        (["adapter=lora", "model.pretrained=false"], "starts from new weights"),
        (["adapter.targets=nothing"], "PEFT refuses it"),
    ],
)
def test_mistakes_are_named_before_any_work(place: Path, overrides: list[str], words: str) -> None:
    model_folder(place / "other", CHATML, control=["<|im_start|>", "<|im_end|>", *(f"<|{one}|>" for one in range(300))])
    model_folder(place / "untold", None)
    (place / "broken.jinja").write_text("{% for m in messages %}\n{% for")
    (place / "models/base").mkdir(parents=True)
    with pytest.raises(ConfigError, match=words):
        run(*overrides)
    assert not (place / "runs/chat").exists()


def test_keys_of_this_task_are_said_to_do_nothing_in_others(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    from trainwright.experiment.unused import unused_keys

    (place / "t.csv").write_text("a,b\n1,2\n3,4\n")
    lines = unused_keys(load_experiment("chat.yaml", ["model.name=mlp", "model.task=tabular", "data.train=t.csv",
        "data.train_on=last", "model.chat_template=x"]), "tabular")  # fmt: skip
    assert [line.partition(": ")[2].split(" does")[0] for line in lines] == ["data.train_on", "model.chat_template"]
