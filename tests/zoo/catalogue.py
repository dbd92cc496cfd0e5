"""Tiny random models of many transformers architectures, of a few thousand weights each, dropout off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf

from tests.zoo.rows import (
    VOCABULARY,
    Row,
    captioned,
    choices,
    classified,
    heard,
    masked,
    paired,
    pictures,
    questions,
    segmented,
    sounds,
    spoken,
    tagged,
    transcribed,
    translated,
    unmasked,
    with_return_loss,
)

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER: dict[str, Any] = {**TEXT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IMAGE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SPEECH: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "hidden_dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Entry:
    """One architecture."""

    model: Callable[[], Any]
    rows: Callable[[int], list[Row]]
    #: How closely gradients of one batch and of its rows agree: 1e-9 in float64, 1e-5 where the model works in float32.
    tolerance: float = 1e-9
    #: Why cutting a batch changes this model's loss itself, whoever trains it; None where it does not.
    exception: str | None = None
    collator: Callable[[list[Any]], Any] | None = None


def entry(model: str, config: str, rows: Callable[[int], list[Row]], settings: dict[str, Any], **options: Any) -> Entry:
    """An entry for a class and its configuration, both by name."""

    def build() -> Any:
        torch.manual_seed(0)
        return getattr(tf, model)(getattr(tf, config)(**settings))

    return Entry(build, rows, **options)


FLOAT32 = 2e-5
THREE = {"num_labels": 3}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_positions": 64,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
T5 = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2,
    "dropout_rate": 0.0, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
DISTIL = {
    "vocab_size": VOCABULARY,
    "dim": 16,
    "n_layers": 1,
    "n_heads": 2,
    "hidden_dim": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "qa_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "max_position_embeddings": 64,
}
GEMMA = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
MAMBA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "state_size": 4,
    "num_hidden_layers": 1,
    "expand": 2,
    "conv_kernel": 4,
    "use_mambapy": False,
}
# Grouped matrix products know no float64.
MIXTRAL = {
    **TEXT,
    "experts_implementation": "eager",
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
XLM = {
    "vocab_size": VOCABULARY,
    "emb_dim": 16,
    "n_layers": 1,
    "n_heads": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "max_position_embeddings": 64,
}
XLNET = {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32, "dropout": 0.0}
SEGFORMER: dict[str, Any] = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [7, 3],
    "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16, "num_labels": 3,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
}  # fmt: skip
WHISPER = {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32, "mask_time_prob": 0.0}
WHISPER = {name: value for name, value in WHISPER.items() if name != "max_position_embeddings"}


def segformer() -> Any:
    torch.manual_seed(0)
    model = tf.SegformerForSemanticSegmentation(tf.SegformerConfig(**SEGFORMER))
    with torch.no_grad():
        # Fresh weights give every pixel the same loss, and then it would not matter which are counted.
        model.decode_head.classifier.weight.mul_(1e4)
    return model


def llava() -> Any:
    torch.manual_seed(0)
    vision = tf.CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    text = tf.LlamaConfig(**TEXT, num_key_value_heads=2)
    config = tf.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=VOCABULARY - 1, vision_feature_layer=-1
    )
    return tf.LlavaForConditionalGeneration(config)


def qwen2_audio() -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    audio = tf.Qwen2AudioEncoderConfig(num_mel_bins=8, max_source_positions=10, **sizes)
    config = tf.Qwen2AudioConfig(audio_config=audio, text_config=tf.Qwen2Config(**TEXT, num_key_value_heads=2))
    return tf.Qwen2AudioForConditionalGeneration(config)


def clip() -> Any:
    torch.manual_seed(0)
    text = {**TEXT, "projection_dim": 8}
    vision = {**IMAGE, "projection_dim": 8}
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))


def bert_to_bert() -> Any:
    torch.manual_seed(0)
    config = tf.EncoderDecoderConfig.from_encoder_decoder_configs(tf.BertConfig(**ENCODER), tf.BertConfig(**ENCODER))
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return tf.EncoderDecoderModel(config=config)


CATALOGUE: dict[str, Entry] = {
    "bert-classes": entry("BertForSequenceClassification", "BertConfig", classified, {**ENCODER, **THREE}),
    "distilbert-classes": entry(
        "DistilBertForSequenceClassification", "DistilBertConfig", classified, {**DISTIL, **THREE}
    ),
    "electra-tags": entry(
        "ElectraForTokenClassification",
        "ElectraConfig",
        tagged,
        {**ENCODER, **THREE, "embedding_size": 16},
        tolerance=FLOAT32,
    ),
    "deberta-tags": entry("DebertaV2ForTokenClassification", "DebertaV2Config", tagged, {**ENCODER, **THREE}),
    "albert-masked": entry(
        "AlbertForMaskedLM", "AlbertConfig", masked, {**ENCODER, "embedding_size": 8, "classifier_dropout_prob": 0.0}
    ),
    "roberta-masked": entry("RobertaForMaskedLM", "RobertaConfig", masked, ENCODER),
    "bert-questions": entry("BertForQuestionAnswering", "BertConfig", questions, ENCODER),
    "bert-choices": entry("BertForMultipleChoice", "BertConfig", choices, ENCODER),
    "gpt2": entry("GPT2LMHeadModel", "GPT2Config", spoken, {**GPT2, **QUIET}, tolerance=FLOAT32),
    "gpt-neox": entry("GPTNeoXForCausalLM", "GPTNeoXConfig", spoken, TEXT, tolerance=FLOAT32),
    "opt": entry(
        "OPTForCausalLM",
        "OPTConfig",
        spoken,
        {**TEXT, "ffn_dim": 32, "dropout": 0.0, "word_embed_proj_dim": 16},
        tolerance=FLOAT32,
    ),
    "gemma2": entry("Gemma2ForCausalLM", "Gemma2Config", spoken, GEMMA, tolerance=FLOAT32),
    "qwen3": entry("Qwen3ForCausalLM", "Qwen3Config", spoken, GEMMA, tolerance=FLOAT32),
    "mamba": entry("MambaForCausalLM", "MambaConfig", unmasked, MAMBA, tolerance=FLOAT32),
    "mixtral": entry("MixtralForCausalLM", "MixtralConfig", spoken, MIXTRAL, tolerance=FLOAT32),
    "mixtral-balanced": entry(
        "MixtralForCausalLM",
        "MixtralConfig",
        spoken,
        {**MIXTRAL, "output_router_logits": True, "router_aux_loss_coef": 1.0},
        exception="the auxiliary loss is a product of means over the batch's tokens",
    ),
    "bart-decoder": entry("BartForCausalLM", "BartConfig", spoken, SEQ2SEQ),
    "xlm": entry("XLMWithLMHeadModel", "XLMConfig", spoken, XLM),
    "xlnet": entry("XLNetLMHeadModel", "XLNetConfig", spoken, XLNET),
    "t5": entry("T5ForConditionalGeneration", "T5Config", translated, T5),
    "bart": entry("BartForConditionalGeneration", "BartConfig", translated, SEQ2SEQ),
    "bert-to-bert": Entry(bert_to_bert, translated),
    "vit": entry("ViTForImageClassification", "ViTConfig", pictures, {**IMAGE, **THREE}),
    "convnext": entry(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        pictures,
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 16, **THREE},
    ),
    "resnet": entry(
        "ResNetForImageClassification",
        "ResNetConfig",
        pictures,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], **THREE},
        exception="batch norm: each micro-batch is normalised by its own mean and variance",
    ),
    "segformer": Entry(segformer, segmented, exception="batch norm in the decoder head"),
    "wav2vec2-classes": entry(
        "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", sounds, {**SPEECH, **THREE, "classifier_proj_size": 8}
    ),
    "wav2vec2-ctc": entry(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        transcribed,
        {**SPEECH, "ctc_loss_reduction": "mean", "ctc_zero_infinity": True},
        tolerance=FLOAT32,
    ),
    "wav2vec2-ctc-sum": entry(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        transcribed,
        {**SPEECH, "ctc_loss_reduction": "sum", "ctc_zero_infinity": True},
        exception="the model returns a sum over its samples, not a mean",
    ),
    "whisper": entry("WhisperForConditionalGeneration", "WhisperConfig", heard, WHISPER),
    "qwen2-audio-text-only": Entry(qwen2_audio, spoken),
    "llava": Entry(llava, captioned, tolerance=FLOAT32),
    "clip": Entry(
        clip,
        paired,
        exception="contrastive: every sample of a batch is a negative of the others",
        collator=with_return_loss,
    ),
}
