"""PyMarlin's plugin for texts to texts: summaries, translations."""

from trainwright.compat.pymarlin.plugins.hf_seq2seq.implementation import HfSeq2SeqPlugin

__all__ = ["HfSeq2SeqPlugin"]
