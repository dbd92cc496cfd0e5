"""Conversations: a language model learns to answer, by its own chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from trainwright.config.arguments import TrainingArguments
from trainwright.config.errors import ConfigError
from trainwright.config.loading import Loaded
from trainwright.data.chat.batch_check import check_batch
from trainwright.data.chat.collator import ChatCollator
from trainwright.data.chat.samples import CHOICES, IGNORED, ChatRows, encode_chats
from trainwright.data.chat.shapes import Shape, find_shape
from trainwright.data.chat.template import ChatTemplate
from trainwright.experiment.models import build_pretrained, is_local, limit_length, processor_of
from trainwright.experiment.sources import columns_of, expect_columns, resolve
from trainwright.experiment.tasks.base import Given, Prepared
from trainwright.experiment.tasks.causal_lm import shifted_losses
from trainwright.experiment.tasks.chat_answers import answers_to
from trainwright.looking.words import shown

_SHOWN, _CHECKED, _READ = 2, 8, 100
_OTHER_SAMPLES = (
    "these are other samples than those that the run began with: the template writes a date, or the tokenizer or its "
    "template has changed since. It goes on, but not as it would have without a stop"
)


class ChatTask:
    """A causal language model of transformers on conversations; loss on the answers alone unless told otherwise."""

    reads = ("text", "target", "max_length", "train_on")
    #: What is learned is the text of the file, to the letter.
    reads_as_written = True

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 1e-4 if loaded.experiment.adapter is not None else 2e-5,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.03,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "num_train_epochs": 3,
            "load_best_model_at_end": True,
            "metric_for_best_model": "loss",
        }

    def prepare(self, given: Given) -> Prepared:
        loaded = given.loaded
        if is_local(loaded):
            raise loaded.error(("model", "name"), "the task chat needs a causal language model of transformers.")
        tokenizer = processor_of(loaded, "AutoTokenizer", given.trained)
        facts = given.facts or _facts(given)
        if (written := _template_text(loaded, facts)) is not None:
            tokenizer.chat_template = written
        try:
            template = ChatTemplate(tokenizer)
        except ValueError as error:
            raise loaded.error(("model", "name"), str(error)) from error
        if written is not None and (wrong := _syntax_error(written)) is not None:
            raise loaded.error(("model", "chat_template"), f"{loaded.experiment.model.chat_template}: {wrong}")
        model = build_pretrained(loaded, "AutoModelForCausalLM", given.trained)
        limit_length(given, facts, model, tokenizer)
        _refuse_unknown_tokens(loaded, model, tokenizer)
        notes = [f"reads {Shape(**facts['shape']).said}", _how(template, facts)]
        notes += _stop_at_ends(model, template)
        if template.writes_date:
            notes.append("the template writes today's date into conversations: a run resumed tomorrow reads another")
        collator = ChatCollator(_pad_token(tokenizer))
        # Those of the run; phases may have others besides.
        told: list[ChatRows] = []

        def encode(rows: Any, *, training: bool = False) -> ChatRows:
            shape = Shape(**facts["shape"])
            expect_columns(rows, [name for part, name in shape.columns.items() if part not in ("tools", "system")])
            found = encode_chats(rows, shape, template, train_on=facts["train_on"], max_length=facts["max_length"])
            if training:
                check_batch(collator([found[place] for place in range(min(len(found), _CHECKED))]), tokenizer)
            if training and not told:
                told.append(found)
                _tell(found, template, facts, notes)
            elif given.train is not None:
                what = "a phase" if training else "to evaluate on"
                notes.append(f"{what}: {'; '.join(found.counts.lines(facts['max_length']))}")
            return found

        prepared = Prepared(
            model=model,
            encode=encode,
            encode_train=lambda rows: encode(rows, training=True),
            describe=_described,
            facts=facts,
            collator=collator,
            metrics=perplexity,
            preprocess_logits=shifted_losses,
            processor=tokenizer,
            notes=notes,
            dropped=facts["dropped"],
        )
        # The model as it is then: an adapter may be around it.
        prepared.answers = lambda rows, args: _answers(prepared, template, rows, args)
        return prepared


def _answers(prepared: Prepared, template: ChatTemplate, rows: Any, args: TrainingArguments) -> list[dict[str, Any]]:
    shape = Shape(**prepared.facts["shape"])
    expect_columns(rows, [name for part, name in shape.columns.items() if part in ("list", "instruction", "input")])
    size = args.per_device_eval_batch_size
    return answers_to(prepared.model, template, shape, rows, batch_size=size, device=args.device)


def _facts(given: Given) -> dict[str, Any]:
    loaded, data = given.loaded, given.loaded.experiment.data
    if data.train_on is not None and data.train_on not in CHOICES:
        raise loaded.error(("data", "train_on"), f"{data.train_on!r} is none of {', '.join(CHOICES)}.")
    if data.max_length is not None and data.max_length < 2:
        raise loaded.error(("data", "max_length"), "an answer is learned from what stands before it: at least 2.")
    if len(given.train) == 0:
        raise loaded.error(("data", "train"), "it has no rows.")
    try:
        # A first row may be empty.
        begin = [given.train[place] for place in range(min(len(given.train), _READ))]
        shape = find_shape(columns_of(given.train), begin, data.text, data.target)
    except ValueError as error:
        raise ConfigError(f"{loaded.where(('data',))}: {error}") from error
    used = set(shape.columns.values())
    return {
        "shape": {"kind": shape.kind, "columns": shape.columns},
        "train_on": data.train_on or "assistant",
        "max_length": data.max_length or 2048,
        "dropped": [name for name in columns_of(given.train) if name not in used],
        "chat_template": None,
    }


def _template_text(loaded: Loaded, facts: dict[str, Any]) -> str | None:
    """The template that the experiment names; a run keeps its text."""
    named = loaded.experiment.model.chat_template
    if facts["chat_template"] is None and named is not None:
        path = Path(resolve(loaded, ("model", "chat_template"), named))
        try:
            facts["chat_template"] = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise loaded.error(("model", "chat_template"), f"{path} cannot be read: {error}.") from None
    return facts["chat_template"]


def _syntax_error(written: str) -> str | None:
    """What jinja2 says of a template that it cannot read, and at which line."""
    import jinja2

    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        # Another release keeps it elsewhere; rendering says it then, without the file.
        return None
    try:
        _compile_jinja_template(written)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return None


def _how(template: ChatTemplate, facts: dict[str, Any]) -> str:
    learned = {
        "assistant": "the answers are learned",
        "last": "the last answer of each conversation is learned",
        "each": "each answer is a sample of its own",
        "all": "all turns are learned",
    }[facts["train_on"]]
    if facts["train_on"] == "all":
        return learned
    how = "by the template's markers" if template.has_markers else "by rendering the conversation up to each answer"
    return f"{learned}, found {how}, each proven by decoding"


def _pad_token(tokenizer: Any) -> int:
    found = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return 0 if found is None else int(found)


def _refuse_unknown_tokens(loaded: Loaded, model: nn.Module, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().num_embeddings  # type: ignore[operator, union-attr]
    if len(tokenizer) > rows:
        raise loaded.error(
            ("model", "tokenizer" if loaded.experiment.model.tokenizer else "name"),
            f"the tokenizer knows {len(tokenizer)} tokens and the model {rows}: it is another model's tokenizer.",
        )


def _stop_at_ends(model: Any, template: ChatTemplate) -> list[str]:
    """Let generation stop where answers end, also where that is not the token that ends documents."""
    said = "qzxe"
    try:
        text = template.text([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": said}])
    except ValueError:
        return []
    tokens, offsets = template.tokens(text)
    stops = template.stops
    # The first behind what is said: before it stands what opens an answer, and behind it perhaps the end of documents.
    behind = text.rfind(said) + len(said)
    ends = [token for token, (start, _) in zip(tokens, offsets, strict=True) if start >= behind and token in stops][:1]
    config = getattr(model, "generation_config", None)
    if not ends or config is None:
        return []
    known = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    known = [token for token in known if token is not None]
    if ends[0] in known:
        return []
    config.eos_token_id = [*known, ends[0]]
    return [f"generation stops at {template.decoded(ends)} too, where the template ends answers"]


def _tell(rows: ChatRows, template: ChatTemplate, facts: dict[str, Any], notes: list[str]) -> None:
    """Counts and the first samples, for the person at the terminal and for the run directory."""
    lines = rows.counts.lines(facts["max_length"])
    before, facts["samples"] = facts.get("samples"), rows.digest()
    if before is not None and before != facts["samples"]:
        lines.append(_OTHER_SAMPLES)
    samples = [marked(rows[place], template) for place in range(min(_SHOWN, len(rows)))]
    facts["counts"], facts["first_samples"] = lines, samples
    notes += [*lines, *(f"sample {place}, trained in «»: {shown(text)}" for place, text in enumerate(samples))]


def marked(row: dict[str, Any], template: ChatTemplate) -> str:
    """A sample as text, with what is trained between « and »."""
    tokens, labels = row["input_ids"].tolist(), row["labels"].tolist()
    found, start = "", 0
    for place in range(1, len(tokens) + 1):
        if place == len(tokens) or (labels[place] == IGNORED) != (labels[start] == IGNORED):
            text = template.decoded(tokens[start:place])
            found += text if labels[start] == IGNORED else f"«{text}»"
            start = place
    return found


def perplexity(prediction: Any) -> dict[str, float]:
    """Between how many tokens the model is in doubt, over those that are learned."""
    losses = _known(prediction.predictions)
    return {"perplexity": float(np.exp(min(700.0, np.nanmean(losses))))}


def _known(losses: Any) -> np.ndarray:
    """NaN where there is no loss: rows of other lengths were filled up with -100."""
    found = np.asarray(losses, dtype=np.float64)
    return np.where(found == IGNORED, np.nan, found)


def _described(predictions: object) -> list[dict[str, Any]]:
    means = [float(np.nanmean(row)) for row in _known(predictions)]
    return [{"loss": mean, "perplexity": float(np.exp(min(700.0, mean)))} for mean in means]
