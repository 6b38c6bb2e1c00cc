"""The costs of a submodel before anything is allocated: bytes and FLOPs of each phase of a task, what fits a device.

From the model's shape alone; knows no tensor, no data, no method.
"""
