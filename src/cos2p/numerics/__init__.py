"""Plain mathematics that knows nothing of models: optimisers, learning rates, scores, means with intervals."""
