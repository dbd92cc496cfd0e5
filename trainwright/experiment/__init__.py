"""Experiments: from a YAML file to a Trainer, with models, data and tasks by name."""
