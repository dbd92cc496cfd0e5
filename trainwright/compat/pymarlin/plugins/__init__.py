"""PyMarlin's plugins: a task of text from a YAML file to a Trainer. They need transformers."""

from trainwright.compat.pymarlin.plugins.base import Plugin
from trainwright.compat.pymarlin.plugins.hf_ner import HfNERPlugin
from trainwright.compat.pymarlin.plugins.hf_seq2seq import HfSeq2SeqPlugin
from trainwright.compat.pymarlin.plugins.hf_seq_classification import HfSeqClassificationPlugin
from trainwright.compat.pymarlin.plugins.plugin_module_interface import PluginModuleInterface

__all__ = ["HfNERPlugin", "HfSeq2SeqPlugin", "HfSeqClassificationPlugin", "Plugin", "PluginModuleInterface"]
