"""The device: what is done with a task, and what that will cost. Nothing here knows the server or a method by name.

A weight's way: `prefix` runs the frozen part once, `masks` choose the width, `trainer` has the one loop over epochs,
`evaluation` tests the personal submodel, `trainer` again says what goes back. `settings` travel with every task,
`contract` and `costs` are computed from it beforehand, `shard` is the device's data.
"""
