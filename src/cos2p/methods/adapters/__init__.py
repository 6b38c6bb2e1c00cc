"""Low-rank adapters on a streamed base, for the methods that train some: `fedlora`, `fedra`, and, with rank 0, a head.

`factors` are the tensors, `model` runs them, `device` is the trainer, `costs` what it costs, `merge` the server's half.
"""
