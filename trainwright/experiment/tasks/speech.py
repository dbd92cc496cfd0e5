"""Speech to text: what is said in a sound, letter by letter."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from trainwright.config.loading import Loaded
from trainwright.experiment import measures
from trainwright.experiment.media import expect_something, read_sound, varied_sound
from trainwright.experiment.models import build_pretrained, is_local, processor_of, transformers_library
from trainwright.experiment.sources import columns_of, expect_columns, pick_column
from trainwright.experiment.tasks.base import Given, Prepared
from trainwright.trainer.trainer import Trainer

_SOUNDS = ("audio", "sound", "speech", "path", "file", "file_name")
_TEXTS = ("text", "sentence", "transcript", "transcription", "normalized_text")
_SPACE, _PAD, _UNKNOWN = "|", "[PAD]", "[UNK]"


class SpeechRecognition:
    """Models of transformers with a letter for each piece of sound (Wav2Vec2, HuBERT, WavLM and their like)."""

    reads = ("text", "target", "augment")
    reads_files = True

    def defaults(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "learning_rate": 1e-4,
            "warmup_steps": 0.1,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 16,
            "num_train_epochs": 20,
            "load_best_model_at_end": True,
            "metric_for_best_model": "word_errors",
            "greater_is_better": False,
        }

    def prepare(self, given: Given) -> Prepared:
        if is_local(given.loaded):
            raise given.loaded.error(
                ("model", "name"), "speech-recognition takes models of transformers such as Wav2Vec2 and HuBERT."
            )
        facts = given.facts or _facts(given)
        listener = processor_of(given.loaded, "AutoFeatureExtractor", given.trained)
        letters = _tokenizer(given, facts)
        model: Any = build_pretrained(
            given.loaded,
            "AutoModelForCTC",
            given.trained,
            vocab_size=len(letters),
            pad_token_id=letters.pad_token_id,
            # The mean over the sounds, by which the loop weighs batches, of the mean over their letters.
            ctc_loss_reduction="mean",
            # A head for other letters than those that were trained is made anew.
            ignore_mismatched_sizes=True,
        )

        def encode(rows: object) -> Any:
            return SoundRows(rows, facts, listener, letters)

        def encode_train(rows: object) -> Any:
            return SoundRows(rows, facts, listener, letters, varied=bool(given.loaded.experiment.data.augment))

        return Prepared(
            model=model,
            encode=encode,
            encode_train=encode_train,
            trainer=SpeechTrainer,
            describe=lambda predictions: [{"prediction": text} for text in _texts(letters, predictions)],
            facts=facts,
            collator=SoundsWithLetters(listener, model),
            metrics=lambda said: measures.errors(_texts(letters, said.predictions), _wanted(letters, said.label_ids)),
            processor=listener,
            target=facts["target"],
            notes=[f"hears {facts['sound']}, writes {facts['target']} ({len(letters)} letters)"],
            dropped=facts["dropped"],
        )


class SpeechTrainer(Trainer):
    """Evaluates with letters in place of scores."""

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """The scores of all pieces would fill the memory; letters stand there alone, and none beyond a sound's end."""
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if logits is None:
            return loss, logits, labels
        letters = (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)
        mask = inputs.get("attention_mask")
        if mask is not None and (pieces := _pieces(self.model)) is not None:
            length = pieces(mask.sum(-1)).to(letters.device)
            filled = torch.arange(letters.shape[1], device=letters.device) >= length[:, None]
            config: Any = self.model.config
            letters = letters.masked_fill(filled, config.pad_token_id)
        return loss, letters, labels


def _pieces(model: Any) -> Any:
    """Lengths of sounds -> how many pieces the model makes of them."""
    return getattr(model, "_get_feat_extract_output_lengths", None)


class SoundRows(Dataset):
    """Sounds read when they are asked for, with the letters of what is said."""

    def __init__(self, rows: Any, facts: dict[str, Any], listener: Any, letters: Any, *, varied: bool = False) -> None:
        expect_columns(rows, [facts["sound"]])
        self.rows, self.facts, self.listener, self.letters, self.varied = rows, facts, listener, letters, varied
        self.has_target = facts["target"] in columns_of(rows)
        if self.has_target:
            expect_something(rows[facts["target"]], facts["target"])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, rate = self.rows[index], self.listener.sampling_rate
        sound = read_sound(row[self.facts["sound"]], rate, f"row {index}, {self.facts['sound']!r}")
        sound = varied_sound(sound, rate) if self.varied else sound
        name = self.listener.model_input_names[0]
        found = {name: self.listener(sound.numpy(), sampling_rate=rate)[name][0]}
        return (
            {**found, "labels": self.letters(_plain(row[self.facts["target"]])).input_ids} if self.has_target else found
        )


class SoundsWithLetters:
    """Pads the sounds of a batch with silence and its letters with -100."""

    def __init__(self, listener: Any, model: Any) -> None:
        self.listener, self.model = listener, model

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        name = self.listener.model_input_names[0]
        batch = dict(self.listener.pad([{name: row[name]} for row in rows], padding=True, return_tensors="pt"))
        if "labels" not in rows[0]:
            return batch
        labels = [torch.tensor(row["labels"], dtype=torch.long) for row in rows]
        self._refuse_too_short([len(row[name]) for row in rows], labels)
        batch["labels"] = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        return batch

    def _refuse_too_short(self, lengths: list[int], labels: list[torch.Tensor]) -> None:
        """A sound with fewer pieces than letters has an infinite loss."""
        if (pieces := _pieces(self.model)) is None:
            return
        for length, letters in zip(lengths, labels, strict=True):
            # Between two equal letters there has to be a pause.
            needed = len(letters) + int((letters[1:] == letters[:-1]).sum())
            if (there := int(pieces(torch.tensor(length)))) < needed:
                raise ValueError(
                    f"A sound of {length / self.listener.sampling_rate:.2f} seconds, {there} pieces for the model, is "
                    f"too short for its text, which needs {needed}: is it the right text? Remove the row, or cut "
                    "the text."
                )


def _plain(text: object) -> str:
    """Letters without case, and single spaces."""
    return " ".join(str(text).lower().split())


def _tokenizer(given: Given, facts: dict[str, Any]) -> Any:
    """Letters as numbers: by the vocabulary of the transcripts, or that of the tokenizer that was named."""
    if facts["letters"] is None:
        return processor_of(given.loaded, "AutoTokenizer", given.trained)
    library = transformers_library(given.loaded)
    with tempfile.TemporaryDirectory() as folder:
        # It is read from a file alone.
        path = Path(folder) / "vocab.json"
        path.write_text(json.dumps({letter: number for number, letter in enumerate(facts["letters"])}))
        return library.Wav2Vec2CTCTokenizer(
            str(path), unk_token=_UNKNOWN, pad_token=_PAD, word_delimiter_token=_SPACE, bos_token=None, eos_token=None
        )


def _facts(given: Given) -> dict[str, Any]:
    data, rows = given.loaded.experiment.data, given.train
    wanted = data.text if isinstance(data.text, str) else None
    if data.text is not None and wanted is None:
        raise given.loaded.error(("data", "text"), "one column: that of the sound.")
    sound = pick_column(given.loaded, "text", wanted, rows, _SOUNDS, "the sound")
    target = pick_column(given.loaded, "target", data.target, rows, _TEXTS, "what is said")
    expect_something(rows[target], target)
    letters = sorted({letter for text in rows[target] for letter in _plain(text)} - {" ", _SPACE})
    if not letters:
        raise given.loaded.error(("data", "target"), f"all texts in {target!r} are empty.")
    return {
        "sound": sound,
        "target": target,
        "letters": None if given.loaded.experiment.model.tokenizer else [_PAD, _UNKNOWN, _SPACE, *letters],
        "dropped": [name for name in columns_of(rows) if name not in (sound, target)],
    }


def _texts(letters: Any, predictions: Any) -> list[str]:
    """Repeated letters are one, and pauses none."""
    return [letters.decode(row[row >= 0]).strip() for row in np.asarray(predictions)]


def _wanted(letters: Any, labels: Any) -> list[str]:
    return [letters.decode(row[row >= 0], group_tokens=False).strip() for row in np.asarray(labels)]
