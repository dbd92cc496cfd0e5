"""Conversations: read in the shapes people keep them in, rendered by the model's own template, masked and proven."""
