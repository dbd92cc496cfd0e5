"""PyMarlin's plugins: from a YAML file and data files to a trained model."""

from __future__ import annotations

import sys
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from trainwright.compat.pymarlin import Writer
from trainwright.compat.pymarlin.plugins import HfNERPlugin, HfSeq2SeqPlugin, HfSeqClassificationPlugin, Plugin
from trainwright.compat.pymarlin.plugins.hf_ner.sequence_labelling_metrics import get_entities, get_ner_seq_metric
from trainwright.compat.pymarlin.plugins.hf_seq_classification.metric_utils import get_metric_func
from trainwright.compat.pymarlin.plugins.hfdistill_utils import DistillationArguments

TEXTS = ["good film", "bad book the plot", "very good plot", "so bad", "the film is good", "awful is bad"] * 2


class Notes(Writer):
    """Keeps the last value of each number."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}

    def log_scalar(self, k: str, v: object, step: int) -> None:
        self.values[k] = v


def settings(folder: Path, model: Path, notes: Notes, **sections: Any) -> dict[str, Any]:
    kept = {"save_dir": str(folder / "states"), "model_state_save_dir": str(folder / "models"), "file_prefix": "marlin"}
    return {
        "model": {"hf_model": str(model), "encoder_key": "bert"},
        "trainer": {
            "backend": "sp",
            "train_batch_size": 4,
            "val_batch_size": 5,
            "epochs": 2,
            "writers": [notes],
            "disable_tqdm": True,
            "log_level": "WARNING",
        },
        "ckpt": kept,
        "stats": {"log_steps": 1},
        "wrts": {"tb_log_dir": str(folder / "logs")},
        **sections,
    }


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from tests.experiment.tiny import bert

    return bert(tmp_path_factory.mktemp("bert"))


def labelled(folder: Path) -> dict[str, Any]:
    path = folder / "texts.csv"
    path.write_text("text,label\n" + "".join(f"{text},{'no' if 'bad' in text else 'yes'}\n" for text in TEXTS))
    files = {"train_filepath": str(path), "val_filepath": str(path), "file_format": "csv", "header": 0}
    return {**files, "text_a_col": "text", "label_col": "label", "labels_list": ["no", "yes"]}


@pytest.mark.slow
def test_texts_are_classified(bert: Path, tmp_path: Path) -> None:
    notes = Notes()
    module = {"metric": "acc_and_f1", "max_lr": 5e-3, "max_seq_len": 16}
    config = settings(tmp_path, bert, notes, data=labelled(tmp_path), module=module)
    config["trainer"]["epochs"] = 12
    plugin = HfSeqClassificationPlugin(config)
    trainer = plugin.setup()
    trainer.train()
    assert trainer is plugin.trainer
    assert notes.values["default/val_acc"] == 1.0
    assert notes.values["default/val_f1"] == 1.0
    assert notes.values["lr"] < 5e-3
    assert (tmp_path / "models/marlin_model_11.safetensors").exists()
    # The weights have the names that PyMarlin's have.
    assert "model.classifier.weight" in plugin.moduleinterface.state_dict()


@pytest.mark.slow
def test_numbers_of_pairs_without_a_header(bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    pairs = pairwise(TEXTS)
    path.write_text("".join(f"{text}\t{other}\t{place / 4}\n" for place, (text, other) in enumerate(pairs)))
    data = {"train_filepath": str(path), "val_filepath": str(path), "labels_list": [0], "label_col": "2"}
    data |= {"text_a_col": "0", "text_b_col": "1"}
    notes = Notes()
    plugin = HfSeqClassificationPlugin(
        settings(tmp_path, bert, notes, data=data, module={"metric": "pcc_and_scc", "max_seq_len": 16})
    )
    plugin.setup_datainterface()
    assert plugin.datainterface.get_train_dataset()[1] == ("bad book the plot", "very good plot", 0.25)
    plugin.setup_module()
    plugin.setup_trainer().validate()
    assert set(notes.values) >= {"default/val_loss", "default/val_pearson", "default/val_spearmanr", "default/val_corr"}


@pytest.mark.slow
def test_a_student_with_some_of_the_teachers_layers(tmp_path: Path) -> None:
    tf = pytest.importorskip("transformers")
    from tests.experiment.tiny import tokenizer_folder

    folder = tmp_path / "teacher"
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    tf.BertModel(tf.BertConfig(vocab_size=len(tokenizer_folder(folder)), **sizes)).save_pretrained(folder)
    distill = {"enable": True, "student_layers": [0, 2], "loss_types": ["logits", "labels"], "loss_weights": [1, 0.5]}
    config = settings(tmp_path, folder, Notes(), data=labelled(tmp_path), module={"max_seq_len": 16}, distill=distill)
    plugin = HfSeqClassificationPlugin(config)
    plugin.setup()
    module: Any = plugin.moduleinterface
    teacher = {name: value.clone() for name, value in module.teacher.state_dict().items()}
    assert len(module.model.bert.encoder.layer) == module.model.config.num_hidden_layers == 2
    kept = module.model.bert.encoder.layer[1].output.dense.weight
    assert torch.equal(kept, teacher["bert.encoder.layer.2.output.dense.weight"])
    assert not any("teacher" in name for name in module.state_dict())
    plugin.trainer.train()
    assert all(torch.equal(teacher[name], value) for name, value in module.teacher.state_dict().items())
    # What the teacher says is a part of the loss: for a student that says the same it is nothing.
    module.distill_args.loss_types, module.distill_args.loss_weights = ["logits"], [1.0]
    module.__dict__["teacher"] = module.model.eval()
    batch = next(iter(module.get_train_dataloader(torch.utils.data.SequentialSampler, 4)))
    assert module.train_step(1, batch, "cpu").item() == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_words_are_labelled(bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "words.tsv"
    rows = [(text, " ".join("B-COLOR" if word == "good" else "O" for word in text.split())) for text in TEXTS]
    path.write_text("Sentence\tSlot\n" + "".join(f"{text}\t{labels}\n" for text, labels in rows) + "no labels\t\n")
    notes = Notes()
    data = {"train_filepath": str(path), "val_filepath": str(path), "labels_list": ["O", "B-COLOR"]}
    config = settings(tmp_path, bert, notes, data=data, module={"max_lr": 1e-2, "max_seq_len": 12})
    config["trainer"]["epochs"] = 8
    plugin = HfNERPlugin(config)
    assert len(plugin.datainterface.get_train_dataset()) == len(TEXTS)
    module: Any = plugin.moduleinterface
    batch = module.collate_fun([(["good", "film"], ["B-COLOR", "O"])])
    assert batch["labels"].shape == (1, 12)
    assert [label for label in batch["labels"][0].tolist() if label != -100] == [1, 0]
    plugin.setup_trainer().train()
    assert notes.values["sequence/f1"] == 1.0


@pytest.mark.slow
def test_texts_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from tests.experiment.tiny import bart

    class Scorer:
        """In place of rouge_score's: whether all words are there."""

        def __init__(self, kinds: list[str], use_stemmer: bool) -> None:
            self.kinds = kinds

        def score(self, wanted: str, written: str) -> Any:
            return {kind: types.SimpleNamespace(fmeasure=float(wanted.split() != [])) for kind in self.kinds}

    monkeypatch.setitem(sys.modules, "rouge_score", types.ModuleType("rouge_score"))
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", types.SimpleNamespace(RougeScorer=Scorer))
    for name in ("train.source", "train.target", "val.source", "val.target"):
        (tmp_path / name).write_text("\n".join(TEXTS) + "\n")
    notes = Notes()
    config = settings(tmp_path, bart(tmp_path / "bart"), notes, data={"data_dir": str(tmp_path)})
    config["module"] = {"max_length_encoder": 16, "max_length_decoder": 12}
    config["generate"] = {"num_beams": 2}
    trainer = HfSeq2SeqPlugin(config).setup()
    trainer.train()
    assert notes.values["default/val_rougeLsum"] == 1.0
    written, wanted = trainer.validate()
    assert written.shape == wanted.shape == (len(TEXTS), 12)


def test_what_cannot_be_done_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path, tmp_path, Notes(), data={"train_dir": "x"})
    with pytest.raises(ValueError, match=r"section 'data' .* has train_dir; there are: train_filepath"):
        HfNERPlugin(config)
    with pytest.raises(ValueError, match="labels_list must name"):
        HfSeqClassificationPlugin({**config, "data": {}}).setup()
    with pytest.raises(ValueError, match="hidden_states; here there are logits, labels"):
        DistillationArguments(enable=True, loss_types=["hidden_states"])
    with pytest.raises(ValueError, match="student_model_path is not here"):
        DistillationArguments(enable=True, student_model_path="x")
    with pytest.raises(NotImplementedError, match="must define setup_datainterface"):
        Plugin(config).setup()
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    (tmp_path / "train.source").write_text("a\nb\n")
    (tmp_path / "train.target").write_text("a\n")
    seq2seq = HfSeq2SeqPlugin({**config, "data": {"data_dir": str(tmp_path)}})
    with pytest.raises(ValueError, match="has 2 lines"):
        seq2seq.setup_datainterface()
    for name in ("train.target", "val.source", "val.target"):
        (tmp_path / name).write_text("a\nb\n")
    seq2seq.setup_datainterface()
    with pytest.raises(ValueError, match="pip install rouge_score"):
        seq2seq.setup_module()


@pytest.mark.slow
def test_metrics_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    true, said = (torch.randint(0, 4, (50,), generator=generator).numpy() for _ in range(2))
    assert get_metric_func("acc")(true, said)["acc"] == sklearn.accuracy_score(true, said)
    assert get_metric_func("mcc")(true, said)["mcc"] == pytest.approx(sklearn.matthews_corrcoef(true, said))
    found = get_metric_func("acc_and_f1")(true, said)
    for name in ("f1", "precision", "recall"):
        wanted = getattr(sklearn, f"{name}_score")(true, said, average="weighted", zero_division=0)
        assert found[name] == pytest.approx(wanted)
    pair = get_metric_func("pcc_and_scc")(true, said)
    assert pair["pearson"] == pytest.approx(stats.pearsonr(said, true)[0])
    assert pair["spearmanr"] == pytest.approx(stats.spearmanr(said, true)[0])
    with pytest.raises(ValueError, match="there are acc, acc_and_f1"):
        get_metric_func("bleu")


def test_entities() -> None:
    assert get_entities(["B-A", "I-A", "I-B", "O", "I-A", "S-A", "E-A", "B-A"]) == [
        *(("A", 0, 1), ("B", 2, 2), ("A", 4, 4), ("A", 5, 5), ("A", 6, 6), ("A", 7, 7)),
    ]
    assert get_entities([["B-A"], ["I-A"]]) == [("A", 0, 0), ("A", 2, 2)]
    found = get_ner_seq_metric(["B-A", "I-A", "O", "B-B"], ["B-A", "I-A", "B-B", "O"])
    assert found == {
        "sequence/precision": 0.5,
        "sequence/recall": 0.5,
        "sequence/f1": 0.5,
        "sequence/accuracy": 0.5,
    }
