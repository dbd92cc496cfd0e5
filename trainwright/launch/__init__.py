"""Starting several processes of one training."""
