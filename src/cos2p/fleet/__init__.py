"""A real fleet: the second driver of the server, next to the simulator. No decision is taken here.

    server/   one run at the server: what the network says becomes events, the server's effects become tasks
    device/   one device: its data, and a training process with a hard memory cap
    admin/    the person who starts runs: kits, submitting, following, status
    nvflare/  the adapter: all that knows NVFlare

What several of them need lies here: a machine's folder (`kit`), frames (`wire`), payloads on disk (`spool`), what a
device says (`messages`). Only `nvflare/` imports NVFlare.
"""
