"""What the scripts share: tiny models and made-up text, arguments, and a record of what happened. No download."""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.machinery
import inspect
import json
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "user", "assistant"]
WORDS = [f"w{number}" for number in range(64 - len(SPECIAL))]
CHAT = (
    "{% for m in messages %}{{ m['role'] }} {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} </s> "
    "{% endgeneration %}{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def given() -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line: which case, where to, from which checkpoint, and arguments that are otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("output")
    parser.add_argument("--resume", type=lambda word: True if word == "True" else word)
    parser.add_argument("--set", default="{}")
    found = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    arguments = {
        "output_dir": found.output,
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "save_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "learning_rate": 1e-3,
        "report_to": "none",
        "use_cpu": True,
    }
    return found, arguments | json.loads(found.set)


def text(words: int | None = None) -> str:
    return " ".join(random.choice(WORDS) for _ in range(words or random.randrange(3, 12)))


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=64,
    )
    found.chat_template = CHAT
    return found


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One that knows every text, and begins with ``<s>`` as Llama's does: for scripts that count on both."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({word: n for n, word in enumerate(SPECIAL[:7] + alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", SPECIAL.index("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=512,
    )


LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 6,
}


def language_model(folder: str, **changes: Any) -> LlamaForCausalLM:
    """Loaded from a folder, as TRL wants models to have a name."""
    torch.manual_seed(0)
    path = Path(folder) / f"llama-{os.environ.get('RANK', '0')}"
    LlamaForCausalLM(LlamaConfig(**(LLAMA | changes))).save_pretrained(path)
    return LlamaForCausalLM.from_pretrained(path)


def reward_model() -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    return LlamaForSequenceClassification(LlamaConfig(num_labels=1, **LLAMA))


def bert(folder: str) -> str:
    """A folder with a BERT and its tokenizer."""
    torch.manual_seed(0)
    path = Path(folder) / f"bert-{os.environ.get('RANK', '0')}"
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=64,
    )
    BertForMaskedLM(config).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def record(trainer: Any) -> None:
    """Write what was logged, and a sum over all bits of the weights."""
    if os.environ.get("RANK", "0") != "0":
        return
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(trainer).__mro__]
    found = {"log": trainer.state.log_history, "weights": digest.hexdigest(), "kinds": kinds}
    Path(trainer.args.output_dir, "record.json").write_text(json.dumps(found))


def repository(name: str) -> Path:
    """A checkout of code that is not on PyPI, below the folder that `make test-ecosystem REPOSITORIES=` names."""
    return Path(os.environ["REPOSITORIES"]) / name


def words(arguments: dict[str, Any]) -> list[str]:
    """The same arguments as a script's command line has them."""
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


def record_every_training(resume: Any = None) -> None:
    """For scripts that keep their Trainer to themselves: what it did is recorded when ``train`` returns.

    ``resume`` is for those that have no way to ask for one.
    """
    inner = Trainer.train

    @functools.wraps(inner)
    def train(self: Any, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        output = inner(self, resume_from_checkpoint=resume_from_checkpoint or resume, **kwargs)
        record(self)
        return output

    Trainer.train = train


def take_the_older_name() -> None:
    """Let transformers' own Trainer take ``tokenizer=``, which it calls ``processing_class`` today; ours takes both."""
    inner = Trainer.__init__
    if "tokenizer" in inspect.signature(inner).parameters:
        return

    @functools.wraps(inner)
    def begin(self: Any, *args: Any, tokenizer: Any = None, **kwargs: Any) -> None:
        inner(self, *args, **(kwargs if tokenizer is None else kwargs | {"processing_class": tokenizer}))

    Trainer.__init__ = begin


def stand_in(name: str, **attributes: Any) -> None:
    """An empty module for one that a script imports at its top, and that this training never uses."""
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(attributes)
    sys.modules[name] = module
