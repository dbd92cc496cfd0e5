"""Mistakes in an experiment's file, and on the command line."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

FOUND: list[Mistake] = []


def chapter(title: str, *rows: tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]) -> None:
    """Commands of one kind; each exits with 2."""
    for name, words, says, *needs in rows:
        FOUND.append(Mistake(title, name, words, says, 2, needs[0] if needs else ()))


chapter(
    "Keys and values of an experiment",
    (
        "A misspelled key",
        "check e.yaml training.learing_rate=1e-4",
        "command line: training.learing_rate: there is no such argument (did you mean 'learning_rate'?).",
    ),
    (
        "A key without its section",
        "check e.yaml learning_rate=1e-4",
        "command line: learning_rate: there is no such key (it belongs under training:).",
    ),
    (
        "A key of another library",
        "check e.yaml epochs=3",
        "command line: epochs: there is no such key (here it is training.num_train_epochs).",
    ),
    (
        "A device in an experiment",
        "check e.yaml device=cuda",
        "command line: device: there is no such key (use_cpu: true trains on the CPU; a GPU is used "
        "where there is one, and CUDA_VISIBLE_DEVICES says which).",
    ),
    (
        "A callback without its section",
        "check e.yaml early_stopping=true",
        "command line: early_stopping: there is no such key (it belongs under callbacks: {early_stopping: true}).",
    ),
    (
        "A misspelled callback",
        "check e.yaml callbacks.early_stoping=true",
        "command line: callbacks: there is no callback 'early_stoping' (did you mean "
        "'early_stopping'?); choose one of ...",
    ),
    (
        "An option that a callback does not have",
        "check e.yaml callbacks.early_stopping.patienc=3",
        "command line: callbacks.early_stopping: there is no option 'patienc' (did you mean "
        "'patience'?); there are patience, threshold.",
    ),
    (
        "A patience below zero",
        "check e.yaml callbacks.early_stopping.patience=-1",
        "command line: callbacks.early_stopping: patience=-1 (early_stopping_patience) must not be "
        "negative: 3 stops after the third evaluation in a row that is no better.",
    ),
    (
        "A misspelled model",
        "check e.yaml model.name=mpl",
        "command line: model.name: 'mpl' (did you mean 'mlp'?) is not on this machine, and "
        "https://huggingface.co cannot be reached: name a local folder, or fetch it where there is a "
        "network (hf download mpl) and copy the folder ~/.cache/huggingface.",
    ),
    (
        "An option that a model does not have",
        "check e.yaml model.options.widht=8",
        "e.yaml:1: model.options: mlp got an unexpected keyword argument 'widht' (did you mean "
        "'width'?); the data gives inputs=2, outputs=2.",
    ),
    (
        "A misspelled task",
        "check e.yaml model.task=tabular-clasification",
        "command line: model.task: there is no task 'tabular-clasification' (did you mean "
        "'tabular-classification'?); choose one of ...",
    ),
    (
        "A misspelled optimizer",
        "check e.yaml training.optim=sdg",
        "command line: optim: there is no optimizer 'sdg' (did you mean 'sgd'?); choose one of ...",
    ),
    (
        "Zero steps",
        "check e.yaml training.max_steps=0",
        "command line: max_steps=0 trains nothing: give a positive number of steps, or -1 (as if it "
        "were left out) for as many as num_train_epochs makes.",
    ),
    (
        "An empty value",
        "check e.yaml training.learning_rate=",
        "command line: training.learning_rate: it is empty: write a value, or leave the key out.",
    ),
    (
        "A checkpoint in an experiment",
        "check e.yaml training.resume_from_checkpoint=runs/a/checkpoint-5",
        "command line: training.resume_from_checkpoint: leave it out: the same command again resumes "
        "the run in its folder, and so does `trainwright resume RUN`. A particular checkpoint is for "
        "Python: Trainer(...).train(resume_from_checkpoint=...).",
    ),
    (
        "A GPU on a machine without",
        "check e.yaml training.use_cpu=false",
        "command line: training.use_cpu: false asks for a GPU, and torch sees none on this machine: "
        "leave it out to train on the CPU where there is no GPU, or write true.",
    ),
    (
        "A metric that does not exist",
        "check e.yaml training.metric_for_best_model=acuracy",
        "command line: training.metric_for_best_model: an evaluation gives eval_accuracy, eval_f1, "
        "eval_loss, and no acuracy (did you mean 'eval_accuracy'?).",
    ),
    (
        "Results where a file is",
        "check e.yaml training.output_dir=table.csv",
        ".../table.csv: results cannot be written there; set training.output_dir.",
    ),
    (
        "Code that a file names",
        "check code.yaml",
        "code.yaml:1: model.name: 'net.py:Net' would run code because a file says so. If you know "
        "that code, add --trust on the command line, or give it there: model.name=net.py:Net",
        ("code.yaml",),
    ),
    (
        "A file that is not YAML",
        "check broken.yaml",
        "broken.yaml:2: expected ',' or '}', but got ':'.",
        ("broken.yaml",),
    ),
    (
        "A section that is not indented",
        "check flat.yaml",
        "flat.yaml:3: train: there is no such key (it belongs under data:).",
        ("flat.yaml",),
    ),
    (
        "A line that is indented by less",
        "check crooked.yaml",
        "crooked.yaml:4: expected <block end>, but found '<block mapping start>': it is not indented like the lines "
        "that it belongs to.",
        ("crooked.yaml",),
    ),
    (
        "Tabs in YAML",
        "check tabs.yaml",
        "tabs.yaml:2: found character '\\t' that cannot start any token: indent with spaces.",
        ("tabs.yaml",),
    ),
)
chapter(
    "Data of an experiment",
    (
        "A file that is not there",
        "check e.yaml data.train=tabel.csv",
        "command line: data.train: there is no tabel.csv (did you mean 'table.csv'?).",
    ),
    (
        "Columns between semicolons",
        "check e.yaml data.train=semicolons.csv",
        "e.yaml:2: data.target: there is no column 'kind'; there are a;b;kind. The columns seem to be separated by "
        '";": set data.options={sep: ";"}.',
        ("semicolons.csv",),
    ),
    (
        "A file without names of columns",
        "check e.yaml data.train=nameless.csv",
        "e.yaml:2: data.target: there is no column 'kind'; there are 0, 0.1, x. The first line seems to hold values: "
        "begin the file with a line of names for the columns.",
        ("nameless.csv",),
    ),
    (
        "Images of one class",
        "check images.yaml",
        "images.yaml:2: which column is the label? There are image. Images of each class lie in a folder of their own, "
        "named after it: pictures/cat/1.png, pictures/dog/1.png.",
        ("images.yaml", "pictures/cat/1.png"),
    ),
    (
        "An image that is none",
        "check images.yaml",
        "data: row 0 cannot be read: cannot identify image file .../pictures/cat/0.png'. Mend the file, or take it "
        "out.",
        ("images.yaml", "pictures/cat/0.png", "pictures/dog/1.png"),
    ),
    (
        "Images of one class, to begin with",
        "init --data pictures --output new.yaml",
        "--data: the images in pictures are of one class. Images of each class lie in a folder of their own, named "
        "after it: pictures/cat/1.png, pictures/dog/1.png.",
        ("pictures/cat/1.png",),
    ),
    (
        "A folder without data",
        "init --data notes --output new.yaml",
        "--data: the folder notes holds no images and no tables.",
        ("notes/readme.txt",),
    ),
    (
        "A file in another encoding",
        "check e.yaml data.train=latin.csv",
        "command line: data.train: 'latin.csv' cannot be read: it is not in UTF-8. Save it as UTF-8, "
        "or name its encoding: data.options={encoding: latin-1} (or cp1252, utf-16).",
        ("latin.csv",),
    ),
    (
        "A file without rows",
        "check e.yaml data.train=empty.csv",
        "command line: data.train: 'empty.csv' cannot be read: it has no rows.",
        ("empty.csv",),
    ),
    (
        "Rows without a label",
        "check e.yaml data.train=gaps.csv",
        "e.yaml:2: 2 of 24 rows have nothing in 'kind' (rows 4, 8 of gaps.csv; the first row below "
        "the header is 1): remove them, or fill them in.",
        ("gaps.csv",),
    ),
    (
        "One class only",
        "check e.yaml data.train=same.csv",
        "e.yaml:2: All rows have the same 'kind' (x): nothing to tell apart.",
        ("same.csv",),
    ),
    (
        "A column that is not there",
        "check e.yaml data.target=knid",
        "command line: data.target: there is no column 'knid' (did you mean 'kind'?); there are a, b, kind.",
    ),
    (
        "More held out than there is",
        "check e.yaml data.holdout=2",
        "command line: data.holdout: 2.0 should be a share between 0 and 1, such as 0.1.",
    ),
    (
        "A model that is not on this machine",
        "check texts.yaml",
        "texts.yaml:1: model.name: 'some-model' is not on this machine, and https://huggingface.co "
        "cannot be reached: name a local folder, or fetch it where there is a network (hf download "
        "some-model) and copy the folder ~/.cache/huggingface.",
    ),
    (
        "A dataset that is not on this machine",
        "check e.yaml data.train=someone/some-data",
        "command line: data.train: 'someone/some-data' is not on this machine, and "
        "https://huggingface.co cannot be reached: name a local folder, or fetch it where there is a "
        "network (hf download someone/some-data --repo-type dataset) and copy the folder "
        "~/.cache/huggingface.",
    ),
)
chapter(
    "Commands",
    (
        "An experiment that is not there",
        "train experiment.yaml",
        "Invalid value for 'experiment': file 'experiment.yaml' does not exist.",
    ),
    ("A misspelled command", "trian e.yaml", "No such command 'trian'. Did you mean 'train'?"),
    (
        "A misspelled option",
        "train e.yaml --fersh",
        "command line: '--fersh' (did you mean '--fresh'?): write section.key=value, or --section.key value.",
    ),
    (
        "Evaluating before training",
        "evaluate e.yaml",
        "runs/e has no experiment.yaml: train it first, or name the folder of a run.",
    ),
    ("Resuming what is no run", "resume .", ". has no experiment.yaml: it is not the folder of an experiment."),
    (
        "A sweep without a search",
        "sweep e.yaml",
        "e.yaml has no search: section. Add one, such as search: {space: {training.learning_rate: "
        "{log_range: [1e-5, 1e-2]}}}.",
    ),
    (
        "An example that does not exist",
        "cp tabel",
        "There is no experiment 'tabel' (did you mean 'table'?); there are characters, chat, digits, "
        "image-folder, language-model, own-module, summaries, table, text-classification.",
    ),
    (
        "A beginning with data that is not there",
        "init --data tabel.csv",
        "--data: there is no tabel.csv (did you mean 'table.csv'?).",
    ),
    (
        "A beginning for a task that does not exist",
        "init --data table.csv --task tabel",
        "--task 'tabel' is not known (did you mean 'table'?); there are table, texts, language-model, images, chat.",
    ),
    (
        "A beginning where nobody can answer",
        "init",
        "init asks questions at a terminal; here say --data (and --task, --model, --target).",
    ),
    (
        "A beginning over a file",
        "init --data table.csv --output e.yaml",
        "e.yaml is there already: it is not overwritten. Choose another with --output.",
    ),
    ("Exporting what is no model", "export . --to onnx", ". holds no good checkpoint and no finished model."),
    (
        "Exporting to a format that does not exist",
        "export . --to onxx",
        "Invalid value for '--to': Value error, 'onxx' is not one of 'hf', 'safetensors', "
        "'compressed-tensors', 'onnx', 'torch-2:4', 'merged'.",
    ),
    ("Verifying what is no checkpoint", "verify .", ". holds no finished checkpoint."),
)
