"""The server of a run: its decisions, and what it does with tensors. No clock, socket or file.

    protocol       what the server gets as news, and what it wants done (effects)
    coordinator    news → effects: who gets a task, when a round closes; names and numbers only
    rules          how a run goes, from the schedule and the method
    orders         a task for a client, until it is answered, and the versions that tasks were cut from
    update_reader  bytes → an update that answers its task, every value checked
    aggregator     accepted updates → the next version; with robust filter and privacy
    server         all of them together: what the drivers call
    client_cache   what each client has kept of the frozen parts

Two drivers feed the same server: `runtime.simulation` in virtual time, `fleet.server` over a network.
"""
