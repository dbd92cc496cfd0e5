"""MindNLP's complete example, on MindSpore through trainwright; two import lines differ.

python examples/mindnlp/prepare.py runs/reviews
python examples/mindnlp/train.py runs/reviews
"""

import sys
from pathlib import Path

import evaluate
import numpy as np
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import trainwright.compat.mindnlp  # noqa: F401 - was: import mindnlp
from trainwright import Trainer, TrainingArguments  # was: from transformers import Trainer, TrainingArguments

folder = Path(sys.argv[1])

dataset = load_dataset("json", data_files={part: str(folder / f"{part}.jsonl") for part in ("train", "test")})
tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
model = AutoModelForSequenceClassification.from_pretrained(folder / "bert", num_labels=2)


def tokenize_function(examples):
    return tokenizer(examples["text"], padding="max_length", truncation=True)  # pyrefly: ignore[not-callable]


tokenized_datasets = dataset.map(tokenize_function, batched=True)
metric = evaluate.load(str(folder / "accuracy"))


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return metric.compute(predictions=predictions, references=labels)


training_args = TrainingArguments(
    output_dir=str(folder / "results"),
    eval_strategy="epoch",
    save_strategy="epoch",
    learning_rate=2e-3,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=3,
    logging_steps=10,
    logging_dir=str(folder / "logs"),
)

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=tokenized_datasets["train"].select(range(200)),
    eval_dataset=tokenized_datasets["test"].select(range(100)),
    compute_metrics=compute_metrics,
)
trainer.train()
print("engine:", trainer.args.engine, "accuracy:", trainer.evaluate()["eval_accuracy"])
