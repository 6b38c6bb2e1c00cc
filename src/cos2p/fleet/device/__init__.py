"""A device's side of a real fleet: its data and its training process. Most of it runs without torch."""
