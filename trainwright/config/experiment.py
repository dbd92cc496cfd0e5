"""Experiment: everything about a run in one file. Each class is a section of it, each field a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Sections whose keys are TrainingArguments.
ARGUMENT_SECTIONS = ("training", "checkpoint", "parallel")
#: Sections that list things by name, each perhaps with options.
NAMED_SECTIONS = ("trackers", "callbacks")


@dataclass(kw_only=True)
class EnsembleSection:
    """Several models of the same task, trained in one run and saved as one model."""

    members: int | None = None
    """How many, each initialised from a seed of its own."""

    seed: int | None = None
    """Of the first member, the others have those after it; by default training.seed."""

    configurations: list[dict[str, Any]] = field(default_factory=list)
    """Options of each member over model.options, one entry a member, in place of members."""

    bags: bool = False
    """Whether each member learns from a bag of its own: samples drawn with replacement."""

    predict: str = "average"
    """How members predict together: average (of probabilities), vote, or stacked (weighted by shares that are fitted to
    held-out data at the end)."""

    calibrate: bool = False
    """Whether the temperature of the probabilities is fitted to held-out data at the end."""

    kind: str | None = None
    """What a model of your own predicts: classes or numbers; other tasks know it."""

    vectorize: bool = True
    """False computes members one after the other without trying to do it at once."""


@dataclass(kw_only=True)
class ModelSection:
    """What is trained."""

    name: str
    """A Hugging Face name or folder, a registered name (mlp, cnn, char-lm), or my_file.py:Class."""

    task: str | None = None
    """What it learns, ours or a registered task; needed only where name and data leave it open."""

    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of from_pretrained, or of the class."""

    pretrained: bool = True
    """False takes the architecture of a Hugging Face model and starts from new weights."""

    tokenizer: str | None = None
    """Name or folder of the tokenizer or image processor, where it is not the model's own."""

    chat_template: str | None = None
    """chat: a file with the chat template (Jinja), where the tokenizer has none or another should be used."""

    metrics: str | None = None
    """my_file.py:compute_metrics, in place of the task's own metrics."""

    loss: str | dict[str, Any] | None = None
    """cross_entropy, focal, dice and others, a registered loss or my_file.py:function, in place of the model's own;
    with options, {name: focal, gamma: 2.0}."""

    ensemble: EnsembleSection | None = None
    """Several models in place of one: members, bags, configurations, and how they predict together."""


@dataclass(kw_only=True)
class DataSection:
    """What it learns from."""

    train: str | None = None
    """A CSV, JSONL, Parquet or text file (or a pattern of several), a folder, a Hugging Face dataset,
    my_file.py:dataset, or built in: digits, characters."""

    eval: str | None = None
    """What it is judged by while it trains; the same kinds."""

    test: str | None = None
    """What evaluate and predict use if they are given nothing else."""

    holdout: float | None = None
    """Share of train that is kept for evaluation where eval is not given, for example 0.1."""

    text: str | list[str] | None = None
    """Column of the text, or two columns for pairs; found by usual names if left out."""

    target: str | None = None
    """Column of what is to be predicted."""

    features: list[str] | None = None
    """Tabular data: columns to predict from; by default all but the target."""

    max_length: int | None = None
    """Longest text, in tokens (causal-lm: length of a block)."""

    train_on: str | None = None
    """chat: what is learned: assistant (all answers, the default), last (the last answer), each (every answer as a
    sample of its own), or all (everything that is said)."""

    image_size: int | None = None
    """Side to which images are scaled where no image processor does it."""

    augment: bool = False
    """Images are cropped and lit, sounds shifted and made louder or softer, anew at each look, for training alone."""

    train_split: str = "train"
    """Which part of a Hugging Face dataset to train on; slices such as train[:10%] work."""

    eval_split: str | None = None
    """Which part to evaluate on; by default its validation or test part, if there is one."""

    limit_train: int | None = None
    """Use only so many rows, for a quick try."""

    limit_eval: int | None = None
    """The same for evaluation."""

    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of datasets.load_dataset, or of the function that my_file.py:dataset names."""


@dataclass(kw_only=True)
class SearchSection:
    """What ``trainwright sweep`` tries."""

    space: dict[str, Any] = field(default_factory=dict)
    """Settings that are searched, each with a list of choices, {range: [low, high]} or {log_range: [low, high]}; step:
    makes a range coarser, when: {other.setting: value} searches it only then."""

    trials: int | None = None
    """How many trainings; by default 20, or all points of a grid."""

    metric: str | dict[str, str] | None = None
    """What is best: a metric of the evaluation, by default the one whose model is kept; several as {accuracy: maximize,
    parameters: minimize}. parameters, flops and latency_ms (of one sample) count too."""

    direction: str | None = None
    """maximize or minimize; by default what suits the metric's name."""

    method: str = "tpe"
    """How values are chosen: tpe, random, grid, or nsga2 (evolution)."""

    prune: str | None = None
    """Which trials end early: median (worse than half of the others at that step), hyperband, or none; by default
    median, and none with several metrics."""

    seed: int | None = None
    """Of the choices; by default training.seed."""

    timeout: str | None = None
    """No trial is begun after it: 30 minutes, 2 hours."""

    limits: dict[str, float] = field(default_factory=dict)
    """The most that a model may have: parameters, flops or latency_ms; one beyond is not trained and does not count."""

    inherit: bool = False
    """Whether a trial begins with the weights of the best so far, where they fit."""

    keep: str = "best"
    """Whose weights stay: those of the best trials, or of all."""

    storage: str = "sqlite"
    """How the study is stored: sqlite, or journal (for folders that several machines share)."""


@dataclass(kw_only=True)
class AdapterSection:
    """Small matrices that are trained in place of the model's own weights (PEFT); checkpoints hold them alone."""

    kind: str = "lora"
    """lora, dora or rslora."""

    r: int = 16
    """Rank of the matrices."""

    alpha: float | None = None
    """What the matrices count, before it is divided by r (rslora: by its root); by default twice r."""

    dropout: float = 0.0
    """Share of the adapter's inputs that is dropped while it is trained."""

    targets: str | list[str] = "all-linear"
    """Layers that get them: all-linear (all but the output), names or ends of names, or one regular expression."""

    also_train: list[str] = field(default_factory=list)
    """Names of layers that are trained and saved whole, such as a new head."""


@dataclass(kw_only=True)
class PhaseSection:
    """Some epochs with settings of their own; what is left out is as training: says."""

    epochs: int
    """How many, at most."""

    data: str | None = None
    """What it learns from; the same kinds as data.train, with the same columns."""

    limit: int | None = None
    """Use only so many rows of it."""

    trainable: str | list[str] | None = None
    """Names of the parameters that are trained, the others rest: exact names or re:pattern."""

    freeze: str | list[str] | None = None
    """Names of those that rest, the others are trained."""

    learning_rate: float | None = None
    """Its highest rate."""

    lr_scheduler_type: str | None = None
    """Its schedule, over the steps of this phase alone."""

    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Options of the schedule."""

    warmup_steps: float | None = None
    """Steps of warm-up, or below 1 a share of the phase's."""

    weight_decay: float | None = None
    """Of the parameters that decay."""

    fresh_optimizer: bool = False
    """Whether the optimizer forgets its averages of gradients when this phase begins."""

    until: str | None = None
    """Ends it earlier, with the epoch in which an evaluation shows this: eval_accuracy >= 0.9."""


@dataclass(kw_only=True)
class Experiment:
    """The whole file."""

    model: ModelSection
    """What is trained."""

    data: DataSection = field(default_factory=DataSection)
    """What it learns from."""

    name: str | None = None
    """Name of the run; by default the file's. Results go to runs/<name> unless output_dir says otherwise."""

    training: dict[str, Any] = field(default_factory=dict)
    """TrainingArguments by name."""

    checkpoint: dict[str, Any] = field(default_factory=dict)
    """Those TrainingArguments that are about saving and going on."""

    parallel: dict[str, Any] = field(default_factory=dict)
    """Those TrainingArguments that are about several processes and devices."""

    trackers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Where numbers go: names, or names with options."""

    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Callbacks: early_stopping, ema, monitor, mixup, sam, registered names, my_file.py:Class; with options."""

    recipe: str | dict[str, Any] | None = None
    """How the model is pruned, quantized or distilled while it is trained: a recipe's file, or the recipe itself."""

    recipe_args: dict[str, Any] | str | None = None
    """Values for the recipe's variables."""

    metadata_args: list[str] = field(default_factory=list)
    """TrainingArguments that the saved recipe should name."""

    teacher: str | None = None
    """What the recipe distils from: the folder of a saved model, "self" or "disable"."""

    distill_teacher: str | None = None
    """Another name of teacher."""

    phases: dict[str, PhaseSection] = field(default_factory=dict)
    """Phases of the training by name, one after the other, each with its epochs, data, rates and trained parameters."""

    adapter: AdapterSection | None = None
    """Trains an adapter (LoRA, DoRA, rsLoRA) in place of the model's own weights."""

    search: SearchSection | None = None
    """Which settings trainwright sweep tries; a training passes it over."""
