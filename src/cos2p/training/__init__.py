"""The device: what is done with a task, and what that will cost. Nothing here knows the server or a method by name.

A weight's way: `prefix` runs the frozen part once, `masks` choose the width, `trainer` has the one loop over epochs
with `distillation` between the exits, `evaluation` tests the personal submodel, `trainer` again says what goes back.
`submodel_trainer` is the trainer of Co-S²P and of every method that only chooses a submodel; others derive from
`Trainer` in `methods`. `settings` travel with every task, `costs` are computed from it beforehand, `shard` is the
device's data and `label_skew` what is done about its labels.

Builds on models, submodel, costs, numerics and data; used by aggregation (what may come back), devices, methods.
"""
