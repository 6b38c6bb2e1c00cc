"""A run: sessions that drive the server, and what they leave behind.

    server ◄── session ─┬─ simulation (virtual time, `workers`)
                        └─ fleet.server.driver (a network)

`run_setup` makes a run's parts from a recipe, `evaluations` has its model evaluated, `run_folder` keeps what it leaves behind,
`run` is the whole of a simulated one. Nothing here knows of networks, terminals or pages.
"""
