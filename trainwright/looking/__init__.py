"""Before a training: what the model will see, how large it is, and which learning rate it takes."""
