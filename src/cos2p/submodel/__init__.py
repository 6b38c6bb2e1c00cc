"""Which part of the model a device trains, and how tensors are cut out and put back.

`rates` says how large (R_n in blocks, heads and units) and which blocks, `coverage` what that adds up to;
`slicing` cuts weights out and scatters them back, `segments` sums over heads and units, `kernels` are the loops below.

Builds on models alone. Everything about training, merging and methods is above it.
"""
