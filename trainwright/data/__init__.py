"""Batches in a known order: samplers, collators, columns and loaders; and the way back to any place in them.

Start with ``loader``: it shows how an order (``order``), its batches (``batches``) and a collator (``collators``) come
together. ``feed`` groups the batches by optimizer step and knows where in the data a run stands (``position``,
``streams``). What data draws at random is the business of ``seeding``; worker processes are that of ``workers``.
"""
