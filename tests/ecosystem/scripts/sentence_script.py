"""sentence-transformers: embeddings, several datasets at once, pairs, sparse vectors."""

from __future__ import annotations

import random
from typing import Any

from common import bert, given, record, text
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.sparse_encoder import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

ROWS = 40


def data(rows: list[dict[str, Any]]) -> tuple[Dataset, Dataset]:
    # Two batches for each of two processes: with fewer, transformers evaluates nothing.
    return Dataset.from_list(rows), Dataset.from_list(rows[:16])


def build(case: str, folder: str, arguments: dict[str, Any]) -> Any:
    path = bert(folder)
    train, held_out = data([{"anchor": text(), "positive": text()} for _ in range(ROWS)])
    if case == "cross-encoder":
        model = CrossEncoder(path, num_labels=1, device="cpu")
        train, held_out = data([{"a": text(), "b": text(), "label": float(n % 2)} for n in range(ROWS)])
        loss = BinaryCrossEntropyLoss(model)
        return CrossEncoderTrainer(model, CrossEncoderTrainingArguments(**arguments), train, held_out, loss=loss)
    if case == "sparse-encoder":
        model = SparseEncoder(path, device="cpu")
        loss = SpladeLoss(
            model,
            loss=SparseMultipleNegativesRankingLoss(model),
            query_regularizer_weight=1e-3,
            document_regularizer_weight=1e-3,
        )
        return SparseEncoderTrainer(model, SparseEncoderTrainingArguments(**arguments), train, held_out, loss=loss)
    model = SentenceTransformer(modules=[Transformer(path, max_seq_length=32), Pooling(32)], device="cpu")
    if case == "embeddings":
        loss = MultipleNegativesRankingLoss(model)
        args = SentenceTransformerTrainingArguments(**arguments)
        return SentenceTransformerTrainer(model, args, train, held_out, loss=loss)
    scored, scored_too = data([{"a": text(), "b": text(), "score": random.random()} for _ in range(ROWS)])
    return SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(**arguments),
        {"pairs": train, "scored": scored},
        {"pairs": held_out, "scored": scored_too},
        loss={"pairs": MultipleNegativesRankingLoss(model), "scored": CoSENTLoss(model)},
    )


found, arguments = given()
trainer = build(
    found.case, found.output, arguments | {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
)
trainer.train(resume_from_checkpoint=found.resume)
record(trainer)
