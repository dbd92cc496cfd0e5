"""SetFit: a sentence model trained on pairs of few examples, then a head."""

from __future__ import annotations

from typing import Any

from common import bert, given, record, text
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression


def build(folder: str, arguments: dict[str, Any]) -> Any:
    body = SentenceTransformer(modules=[Transformer(bert(folder), max_seq_length=32), Pooling(32)], device="cpu")
    model = SetFitModel(model_body=body, model_head=LogisticRegression())
    rows = Dataset.from_list([{"text": text(), "label": number % 2} for number in range(16)])
    wanted = ("output_dir", "max_steps", "logging_steps", "save_steps", "report_to")
    args = TrainingArguments(batch_size=4, **{name: arguments[name] for name in wanted})
    return Trainer(model, args, train_dataset=rows)


found, arguments = given()
trainer = build(found.output, arguments)
trainer.train()
record(trainer.st_trainer)
