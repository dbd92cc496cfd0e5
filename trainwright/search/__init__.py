"""Searching for the best settings or the best model: many trainings of one experiment, chosen by Optuna."""
