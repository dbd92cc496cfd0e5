"""What must not change a training is changed, on the user's own model and data, and the difference measured."""
