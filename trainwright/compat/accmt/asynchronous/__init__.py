"""``alaunch``: evaluations in processes of their own, while the training goes on."""
