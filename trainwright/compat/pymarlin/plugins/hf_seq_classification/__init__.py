"""PyMarlin's plugin for texts, or pairs of texts, to one of several labels or to a number."""

from trainwright.compat.pymarlin.plugins.hf_seq_classification.implementation import HfSeqClassificationPlugin

__all__ = ["HfSeqClassificationPlugin"]
