"""One dial: how much memory a device has. That decides what it trains, and how, before anything is allocated.

    tasks     what a method is built from and what it assigns; `make_order`: the one way from there to an order
    parts     what of a model a device may train, and why one is preferred to another
    ways      how a task is made to fit, the quickest way first
    planning  the part of every device: the first that fits of those that its method offers
    plan      the result as a plain value, with what it takes and why
    check     the refusal of what does not fit, with what to change

The ledger itself, bytes and FLOPs from a model's shape alone, is in `costs`.
"""
