"""What happens to a training, as functions over its two records: ``Setup`` and ``TrainingRun``."""
