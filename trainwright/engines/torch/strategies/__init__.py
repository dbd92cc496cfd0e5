"""How torch spreads a model over the processes of a run; private to the torch engine.

``base`` leaves it as it is, ``ddp`` keeps a copy in every process, ``fsdp`` keeps a part of every parameter in each.
"""
