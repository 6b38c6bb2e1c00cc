"""A trained model in use, from a run folder, a Hugging Face folder or a device's file: predict, evaluate, export."""
