"""PyMarlin's plugin for named entities: a label for each word."""

from trainwright.compat.pymarlin.plugins.hf_ner.implementation import HfNERPlugin

__all__ = ["HfNERPlugin"]
