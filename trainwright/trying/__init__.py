"""``trainwright try``: run a Hugging Face script a few steps on transformers' loop and on ours, and compare."""
