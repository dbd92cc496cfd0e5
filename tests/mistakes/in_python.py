"""Mistakes in Python. The body of each function is what the reader of docs/mistakes.md sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.mistakes.material import Net, Pictures, Words, arguments, classifier, samples
from tests.mistakes.mistake import Mistake
from trainwright import EarlyStoppingCallback, Trainer, TrainingArguments

FOUND: list[Mistake] = []


def mistake(
    chapter: str, title: str, ends: type[Exception], says: str, *, has_begun: bool = False
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """A decorator that puts a function into the table."""

    def add(done: Callable[[], object]) -> Callable[[], object]:
        FOUND.append(Mistake(chapter, title, done, says, ends, has_begun=has_begun))
        return done

    return add


def at_first_step(title: str, says: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """One that shows when data and model meet."""
    return mistake("Data meets model", title, ValueError, says, has_begun=True)


ARGUMENTS = "Arguments in Python"


@mistake(
    ARGUMENTS,
    "A misspelled argument",
    TypeError,
    "TrainingArguments.__init__() got an unexpected keyword argument 'learing_rate' (did you mean 'learning_rate'?)",
)
def misspelled_argument() -> None:
    TrainingArguments(learing_rate=1e-4)  # type: ignore


@mistake(
    ARGUMENTS,
    "A word of another library",
    TypeError,
    "TrainingArguments.__init__() got an unexpected keyword argument 'batch_size' (here it is "
    "per_device_train_batch_size)",
)
def word_of_another_library() -> None:
    TrainingArguments(batch_size=8)  # type: ignore


@mistake(
    ARGUMENTS,
    "A device by name",
    TypeError,
    "TrainingArguments.__init__() got an unexpected keyword argument 'device' (use_cpu: true trains "
    "on the CPU; a GPU is used where there is one, and CUDA_VISIBLE_DEVICES says which)",
)
def device_by_name() -> None:
    TrainingArguments(device="cuda")  # type: ignore


@mistake(
    ARGUMENTS,
    "A misspelled argument of the Trainer",
    TypeError,
    "Trainer.__init__() got an unexpected keyword argument 'train_datset' (did you mean 'train_dataset'?)",
)
def misspelled_argument_of_the_trainer() -> None:
    Trainer(Net(), train_datset=samples())  # type: ignore


@mistake(
    ARGUMENTS,
    "A setting given to the Trainer",
    TypeError,
    "Trainer.__init__() got an unexpected keyword argument 'learning_rate' (it is an argument: "
    "Trainer(args=TrainingArguments(learning_rate=...)))",
)
def setting_given_to_the_trainer() -> None:
    Trainer(Net(), learning_rate=1e-4)  # type: ignore


@mistake(
    ARGUMENTS,
    "Data given to the arguments",
    TypeError,
    "TrainingArguments.__init__() got an unexpected keyword argument 'train_dataset' (it is the "
    "Trainer's: Trainer(..., train_dataset=...))",
)
def data_given_to_the_arguments() -> None:
    TrainingArguments(train_dataset=samples())  # type: ignore


@mistake(
    ARGUMENTS,
    "An optimizer that does not exist",
    ValueError,
    "optim: there is no optimizer 'adamx' (did you mean 'adamw_torch'?); choose one of ...",
)
def unknown_optimizer() -> None:
    TrainingArguments(optim="adamx")


@mistake(
    ARGUMENTS,
    "A schedule that does not exist",
    ValueError,
    "lr_scheduler_type: there is no scheduler 'cosin' (did you mean 'cosine'?); choose one of ...",
)
def unknown_schedule() -> None:
    TrainingArguments(lr_scheduler_type="cosin")


@mistake(
    ARGUMENTS,
    "A tracker that does not exist",
    ValueError,
    "report_to: there is no tracker 'tensorbord' (did you mean 'tensorboard'?); choose one of ...",
)
def unknown_tracker() -> None:
    TrainingArguments(report_to="tensorbord")


@mistake(
    ARGUMENTS,
    "A strategy that does not exist",
    ValueError,
    "eval_strategy: 'epochs' is not a valid IntervalStrategy (did you mean 'epoch'?); choose one of "
    "'no', 'steps', 'epoch'.",
)
def unknown_strategy() -> None:
    TrainingArguments(eval_strategy="epochs")


@mistake(
    ARGUMENTS,
    "No steps at all",
    ValueError,
    "max_steps=0 trains nothing: give a positive number of steps, or -1 (as if it were left out) for "
    "as many as num_train_epochs makes.",
)
def no_steps() -> None:
    TrainingArguments(max_steps=0)


@mistake(ARGUMENTS, "Text where a number belongs", ValueError, "learning_rate='fast' must be a number.")
def text_for_a_number() -> None:
    TrainingArguments(learning_rate="fast")  # type: ignore


@mistake(
    ARGUMENTS,
    "Two number formats at once",
    ValueError,
    "fp16=True and bf16=True exclude each other: keep one (bf16 where it exists).",
)
def two_formats() -> None:
    TrainingArguments(fp16=True, bf16=True)


@mistake(
    ARGUMENTS,
    "The best model without evaluations",
    ValueError,
    'load_best_model_at_end=True needs evaluations: set eval_strategy to "steps" or "epoch", or '
    'evaluate_every to something like "500 steps".',
)
def best_model_without_evaluations() -> None:
    TrainingArguments(load_best_model_at_end=True)


@mistake(
    ARGUMENTS,
    "A negative patience",
    ValueError,
    "patience=-1 (early_stopping_patience) must not be negative: 3 stops after the third evaluation "
    "in a row that is no better.",
)
def negative_patience() -> None:
    EarlyStoppingCallback(early_stopping_patience=-1)


@mistake(
    ARGUMENTS,
    "A folder that cannot be made",
    ValueError,
    "output_dir='table.csv/out': the folder .../table.csv/out cannot be made (a file has that name); "
    "choose one that can be written.",
)
def folder_that_cannot_be_made() -> None:
    Trainer(Net(), TrainingArguments("table.csv/out", report_to="none"), train_dataset=samples())


@mistake(
    ARGUMENTS,
    "Nothing to train on",
    ValueError,
    "train() needs data: pass train_dataset= to the Trainer, or override get_train_dataloader().",
    has_begun=True,
)
def nothing_to_train_on() -> None:
    Trainer(Net(), arguments()).train()


@mistake(
    ARGUMENTS,
    "Early stopping without a metric",
    ValueError,
    "EarlyStoppingCallback needs metric_for_best_model, for instance metric_for_best_model='loss'.",
    has_begun=True,
)
def early_stopping_without_a_metric() -> None:
    Trainer(Net(), arguments(), train_dataset=samples(), callbacks=[EarlyStoppingCallback(3)]).train()


@at_first_step(
    "A label without a class",
    "Label 7 of sample 2 in the first batch is out of range: the model has 2 classes, 0 to 1; give "
    "the model's last layer 8 or more outputs, or correct the data.",
)
def label_without_a_class() -> None:
    data = samples()
    data[2]["labels"] = 7
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "Labels that count from 1",
    "Label 2 of sample 1 in the first batch is out of range (2 labels are out of range): the model "
    "has 2 classes, 0 to 1; the labels seem to count from 1: subtract 1 from each.",
)
def labels_from_one() -> None:
    data = [{**sample, "labels": sample["labels"] + 1} for sample in samples()]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "A negative label",
    "Label -1 of sample 0 in the first batch is out of range (4 labels are out of range): the model "
    "has 2 classes, 0 to 1; the first class is 0, and -100 means that a label is not to be learned.",
)
def negative_label() -> None:
    Trainer(Net(), arguments(), train_dataset=samples(labels=-1)).train()


@at_first_step(
    "`num_labels` that contradicts the data",
    "Label 2 of sample 2 in the first batch is out of range: the model has 2 classes, 0 to 1; build "
    "the model with num_labels=3 or more, or correct the data.",
)
def num_labels_contradicts() -> None:
    data = [{"input_ids": [1, 2], "label": i % 3} for i in range(16)]
    Trainer(classifier(num_labels=2), arguments(), train_dataset=data).train()


@at_first_step(
    "Floats as labels of classes",
    "The labels are floats of shape (4,), and the model gives outputs of shape (4, 2): a classifier "
    "takes the numbers of classes as whole numbers; convert them with int(label), or labels.long(). "
    "To predict a number give the model one output (num_labels=1).",
)
def floats_as_classes() -> None:
    Trainer(Net(), arguments(), train_dataset=samples(labels=1.0)).train()


@at_first_step(
    "Numbers to predict, and a head for classes",
    "The labels are floats of shape (4,), and the model gives outputs of shape (4, 2): to predict a "
    "number give the model one output (num_labels=1); classes are whole numbers.",
)
def numbers_for_classes() -> None:
    data = [{"input_ids": [1, 2], "label": i / 3} for i in range(16)]
    Trainer(classifier(num_labels=2), arguments(), train_dataset=data).train()


@at_first_step(
    "Words as labels",
    "The labels in 'labels' are words ('positive' in the first sample), and a model takes numbers: "
    "give each class a number, as in label2id = {'negative': 0, 'positive': 1}, and replace the words"
    " by it.",
)
def words_as_labels() -> None:
    Trainer(Net(), arguments(), train_dataset=samples(labels="positive")).train()


@at_first_step(
    "No label in some samples",
    "A label is missing: 'labels' is None in sample 1 of the first batch and 1 more. Give it a value, or leave such "
    "samples out.",
)
def no_label_in_some() -> None:
    data = [{"x": torch.ones(4), "labels": None if i % 2 else 1} for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "No label in the first sample",
    "A label is missing: 'labels' is None in the first sample. Give it a value, or leave such samples out.",
)
def no_label_at_all() -> None:
    Trainer(Net(), arguments(), train_dataset=samples(labels=None)).train()


@at_first_step(
    "Numbers that are text",
    "cannot make one tensor of 'x': it holds text, such as '1', where numbers belong: convert it in the dataset, as in "
    "[float(value) for value in values]; texts are tokenized before they come here",
)
def numbers_that_are_text() -> None:
    data = [{"x": ["1", "2", "3", "4"], "labels": i % 2} for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "A forward without return",
    "Silent.forward returns nothing (None): end it with return, as in return loss, logits.",
)
def forward_without_return() -> None:
    class Silent(Net):
        def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore
            nn.functional.cross_entropy(self.layer(x), labels)

    Trainer(Silent(), arguments(), train_dataset=samples()).train()


@at_first_step(
    "A loss that does not come first",
    "Swapped.forward returns a tuple of shapes (4, 2), (): the loss (number 2) must come first, as in return loss, "
    "logits.",
)
def loss_not_first() -> None:
    class Swapped(Net):
        def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore
            logits = self.layer(x)
            return logits, nn.functional.cross_entropy(logits, labels)

    Trainer(Swapped(), arguments(), train_dataset=samples()).train()


@at_first_step(
    "A column of another name",
    "Net.forward takes x; the batch has labels, made of the columns features, labels. Rename "
    "'features': give the samples 'x' in its place, or a data_collator that does.",
)
def column_of_another_name() -> None:
    data = [{"features": torch.ones(4), "labels": i % 2} for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "A column that the model does not take",
    "Net.forward takes x; the batch has x, labels, weight. Leave weight out "
    "(remove_unused_columns=True does it), or let forward take **kwargs.",
)
def column_too_many() -> None:
    data = samples(weight=1.0)
    Trainer(Net(), arguments(remove_unused_columns=False), train_dataset=data).train()


@at_first_step(
    "Labels under another name",
    "The model returned no loss, only: Tensor. It was given: x. Give the batch 'labels', pass "
    "compute_loss_func= to the Trainer, or override compute_loss. Of the data's columns target did "
    "not reach the model: labels are called 'labels' (or 'label'). If 'target' holds them, rename it:"
    " give the samples 'labels' in its place, or a data_collator that does.",
)
def labels_under_another_name() -> None:
    data = [{"x": torch.ones(4), "target": i % 2} for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "Text that nobody has tokenized",
    "BertForSequenceClassification.forward takes input_ids, attention_mask, token_type_ids, "
    "position_ids, inputs_embeds, labels, and needs input_ids; the batch has labels, made of the "
    "columns text, label. The column 'text' holds text, which nobody has tokenized: tokenize it "
    "first: dataset.map(lambda row: tokenizer(row['text'], truncation=True)), with "
    "processing_class=tokenizer.",
)
def text_not_tokenized() -> None:
    data = [{"text": "a good film", "label": i % 2} for i in range(16)]
    Trainer(classifier(), arguments(), train_dataset=data).train()


@at_first_step(
    "Samples of several lengths",
    "cannot make one tensor of 'input_ids': its samples differ in shape: (4,), (5,), (6,). Pad or "
    "truncate the samples to one shape, or give a padding data_collator such as "
    "DataCollatorWithPadding(tokenizer)",
)
def several_lengths() -> None:
    data = [{"input_ids": [1] * (4 + i % 3), "label": i % 2} for i in range(16)]
    Trainer(Words(), arguments(), train_dataset=data).train()


@at_first_step(
    "Tensors of several lengths",
    "The samples of the first batch differ in shape ((4,) in sample 0, (5,) in sample 1), so they do "
    "not make one tensor: pad or truncate them to one shape in the dataset, or give a data_collator "
    "that pads.",
)
def tensors_of_several_lengths() -> None:
    data = [(torch.ones(4 + i % 2), i % 2) for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "Samples of another width",
    "The layer 'layer' (Linear) expects inputs whose last dimension is 4, and got shape (4, 5) of "
    "float32: give it 5 in_features, or change what comes before it.",
)
def another_width() -> None:
    data = [{"x": torch.ones(5), "labels": i % 2} for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "Samples of another type",
    "The layer 'layer' (Linear) expects inputs of float32, and got shape (4, 4) of float64: convert "
    "them in the dataset, as in torch.tensor(x, dtype=torch.float32).",
)
def another_type() -> None:
    data = [{"x": torch.ones(4, dtype=torch.float64), "labels": i % 2} for i in range(16)]
    Trainer(Net(), arguments(), train_dataset=data).train()


@at_first_step(
    "Pictures with their colours last",
    "The layer 'first' (Conv2d) expects inputs (batch, 3 channels, height, width), and got shape (4, "
    "8, 8, 3) of float32: channels come first in torch; permute the dimensions in the dataset.",
)
def colours_last() -> None:
    data = [{"pixels": torch.ones(8, 8, 3), "labels": i % 2} for i in range(16)]
    Trainer(Pictures(), arguments(), train_dataset=data).train()


@at_first_step(
    "Grey pictures for a network of colours",
    "The layer 'first' (Conv2d) expects inputs (batch, 3 channels, height, width), and got shape (4, "
    "1, 8, 8) of float32: give it 1 in_channels, or other images.",
)
def grey_pictures() -> None:
    data = [{"pixels": torch.ones(1, 8, 8), "labels": i % 2} for i in range(16)]
    Trainer(Pictures(), arguments(), train_dataset=data).train()


@at_first_step(
    "Words that the model does not know",
    "The layer 'table' (Embedding) expects numbers from 0 to 49 (it has 50 rows), and got shape (4, "
    "2) of int64: sample 0, position 1 holds 99; tokenizer and model may not belong together, or call"
    " model.resize_token_embeddings(len(tokenizer)).",
)
def unknown_words() -> None:
    data = [{"input_ids": [3, 99], "labels": i % 2} for i in range(16)]
    Trainer(Words(), arguments(), train_dataset=data).train()


@at_first_step(
    "Floats where numbers of words belong",
    "The layer 'table' (Embedding) expects whole numbers (int64), the rows to look up, and got shape "
    "(4, 2) of float32: convert them with .long(), or use another layer.",
)
def floats_as_words() -> None:
    data = [{"input_ids": [0.5, 1.5], "labels": i % 2} for i in range(16)]
    Trainer(Words(), arguments(), train_dataset=data).train()


@at_first_step(
    "Texts longer than the model reads",
    "The texts of the first batch have 20 tokens, and the model has positions for 16: shorten them, "
    "as in tokenizer(text, truncation=True, max_length=16).",
)
def texts_too_long() -> None:
    data = [{"input_ids": [1] * 20, "label": i % 2} for i in range(16)]
    Trainer(classifier(), arguments(), train_dataset=data).train()


@at_first_step(
    "Fewer outputs than labels",
    "The model gives 1 rows of outputs (shape (1, 2)) for 4 labels (shape (4,)): there must be one "
    "row of outputs, with a number for each class, for each label.",
)
def fewer_outputs() -> None:
    class Mean(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean(0, keepdim=True)

    Trainer(Mean(), arguments(), train_dataset=samples()).train()


@at_first_step(
    "One sample for batch normalization",
    "The layer 'norm' (BatchNorm1d) expects more than one value per channel to normalize by, and got "
    "shape (1, 4) of float32: take batches of 2 or more, or eval mode.",
)
def one_sample_to_normalize() -> None:
    class Normalized(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.norm(x))

    Trainer(Normalized(), arguments(per_device_train_batch_size=1), train_dataset=samples()).train()


@at_first_step(
    "A loss that is a number",
    "The loss is of type float, and must be a tensor that gradients lead through: return the loss "
    "itself rather than loss.item() or float(loss).",
)
def loss_is_a_number() -> None:
    class Own(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model(inputs["x"]).mean().item()

    Own(Net(), arguments(), train_dataset=samples()).train()


@at_first_step(
    "A loss without gradient",
    "The loss (shape ()) has no gradient: nothing that it was computed from is trained. Look for "
    "detach(), item(), argmax(), torch.no_grad() or numpy between the model's outputs and the loss.",
)
def loss_without_gradient() -> None:
    class Own(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model(inputs["x"]).detach().mean()

    Own(Net(), arguments(), train_dataset=samples()).train()


@at_first_step(
    "A model of which nothing is trained",
    "No parameter of the model requires a gradient: unfreeze some before training.",
)
def nothing_trained() -> None:
    Trainer(Net().requires_grad_(False), arguments(), train_dataset=samples()).train()


@at_first_step(
    "Metrics that are a bare number",
    "compute_metrics returned float (0.5), and must return a dict of numbers by name, as in return "
    "{'accuracy': value}.",
)
def bare_metrics() -> None:
    settings = arguments(eval_strategy="steps", eval_steps=1, metric_for_best_model="accuracy")
    data = samples()
    Trainer(Net(), settings, train_dataset=data, eval_dataset=data, compute_metrics=lambda prediction: 0.5).train()


@at_first_step(
    "A best metric that no evaluation gives",
    "metric_for_best_model is 'eval_acuracy', but evaluation produces only: eval_accuracy, eval_loss,"
    " eval_runtime, eval_samples_per_second, eval_steps_per_second. Set metric_for_best_model to one "
    "of these, or return it from compute_metrics.",
)
def unknown_best_metric() -> None:
    settings = arguments(eval_strategy="steps", eval_steps=1, metric_for_best_model="acuracy")
    data = samples()
    Trainer(Net(), settings, None, data, data, compute_metrics=lambda prediction: {"accuracy": 0.5}).train()


@at_first_step(
    "A resume where there is nothing to resume",
    "resume_from_checkpoint=True, but .../out holds no checkpoint. Start with train() or pass the "
    "path of a checkpoint-N folder.",
)
def nothing_to_resume() -> None:
    Trainer(Net(), arguments(), train_dataset=samples()).train(resume_from_checkpoint=True)


@at_first_step(
    "A checkpoint that does not exist", "out/checkpoint-9 is not there. Pass the path of a checkpoint-N folder."
)
def no_such_checkpoint() -> None:
    Trainer(Net(), arguments(), train_dataset=samples()).train(resume_from_checkpoint=Path("out/checkpoint-9"))


@at_first_step(
    "A checkpoint that is a file",
    "table.csv is a file, and a checkpoint is a folder: pass the path of a checkpoint-N folder.",
)
def checkpoint_is_a_file() -> None:
    Trainer(Net(), arguments(), train_dataset=samples()).train(resume_from_checkpoint="table.csv")
