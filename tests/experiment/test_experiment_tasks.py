"""Each task from a file on disk to metrics, predictions and a model that can be read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from tests.experiment import tiny
from trainwright.config.errors import ConfigError
from trainwright.config.loading import load_experiment
from trainwright.config.warnings import TrainwrightWarning
from trainwright.experiment.running import evaluate, predict, train
from trainwright.experiment.sources import eval_split

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def experiment(tmp_path: Path, text: str, *overrides: str, trust: bool = False) -> Any:
    path = tmp_path / "try.yaml"
    path.write_text(text)
    quick = ["training.report_to=none", "training.use_cpu=true"]
    return load_experiment(path, [*quick, *overrides], trust=trust)


def reviews(tmp_path: Path, rows: int = 48) -> Path:
    words = {"good": "good fine very good", "bad": "bad awful so bad"}
    found = [
        {"id": i, "text": f"the film was {words[kind]}", "label": kind} for i in range(rows // 2) for kind in words
    ]
    path = tmp_path / "reviews.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in found))
    return path


@pytest.mark.slow
def test_text_classification_from_jsonl(tmp_path: Path) -> None:
    tiny.bert(tmp_path / "bert")
    reviews(tmp_path)
    text = (
        "model: {name: bert, task: text-classification}\n"
        "data: {train: reviews.jsonl, holdout: 0.25}\n"
        "training: {num_train_epochs: 6, learning_rate: 1e-2, per_device_train_batch_size: 8}\n"
    )
    done = train(experiment(tmp_path, text), say=lambda line: None)
    assert done.folder == Path("runs/try")
    assert done.metrics["eval_accuracy"] == 1.0
    found = json.loads((done.folder / "config.json").read_text())
    assert found["id2label"] == {"0": "bad", "1": "good"}
    # The folder alone is enough, and new rows need no label.
    (tmp_path / "new.jsonl").write_text('{"text": "so awful"}\n{"text": "very fine"}\n')
    path, rows = predict(done.folder, data="new.jsonl")
    assert rows == 2
    assert [json.loads(line)["prediction"] for line in path.read_text().splitlines()] == ["bad", "good"]
    again = evaluate(done.folder, data="reviews.jsonl")
    assert again["eval_accuracy"] == 1.0
    assert json.loads((done.folder / "eval_results.json").read_text())["eval_accuracy"] == 1.0


@pytest.mark.slow
def test_causal_lm_from_text_and_from_parquet(tmp_path: Path) -> None:
    tiny.gpt(tmp_path / "gpt")
    (tmp_path / "a.txt").write_text("the good film is a very good film\n" * 80)
    text = "model: gpt\ndata: {train: a.txt, holdout: 0.1, max_length: 16}\n"
    overrides = ["training.num_train_epochs=12", "training.learning_rate=1e-2"]
    done = train(experiment(tmp_path, text, *overrides), say=lambda line: None)
    assert done.metrics["eval_perplexity"] == pytest.approx(np.exp(done.metrics["eval_loss"]), rel=1e-3)
    assert done.metrics["eval_perplexity"] < 6
    datasets.Dataset.from_dict({"content": ["the plot was awful"] * 80}).to_parquet(str(tmp_path / "b.parquet"))
    text = "name: second\nmodel: {name: gpt, pretrained: false}\ndata: {train: b.parquet, max_length: 8}\n"
    second = train(experiment(tmp_path, text, "training.max_steps=2"), say=lambda line: None)
    assert second.steps == 2


@pytest.mark.slow
def test_seq2seq_generates_while_it_evaluates(tmp_path: Path) -> None:
    tiny.bart(tmp_path / "bart")
    rows = [{"source": "red one" if i % 2 else "green two", "target": "good" if i % 2 else "bad"} for i in range(64)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    text = (
        "model: bart\ndata: {train: pairs.jsonl, eval: pairs.jsonl, limit_eval: 8}\n"
        "training: {num_train_epochs: 12, learning_rate: 1e-2, generation_max_length: 6}\n"
    )
    done = train(experiment(tmp_path, text), say=lambda line: None)
    assert done.metrics["eval_exact_match"] == 1.0
    path, _ = predict(done.folder, data="pairs.jsonl")
    assert [json.loads(line)["prediction"] for line in path.read_text().splitlines()[:2]] == ["bad", "good"]


@pytest.mark.slow
def test_images_in_folders(tmp_path: Path) -> None:
    from PIL import Image

    for name, colour in (("dark", 20), ("light", 230)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(12):
            image = Image.new("RGB", (20, 24), (colour + index, colour, colour))
            image.save(tmp_path / "photos" / name / f"{index}.png")
    text = "model: {name: cnn, options: {width: 4}}\ndata: {train: photos, holdout: 0.25, image_size: 16}\n"
    done = train(experiment(tmp_path, text, "training.num_train_epochs=8"), say=lambda line: None)
    assert done.metrics["eval_accuracy"] == 1.0
    tiny.vit(tmp_path / "vit")
    text = "name: second\nmodel: vit\ndata: {train: photos, holdout: 0.25}\n"
    overrides = ["training.num_train_epochs=6", "training.learning_rate=1e-2"]
    second = train(experiment(tmp_path, text, *overrides), say=lambda line: None)
    assert second.metrics["eval_accuracy"] == 1.0
    assert json.loads((second.folder / "config.json").read_text())["id2label"] == {"0": "dark", "1": "light"}


TABLE = "a,b,kind,price\n" + "\n".join(f"{i},{i % 7},{'xy'[i % 2]},{3 * i + 100 * (i % 2)}.5" for i in range(120))


@pytest.mark.slow
def test_a_table_predicts_a_number_or_a_class(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    text = "model: mlp\ndata: {train: t.csv, target: price, holdout: 0.2}\n"
    done = train(experiment(tmp_path, text, "training.num_train_epochs=40"), say=lambda line: None)
    assert done.metrics["eval_r2"] > 0.9
    path, _ = predict(done.folder, data="t.csv")
    first = json.loads(path.read_text().splitlines()[0])["prediction"]
    assert abs(first - 0.5) < 100
    text = "name: kinds\nmodel: mlp\ndata: {train: t.csv, target: kind, features: [a, price], holdout: 0.2}\n"
    kinds = train(experiment(tmp_path, text, "training.max_steps=20"), say=lambda line: None)
    assert 0 <= kinds.metrics["eval_accuracy"] <= 1
    path, _ = predict(kinds.folder, data="t.csv")
    assert json.loads(path.read_text().splitlines()[0])["prediction"] in ("x", "y")


@pytest.mark.slow
def test_missing_values_unknown_categories_and_useless_columns(tmp_path: Path) -> None:
    lines = [f"{i if i % 5 else ''},1,{'pq'[i % 2]},{i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,same,town,y", *lines]))
    said: list[str] = []
    text = "model: mlp\ndata: {train: t.csv, target: y, holdout: 0.25}\n"
    done = train(experiment(tmp_path, text, "training.max_steps=5"), say=said.append)
    assert any("from 1 numbers and 1 categories" in line for line in said)
    (tmp_path / "new.csv").write_text("a,town\n3,elsewhere\n,p\n")
    path, rows = predict(done.folder, data="new.csv")
    assert rows == 2
    assert all(np.isfinite(json.loads(line)["probability"]) for line in path.read_text().splitlines())
    (tmp_path / "less.csv").write_text("town\np\n")
    with pytest.raises(ConfigError, match="lacks the columns a"):
        predict(done.folder, data="less.csv")


@pytest.mark.slow
def test_code_of_ones_own_runs_only_with_trust(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(3, width)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
        "def rows(count=16):\n"
        "    return [{'x': torch.ones(3) * i, 'labels': torch.tensor(i % 2)} for i in range(count)]\n"
        "def measure(prediction):\n"
        "    return {'rows': len(prediction.label_ids)}\n"
    )
    text = (
        "model: {name: mine.py:Net, options: {width: 2}, metrics: mine.py:measure}\n"
        "data: {train: mine.py:rows, eval: mine.py:rows, options: {count: 24}}\n"
    )
    with pytest.raises(ConfigError, match=r"try\.yaml:1: model\.name: .*--trust"):
        experiment(tmp_path, text)
    done = train(experiment(tmp_path, text, "training.max_steps=3", trust=True), say=lambda line: None)
    assert done.metrics["eval_rows"] == 24
    # On the command line the user said it.
    given = ["model=mine.py:Net", "model.options={width: 2}", "data.train=mine.py:rows", "training.max_steps=1"]
    assert train(experiment(tmp_path, "name: b\nmodel: x\n", *given), say=lambda line: None).steps == 1
    with pytest.raises(ConfigError, match=r"has no 'rowz'.*did you mean 'rows'"):
        train(experiment(tmp_path, "name: c\nmodel: x\n", *given, "data.train=mine.py:rowz"), say=lambda line: None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: mlp", "data.train is missing"),
        ("model: mlp\ndata: nowhere.csv", r"try.yaml:2: data.train: there is no .*nowhere.csv"),
        (
            "model: mlp\ndata: {train: t.csv, target: prize}",
            "there is no column 'prize' .did you mean 'price'.*; there are a, b, kind, price",
        ),
        ("model: mlp\ndata: t.csv", r"which column is to be predicted\? There are a, b, kind, price. Set data.target"),
        ("model: {name: mlp, options: {wide: 3}}\ndata: {train: t.csv, target: kind}", "model.options: mlp .*wide"),
        ("model: ./nothing\ndata: {train: t.csv}", "model.name: there is no .*nothing"),
        ("model: {name: mlp, task: tabular-regression}\ndata: {train: t.csv, target: kind}", "holds words"),
        ("model: mlp\ndata: {train: t.csv, target: kind, holdout: 2}", "should be a share between 0 and 1"),
        ("model: mlp\ndata: {train: t.csv, target: kind}\ncallbacks: [erly_stopping]", "did you mean 'early_stopping'"),
        ("model: mlp\ndata: {train: t.csv, target: kind}\ncallbacks: {ema: {dekay: 1}}", "callbacks.ema: .*dekay"),
        ("model: mlp\ndata: {train: t.csv, target: kind}\nrecipe: ./r.yaml", "there is no .*r.yaml"),
    ],
)
def test_mistakes_are_named_before_any_work(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    with pytest.raises(ConfigError, match=message):
        train(experiment(tmp_path, text), say=lambda line: None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_saved_dataset_brings_its_own_validation_part(tmp_path: Path) -> None:
    def part(count: int) -> Any:
        pairs = count // 2
        rows = {
            "sentence1": ["the film"] * count,
            "sentence2": ["was good", "was bad"] * pairs,
            "label": [1, 0] * pairs,
        }
        features = datasets.Features(
            sentence1=datasets.Value("string"),
            sentence2=datasets.Value("string"),
            label=datasets.ClassLabel(names=["no", "yes"]),
        )
        return datasets.Dataset.from_dict(rows, features=features)

    datasets.DatasetDict({"train": part(24), "validation": part(6)}).save_to_disk(str(tmp_path / "saved"))
    tiny.bert(tmp_path / "bert")
    said: list[str] = []
    text = "model: {name: bert, task: text-classification}\ndata: saved\n"
    overrides = ["training.num_train_epochs=6", "training.learning_rate=1e-2", "training.per_device_train_batch_size=4"]
    done = train(experiment(tmp_path, text, *overrides), say=said.append)
    assert said == ["text-classification: reads sentence1 and sentence2, predicts label (2 labels)"]
    assert done.metrics["eval_accuracy"] == 1.0
    # The dataset knows its names: 1 is yes, whatever their order in the alphabet.
    path, rows = predict(done.folder)
    assert rows == 6
    assert json.loads(path.read_text().splitlines()[0])["prediction"] == "yes"


def test_a_dataset_whose_parts_are_unknown_is_not_silently_left_unevaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "get_dataset_split_names", no_network)
    loaded = experiment(tmp_path, "model: mlp\ndata: somebody/rows\n")
    with pytest.warns(TrainwrightWarning, match=r"somebody/rows .*not evaluated unless data\.eval_split"):
        assert eval_split(loaded) is None


def test_several_files_by_a_pattern_and_limits(tmp_path: Path) -> None:
    header, *lines = TABLE.splitlines()
    for name, chosen in (("p1", lines[:60]), ("p2", lines[60:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *chosen]))
    text = "model: mlp\ndata: {train: 'p*.csv', target: kind, holdout: 0.5, limit_train: 32, limit_eval: 10}\n"
    done = train(experiment(tmp_path, text, "training.num_train_epochs=1"), say=lambda line: None)
    assert done.steps == 1
    assert evaluate(done.folder, data="p*.csv")["eval_samples_per_second"] > 0


def test_registered_models_and_data(tmp_path: Path) -> None:
    import torch

    from trainwright.config.registry import register

    @register("dataset", "ramp")
    def rows(count: int = 8) -> list[dict[str, Any]]:
        return [{"x": torch.tensor([float(i)]), "labels": torch.tensor(2.0 * i)} for i in range(count)]

    @register("model", "line-of-mine")
    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    text = "model: line-of-mine\ndata: {train: ramp, eval: ramp, options: {count: 12}}\n"
    done = train(experiment(tmp_path, text, "training.num_train_epochs=2"), say=lambda line: None)
    assert done.metrics["eval_loss"] >= 0
    assert done.steps == 4


def test_trackers_and_callbacks_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "mine.py").write_text(
        "class Notes:\n"
        "    def __init__(self, path):\n"
        "        self.path = path\n"
        "    def start(self, run):\n"
        "        open(self.path, 'w').write(f'start {run.name}\\n')\n"
        "    def log(self, values, step):\n"
        "        open(self.path, 'a').write(f'{step} {sorted(values)}\\n')\n"
        "    def finish(self, status):\n"
        "        open(self.path, 'a').write(status)\n"
    )
    text = (
        "model: mlp\ndata: {train: t.csv, target: kind, holdout: 0.2}\n"
        "trackers: {jsonl: {file: numbers.jsonl}, mine.py:Notes: {path: notes.txt}}\n"
        "callbacks: {early_stopping: {patience: 2}, monitor: {cpu_memory: true, grad_norm: false}}\n"
        "training: {max_steps: 4, logging_steps: 2, use_cpu: true}\n"
    )
    path = tmp_path / "try.yaml"
    path.write_text(text)
    train(load_experiment(path, trust=True), say=lambda line: None)
    notes = (tmp_path / "notes.txt").read_text()
    assert notes.startswith("start try\n2 ")
    assert "cpu_memory_gb" in notes
    assert "grad_norm" not in notes
    assert notes.endswith("done")
    events = [json.loads(line)["event"] for line in (tmp_path / "numbers.jsonl").read_text().splitlines()]
    assert (events[0], events[-1]) == ("start", "finish")
    path.write_text(text.replace("file:", "fle:"))
    with pytest.raises(ConfigError, match=r"try\.yaml:3: trackers\.jsonl: .*no option 'fle' \(did you mean 'file'"):
        train(load_experiment(path, ["name=b"], trust=True), say=lambda line: None)
