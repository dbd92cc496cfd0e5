"""Front doors that only translate: other libraries' interfaces, in front of the one Trainer."""
