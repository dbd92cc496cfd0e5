"""Models, data and metrics for bench/official_scripts.py: small, made up, and all in one folder.

The scripts load metrics and some data by name; a folder of that name in the working directory comes first, so nothing
is fetched.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import official_vision  # type: ignore[missing-import]  # beside this file
import transformers

write = official_vision.write

WORDS = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("a", "el", "ir", "on", "um")]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = 80
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]

_SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make(folder: Path) -> None:
    """Everything that the scripts are given."""
    transformers.set_seed(0)
    for name, build in MODELS.items():
        build().save_pretrained(folder / "models" / name)
        (_pieces() if name == "xlnet" else _tokenizer()).save_pretrained(folder / "models" / name)
    _texts(folder / "data", random.Random(1))
    official_vision.make(folder, WORDS, _tokenizer())
    for name, (predictions, references, body) in METRICS.items():
        write(folder / name / f"{name}.py", METRIC.format(predictions=predictions, references=references, body=body))
    write(folder / "stand_ins" / "nltk.py", NLTK)


# ---------------------------------------------------------------------------------------------------------- models


def _gpt2() -> Any:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none, **ends))


def _llama() -> Any:
    ends = {"bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, intermediate_size=64, **ends))


def _bert() -> Any:
    sizes = {"intermediate_size": 64, "max_position_embeddings": 128}
    return transformers.BertForPreTraining(transformers.BertConfig(**_SMALL, **_NO_DROPOUT, **sizes))


def _xlnet() -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
    return transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes, dropout=0.0, summary_last_dropout=0.0))


def _t5() -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    ends: dict[str, Any] = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ends, dropout_rate=0.0))


MODELS: dict[str, Callable[[], Any]] = {"gpt2": _gpt2, "llama": _llama, "bert": _bert, "xlnet": _xlnet, "t5": _t5}


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokens = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    single, pair = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]", model_max_length=64,
    )  # fmt: skip


def _pieces() -> Any:
    """XLNet's own kind, which run_qa_beam_search.py asks for by name."""
    special = [
        (token, 0.0) for token in ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    ]
    return transformers.XLNetTokenizer(
        vocab=[*special, *((f"\u2581{word}", -1.0) for word in WORDS)], model_max_length=64
    )


# ------------------------------------------------------------------------------------------------------------ data


def _texts(folder: Path, draw: random.Random) -> None:
    """Files of 64 training and 22 validation samples: lengths differ, and the last batch is not full."""

    def said(least: int = 3, most: int = 14) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    for split, count in (("train", 64), ("validation", 22)):
        write(folder / f"text-{split}.txt", "\n".join(said(10, 30) for _ in range(2 * count)))
        rows = [
            {"sentence1": said(), "sentence2": said(), "label": ["no", "maybe", "yes"][i % 3]} for i in range(count)
        ]
        _rows(folder / f"pairs-{split}.json", rows)
        _rows(folder / f"single-{split}.json", [{"sentence": r["sentence1"], "label": r["label"]} for r in rows])
        _rows(folder / f"numbers-{split}.json", [{"sentence": said(), "label": draw.random()} for _ in range(count)])
        sentences = [said().split() for _ in range(count)]
        _rows(folder / f"tags-{split}.json", [
            {"tokens": tokens, "ner_tags": draw.choices(TAGS, k=len(tokens))} for tokens in sentences
        ])  # fmt: skip
        endings = [{f"ending{i}": said() for i in range(4)} for _ in range(count)]
        _rows(folder / f"swag-{split}.json", [
            {"sent1": said(), "sent2": said(1, 4), **ending, "label": draw.randrange(4)} for ending in endings
        ])  # fmt: skip
        _rows(
            folder / f"translation-{split}.json", [{"translation": {"en": said(), "fr": said()}} for _ in range(count)]
        )
        _rows(folder / f"summaries-{split}.json", [{"text": said(10, 30), "summary": said()} for _ in range(count)])
        write(
            folder / f"squad-{split}.json", json.dumps({"data": [_question(str(i), said, draw) for i in range(count)]})
        )
        _xnli(folder.parent / "xnli", split, rows)


def _rows(file: Path, rows: list[dict[str, Any]]) -> None:
    write(file, "\n".join(json.dumps(row) for row in rows))


def _question(name: str, said: Callable[..., str], draw: random.Random) -> dict[str, Any]:
    """Some contexts are longer than a window of 64 tokens, so that they take two."""
    words = said(20, 80).split()
    first = draw.randrange(len(words) - 3)
    answers = {"text": [" ".join(words[first : first + 3])], "answer_start": [len(" ".join([*words[:first], ""]))]}
    return {"id": name, "title": "", "context": " ".join(words), "question": said(3, 8), "answers": answers}


def _xnli(folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    names = ["yes", "maybe", "no"]
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=names)})
    renamed = [
        {"premise": r["sentence1"], "hypothesis": r["sentence2"], "label": names.index(r["label"])} for r in rows
    ]
    (folder / "en").mkdir(parents=True, exist_ok=True)
    Dataset.from_list(renamed, features=features).to_parquet(str(folder / "en" / f"{split}.parquet"))
    write(folder / "README.md", "---\nconfigs:\n- config_name: en\n  data_dir: en\n---\n")


# --------------------------------------------------------------------------------------------------------- metrics

METRIC = """
import difflib
import datasets
import evaluate
import numpy
from datasets import Sequence, Value

def likeness(a, b):
    return difflib.SequenceMatcher(None, a, b).ratio()

class Metric(evaluate.Metric):
    def _info(self):
        features = datasets.Features({{"predictions": {predictions}, "references": {references}}})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references, **options):
        {body}
"""

_EQUAL = 'return {"accuracy": float(numpy.mean(numpy.array(predictions) == numpy.array(references)))}'
_NUMBERS = ("Value('int64')", "Value('int64')", _EQUAL)
_TEXTS = "[likeness(a, b if isinstance(b, str) else b[0]) for a, b in zip(predictions, references)]"
_ANSWERS = '[likeness(a["prediction_text"], b["answers"]["text"][0]) for a, b in zip(predictions, references)]'

_OVERLAP = """a, b = numpy.array(predictions), numpy.array(references)
        found = [((a == i) & (b == i)).sum() for i in range(options["num_labels"])]
        accuracy = numpy.array([both / max(1, (b == i).sum()) for i, both in enumerate(found)])
        iou = numpy.array([both / max(1, ((a == i) | (b == i)).sum()) for i, both in enumerate(found)])
        return {"mean_iou": iou.mean(), "per_category_accuracy": accuracy, "per_category_iou": iou}"""

#: Name -> features of the predictions, of the references, and what is computed. Texts are compared by likeness, so that
#: a number changes with any one of them; these are not the metrics of the same names.
METRICS = {
    "accuracy": _NUMBERS,
    "mse": (
        "Value('float32')",
        "Value('float32')",
        'return {"mse": float(numpy.mean((numpy.array(predictions) - numpy.array(references)) ** 2))}',
    ),
    "seqeval": (
        "Sequence(Value('string'))",
        "Sequence(Value('string'))",
        "share = float(numpy.mean([a == b for p, r in zip(predictions, references) for a, b in zip(p, r)]))\n"
        '        return {"overall_" + name: share for name in ("precision", "recall", "f1", "accuracy")}',
    ),
    "squad": (
        "{'id': Value('string'), 'prediction_text': Value('string')}",
        "{'id': Value('string'), 'answers': Sequence({'text': Value('string'), 'answer_start': Value('int64')})}",
        f'return {{"f1": float(numpy.mean({_ANSWERS}))}}',
    ),
    "mean_iou": ("Sequence(Sequence(Value('uint8')))", "Sequence(Sequence(Value('uint8')))", _OVERLAP),
    "rouge": ("Value('string')", "Value('string')", f'return {{"rouge1": float(numpy.mean({_TEXTS}))}}'),
    "sacrebleu": ("Value('string')", "Sequence(Value('string'))", f'return {{"score": float(numpy.mean({_TEXTS}))}}'),
}

#: What run_summarization.py takes from nltk, whose own data would have to be fetched.
NLTK = """
class data:
    @staticmethod
    def find(name):
        return name

def sent_tokenize(text):
    return text.split(". ")
"""
