"""Does it fit? Which task a device has the memory for, before anything is allocated.

    tasks      what a method is built from and what it assigns; `make_order`: the one way from there to an order
    fit        bytes of a task by its trainer's ledger, the first of several that fits, what to change if none does
    task_plan  all that a device would be given in the course of a run, and the largest of it
    rates      the share of the model that a device can train, from its memory and a wanted time per task

The ledger itself, bytes and FLOPs from a model's shape alone, is in `costs`.
"""
