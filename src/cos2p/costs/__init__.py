"""What a submodel costs before anything is allocated: bytes and FLOPs of every phase of a task, and what fits a device.

From the model's shape alone; knows no tensor, no data, no method.
"""
