"""Batches in a known order: samplers, collators, columns and loaders.

Start with ``loader``: it shows how an order (``order``), its batches (``batches``) and a collator (``collators``) come
together.
"""
