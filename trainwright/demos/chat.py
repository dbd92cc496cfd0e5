"""A tiny language model that has read Python's documentation learns to answer questions about animals."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch

from trainwright import Trainer, TrainingArguments
from trainwright.callbacks.wording import duration, plural
from trainwright.config.extras import install
from trainwright.config.loading import load_experiment
from trainwright.demos.common import DemoError, DemoOptions, DemoRun, closing_block, settle, trackers
from trainwright.experiment.builtin_data import documentation
from trainwright.experiment.library import CHATS
from trainwright.experiment.running import train
from trainwright.experiment.tasks.base import TensorRows

DEFAULTS = DemoRun(demo="chat", epochs=32, batch_size=8, seed=42)
#: Asked before and after; the last one stands in no conversation with these words.
QUESTIONS = ("Who are you?", "What does a badger eat?", "What is the food of an otter?")
_CHARACTERS, _LENGTH, _BASE_EPOCHS, _VOCABULARY = 120_000, 64, 5, 1024
_ENDS, _STEERS = ("<|end|>", "<|pad|>"), ("<|system|>", "<|user|>", "<|assistant|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
_EXPERIMENT = """\
# Written by: trainwright demo chat
name: {name}
model: {{name: base, task: chat}}
data: {{train: chats.jsonl, holdout: 0.1}}
training:
  output_dir: {output}
  num_train_epochs: {epochs}
  per_device_train_batch_size: {batch_size}
  learning_rate: 2e-3
  seed: {seed}
callbacks:
  sample_predictions: {{count: 3, max_new_tokens: 24}}
"""


def run_chat(options: DemoOptions) -> dict[str, float]:
    """Make a base model, fine-tune it, show its answers before and after; returns the metrics on held-out chats."""
    started = time.perf_counter()
    transformers = _library()
    torch.set_num_threads(1)
    run = settle(options, DEFAULTS)
    base = options.output / "base"
    if not (options.resume and (base / "model.safetensors").is_file()):
        _start_anew(options.output)
        _make_base(base, run.seed)
    before = answers(base, transformers)
    if not options.resume:
        _show("Before it learned to chat, it answers:", before)
    path = options.output / "chat.yaml"
    shutil.copyfile(CHATS, options.output / CHATS.name)
    settings = {"epochs": run.epochs, "batch_size": run.batch_size, "seed": run.seed}
    output = str(options.output.resolve()).replace("'", "''")
    path.write_text(_EXPERIMENT.format(name=options.output.name, output=f"'{output}'", **settings), encoding="utf-8")
    done = train(load_experiment(path, [f"training.report_to={trackers() or 'none'}"]))
    _show("After it, it answers:", answers(options.output, transformers))
    took = duration(time.perf_counter() - started)
    closing_block("Chat model", _conclusion(options, run, done.metrics, took, done.report))
    return done.metrics


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise DemoError(f"This demo needs the package transformers: {install('transformers')}") from error
    return transformers


def _start_anew(output: Path) -> None:
    """Without what an earlier run of the demo has left; its checkpoints are gone already."""
    shutil.rmtree(output / "base", ignore_errors=True)
    for name in ("finished.json", "model.safetensors", "config.json", "experiment.yaml", "preprocessing.json"):
        (output / name).unlink(missing_ok=True)


def make_base_files(folder: Path) -> Any:
    """Write a tiny Llama's configuration and a tokenizer of its own with a chat template; returns the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    transformers = _library()
    inner: Any = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[*_ENDS, *_STEERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([documentation()[:_CHARACTERS], *CHATS.read_text(encoding="utf-8").splitlines()], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=_ENDS[0],
        pad_token=_ENDS[1],
        additional_special_tokens=list(_STEERS),
        model_max_length=256,
    )
    tokenizer.chat_template = _TEMPLATE
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["LlamaForCausalLM"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    config.save_pretrained(str(folder))
    return tokenizer


def _make_base(folder: Path, seed: int) -> None:
    """A tokenizer, and a model that has read some of Python's documentation, in ``folder``."""
    transformers = _library()
    print("Making the base model: a tiny Llama reads Python's documentation ...", flush=True)
    tokenizer = make_base_files(folder)
    transformers.set_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(str(folder)))
    tokens = tokenizer(documentation()[:_CHARACTERS], add_special_tokens=False, verbose=False)["input_ids"]
    count = len(tokens) // _LENGTH
    blocks = torch.tensor(tokens[: count * _LENGTH]).reshape(count, _LENGTH)
    args = TrainingArguments(
        output_dir=str(folder / "training"),
        num_train_epochs=_BASE_EPOCHS,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        logging_steps=0.25,
        save_strategy="no",
        report_to="none",
        write_report=False,
        seed=seed,
    )
    Trainer(model, args, train_dataset=TensorRows(input_ids=blocks, labels=blocks)).train()
    shutil.rmtree(folder / "training", ignore_errors=True)
    model.save_pretrained(str(folder))


def answers(folder: Path, transformers: Any) -> list[tuple[str, str]]:
    """What the model in ``folder`` says to each question; nothing is drawn at random."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    found = []
    for question in QUESTIONS:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            written = model.generate(**asked, max_new_tokens=24, do_sample=False)[0, asked["input_ids"].shape[1] :]
        found.append((question, " ".join(tokenizer.decode(written, skip_special_tokens=True).split())))
    return found


def _show(title: str, said: list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for question, answer in said:
        print(f"    {question}\n      -> {answer}")
    print(flush=True)


def _conclusion(
    options: DemoOptions, run: DemoRun, metrics: dict[str, float], took: str, report: str | None
) -> list[tuple[str, str]]:
    return [
        ("perplexity", f"{metrics['eval_perplexity']:.2f} on answers of held-out conversations"),
        ("time", took),
        (
            "model",
            f"{options.output} (the best of {plural(run.epochs, 'epoch')}); before it, {options.output / 'base'}",
        ),
        ("answers", f"{options.output / 'samples.jsonl'}, those at each evaluation"),
        ("experiment", f"{options.output / 'chat.yaml'}"),
        ("resume", f"{options.resume_command} --epochs {run.epochs * 2}  # trains on from the last checkpoint"),
        ("try next", f"{options.program} cp chat .  # conversations of your own"),
        *([("report", f"{report}  # open it in a browser")] if report else []),
    ]
