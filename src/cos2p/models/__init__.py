"""One elastic transformer: its shape, its tensors, which part of it is meant, and Hugging Face checkpoints in and out.

Stands on nothing but errors, settings and named randomness; everything about weights stands on it.
"""
