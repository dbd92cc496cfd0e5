"""A training step on tensors without numbers, to know beforehand how much memory a real one takes."""
