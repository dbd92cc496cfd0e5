"""microsoft/PyMarlin: its tests, examples and plugins, on models and data that are made here and tiny.

Its examples need their own packages too: ``pip install rouge_score nltk opacus mock matplotlib pandas scikit-learn``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.originals.cases import Case, Change, Door

_TEXT = "the a good bad film train was very long and short of in is not hot cold city river said he she it"
WORDS = _TEXT.split()
BERT, ROBERTA = ("bert-base-cased", "bert-base-multilingual-cased", "distilbert-base-uncased"), "roberta-base"
SNLI, GLUE, COVID = "examples/snli_benchmark", "examples/glue_text_benchmark", "examples/covid19_text_classification"
CNN, GERM, CIFAR = (
    "examples/cnndailymail_text_summarization",
    "examples/germ_text_ner",
    "examples/cifar_image_classification",
)
TASKS = {
    "cola": ("sentence",),
    "sst2": ("sentence",),
    "qqp": ("question1", "question2"),
    "rte": ("sentence1", "sentence2"),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
    "mnli": ("premise", "hypothesis"),
    "wnli": ("sentence1", "sentence2"),
}


def prepare(copy: Path, data: Path) -> Mapping[str, str]:
    """Everything that the examples would download, where a relative path of its name finds it."""
    models = data / "models"
    _models(models)
    for folder in (SNLI, GLUE, COVID, CNN, GERM, "pymarlin/plugins"):
        shutil.copytree(models, copy / folder, dirs_exist_ok=True)
    for task, columns in TASKS.items():
        _dataset(copy / GLUE / "glue", task, columns)
    _dataset(copy / SNLI / "snli", "default", ("premise", "hypothesis"), classes=3)
    tweets = [f"{number},{_sentence(number)},{('Positive', 'Negative', 'Neutral')[number % 3]}" for number in range(60)]
    place = copy / COVID / "data/covid-19-nlp-text-classification"
    place.mkdir(parents=True)
    for name in ("train", "test"):
        (place / f"Corona_NLP_{name}.csv").write_text("\n".join(["UserName,OriginalTweet,Sentiment", *tweets]))
    for name in ("train.source", "train.target", "val.source", "val.target"):
        (data / name).write_text("".join(f"{_sentence(number)}.\n" for number in range(12)))
    for name in ("train_germ/train.tsv", "val_germ/dev.tsv"):
        lines = (copy / GERM / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (copy / GERM / name).write_text("".join(lines[:60]), encoding="utf-8")
    (copy / CIFAR / "torchvision").mkdir()
    (copy / CIFAR / "torchvision/__init__.py").write_text(_TORCHVISION)
    nothing = "Compose = ToTensor = Normalize = lambda *arguments: None\n"
    (copy / CIFAR / "torchvision/transforms.py").write_text(nothing)
    stand_ins = data / "stand_ins"
    stand_ins.mkdir()
    (stand_ins / "sitecustomize.py").write_text(_NLTK)
    root = Path(__file__).parents[2]
    return {"MPLBACKEND": "Agg", "PYTHONPATH": f"{root}:{stand_ins}", "HF_HOME": str(data / "cache")}


#: CIFAR is a download, and torchvision is needed for nothing else.
_TORCHVISION = """
import sys, types, torch
class CIFAR10(torch.utils.data.TensorDataset):
    def __init__(self, **settings): super().__init__(torch.randn(40, 3, 32, 32), torch.arange(40) % 10)
datasets, utils = types.SimpleNamespace(CIFAR10=CIFAR10), types.SimpleNamespace(make_grid=lambda images: images[0])
from torchvision import transforms
"""
#: The rules for the ends of sentences are a download.
_NLTK = """
try:
    import nltk
    nltk.download, nltk.sent_tokenize = lambda *a, **k: True, lambda text: text.split(". ")
except ImportError:
    pass
"""


def _sentence(number: int) -> str:
    return " ".join(WORDS[(number * 7 + step * (number % 5 + 1)) % len(WORDS)] for step in range(6))


def _dataset(folder: Path, name: str, columns: tuple[str, ...], classes: int = 2) -> None:
    """A dataset as a folder; several in one are told apart by the file that describes them."""
    splits = ["train", "test", "validation"]
    if name == "mnli":
        splits = ["train", "test_matched", "test_mismatched", "validation_matched", "validation_mismatched"]
    (folder / name).mkdir(parents=True)
    described = [f"- config_name: {name}", "  data_files:"]
    for split in splits:
        rows: list[dict[str, Any]] = []
        for number in range(96):
            label = number / 8 if name == "stsb" else number % classes
            rows.append({**{column: _sentence(number + place) for place, column in enumerate(columns)}, "label": label})
        (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        described += [f"  - split: {split}", f"    path: {name}/{split}.jsonl"]
    page = folder / "README.md"
    before = page.read_text().split("---")[1] if page.exists() else "\nconfigs:\n"
    page.write_text("---" + before + "\n".join(described) + "\n---\n")


def _models(folder: Path) -> None:
    """Transformers of two small layers under the names of the real ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        AutoModel,
        AutoModelForSeq2SeqLM,
        BartConfig,
        BertConfig,
        DistilBertConfig,
        PreTrainedTokenizerFast,
        RobertaConfig,
    )

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    names = {"pad_token": special[0], "bos_token": special[1], "eos_token": special[2], "unk_token": special[3]}
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, "."])}
    words = Tokenizer(models.WordLevel(vocabulary, special[3]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 1), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], **names
    )
    small = {"vocab_size": len(vocabulary), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    encoder = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, **small}
    bart = BartConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
        **small,
    )
    made = {name: AutoModel.from_config(BertConfig(**encoder)) for name in BERT[:2]}
    made[BERT[2]] = AutoModel.from_config(DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=16, **small))
    made[ROBERTA] = AutoModel.from_config(RobertaConfig(max_position_embeddings=514, **encoder))
    made["facebook/bart-base"] = AutoModelForSeq2SeqLM.from_config(bart)
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def _example(folder: str, file: str, *words: str, **more: Any) -> Case:
    return Case(f"{folder}/{file}", command=(file, *words), folder=folder, **more)


def _glue(task: str) -> Case:
    settings = f"configs-roberta-base/{task}.yaml"
    words = ("src/train.py", "--config_path", settings, "--tr.epochs", "2", "--tr.train_batch_size", "8")
    return Case(f"{GLUE}/src/train.py", command=words, folder=GLUE, note=f"with `{settings}`")


def _plugin(name: str, settings: str, *words: str, **more: Any) -> Case:
    code = (
        f"from trainwright.compat.pymarlin.plugins import {name}; plugin = {name}(); "
        "plugin.setup(); plugin.trainer.train(); plugin.trainer.validate()"
    )
    command = ("-c", code, "--config_path", settings, *words)
    return Case(f"pymarlin/plugins/{settings}", command=command, folder="pymarlin/plugins", **more)


_LOOKS_INSIDE = "calls a private method"
_TWEETS = f"{{copy}}/{COVID}/data/covid-19-nlp-text-classification/Corona_NLP_train.csv"
_FILES = ("--data.train_filepath", _TWEETS, "--data.val_filepath", _TWEETS)
_DEEPSPEED = "needs onnxruntime-training and DeepSpeed on a GPU; trainwright has a DeepSpeed backend of its own"
_AZURE = "submits a job to AzureML: nothing in it trains"
CASES = (
    Case("tests/core/test_data_interface.py"),
    Case(
        "tests/core/test_trainer.py",
        failing={
            "test_estimated_steps": "wants one step more than there are; here the number is exact",
            "test_train": "counts six calls of `get_train_dataloader`, two of them to print; here there are four",
        },
    ),
    Case("tests/core/test_trainer_backend.py"),
    Case(
        "tests/utils/test_checkpointer.py",
        failing={"test_save": "saves a mock, which only a pickle can hold"},
    ),
    Case("tests/utils/test_config_parser.py", failing={"test_add_arguments_invalid": _LOOKS_INSIDE}),
    Case("tests/utils/test_stats.py"),
    _example(CIFAR, "cifar.py", note="with a stand-in for torchvision's download"),
    _example(COVID, "data.py"),
    _example(COVID, "train.py"),
    _example(COVID, "train.py", "--trainer.backend", "ddp-amp", note="with `--trainer.backend ddp-amp`"),
    *(_glue(task) for task in TASKS if task != "wnli"),
    Case(f"{GLUE}/src/data.py", command=("src/data.py", "cola"), folder=GLUE),
    Case(
        f"{GLUE}/src/infer.py",
        command=("src/infer.py", "--config_path", "configs-roberta-base/rte.yaml"),
        folder=GLUE,
        changes=(
            Change("checkpoints/model_9.pt", "checkpoints/model_1.safetensors", "the name of the checkpoint"),
            Change(
                "torch.load(checkpoint_path,map_location = 'cpu')",
                "read_state(checkpoint_path)",
                "`read_state` for `torch.load`",
            ),
            Change(
                "from mock import MagicMock",
                "from mock import MagicMock\nfrom trainwright.checkpoint.states import read_state",
                "`read_state` for `torch.load`",
            ),
        ),
    ),
    _example(CNN, "train.py", "--data_path", "{data}"),
    _example(
        CNN,
        "data.py",
        "{data}",
        changes=(Change(".applymap(", ".map(", "`DataFrame.applymap`, which pandas has removed"),),
    ),
    Case(f"{CNN}/infer.py", refused="reads a key, `module_interface`, that PyMarlin does not write either"),
    Case(f"{CNN}/train_ortds.py", refused=_DEEPSPEED),
    Case(f"{CNN}/azureml/submit_ortds.py", refused=_AZURE),
    Case(f"{COVID}/azureml/submit.py", refused=_AZURE),
    _example(
        GERM,
        "test.py",
        *("--data.train_filepath", "train_germ/train.tsv", "--data.val_filepath", "val_germ/dev.tsv"),
        *("--config_path", "config_germ.yaml", "--trainer.epochs", "1"),
        changes=(
            Change(
                "from transformers import InputExample, AutoTokenizer, InputFeatures",
                "",
                "an import of names that transformers has removed, and that it does not use",
            ),
        ),
    ),
    *(
        Case(
            f"{SNLI}/src/train.py",
            command=("src/train.py", "--config_path", "configs-bert-base/snli.yaml", "--tr.backend", backend),
            folder=SNLI,
            note=f"with `--tr.backend {backend}`",
        )
        for backend in ("sp", "sp-dp")
    ),
    Case(f"{SNLI}/configs-bert-base/snli.yaml", refused="`ddp-dp`: differential privacy is for one process, `sp-dp`"),
    _plugin("HfSeqClassificationPlugin", "hf_seq_classification/config.yaml", *_FILES, "--trainer.epochs", "1"),
    Case(
        "pymarlin/plugins/hf_ner/config_germ.yaml",
        refused="has keys (`train_dir`, ...) that PyMarlin's plugin does not take either; that of the example runs",
    ),
)

DOOR = Door(
    name="pymarlin",
    page="docs/from-pymarlin.md",
    imports=(
        (r"^import pymarlin$", "import trainwright.compat.pymarlin as pymarlin"),
        (r"^(\s*)(from|import) pymarlin\b", r"\1\2 trainwright.compat.pymarlin"),
    ),
    cases=CASES,
    prepare=prepare,
    unneeded=("website",),
)
