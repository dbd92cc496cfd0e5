"""The Hugging Face-shaped front door."""

from trainwright.trainer.seq2seq import Seq2SeqTrainer
from trainwright.trainer.trainer import Trainer

__all__ = ["Seq2SeqTrainer", "Trainer"]
