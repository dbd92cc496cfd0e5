"""Tiny models that look, hear and read, and files for them, written as if they had been downloaded and collected."""

from __future__ import annotations

import json
import math
import struct
import wave
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from PIL import Image

from tests.experiment.tiny import tokenizer_folder

RATE = 4000
#: How high each letter sounds.
TONES = {"a": 300.0, "b": 700.0, "c": 1200.0}
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def clip(folder: Path) -> Path:
    torch.manual_seed(0)
    size = len(tokenizer_folder(folder))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = tf.CLIPConfig(
        text_config={
            **sizes,
            "vocab_size": size,
            "max_position_embeddings": 16,
            "eos_token_id": 2,
            "bos_token_id": 1,
            "pad_token_id": 0,
        },
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    tf.CLIPModel(config).save_pretrained(str(folder))
    tf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def pictures(folder: Path, count: int = 36) -> Path:
    """Pictures of one colour with a judgement: the label names both, so each alone says half of it."""
    (folder / "pictures").mkdir(parents=True)
    names, lines = list(COLOURS), []
    for number in range(count):
        shown, said = names[number % 3], ["good", "bad"][(number // 3) % 2]
        Image.new("RGB", (20 + number % 5, 24), COLOURS[shown]).save(folder / "pictures" / f"{number}.png")
        # CLIP reads up to the token of the highest number, here "is".
        caption = f"{said} film is"
        lines.append({"image": f"pictures/{number}.png", "caption": caption, "label": f"{said} {shown}"})
    return written(folder / "pictures.jsonl", lines)


def wav2vec(folder: Path) -> Path:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_feat_extract_layers": 2}
    config = tf.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16, 32),
        conv_kernel=(40, 10),
        conv_stride=(20, 5),
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.0,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        activation_dropout=0.0,
        vocab_size=8,
        **settings,
    )
    tf.Wav2Vec2ForCTC(config).save_pretrained(str(folder))
    listener = tf.Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True)
    listener.save_pretrained(str(folder))
    return folder


def sounds(folder: Path, count: int = 24, *, rate: int = RATE) -> Path:
    """Words of three letters, each letter a tone."""
    (folder / "sounds").mkdir(parents=True)
    lines = []
    for number in range(count):
        word = "".join("abc"[(number // 3**place + place * number) % 3] for place in range(2 + number % 2))
        save_sound(folder / "sounds" / f"{number}.wav", word, rate)
        lines.append({"audio": f"sounds/{number}.wav", "text": word.upper() if number % 2 else word})
    return written(folder / "sounds.jsonl", lines)


def save_sound(path: Path, word: str, rate: int = RATE, *, width: int = 2, channels: int = 1) -> None:
    values: list[float] = []
    for letter in word:
        length = round(0.15 * rate)
        values += [0.5 * math.sin(2 * math.pi * TONES[letter] * place / rate) for place in range(length)]
        values += [0.0] * (length // 3)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(b"".join(_packed(value, width) * channels for value in values))


def _packed(value: float, width: int) -> bytes:
    whole = round(value * (2 ** (8 * width - 1) - 1))
    return struct.pack("B", whole + 128) if width == 1 else struct.pack("<i", whole)[:width]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
