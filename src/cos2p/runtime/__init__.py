"""A run: sessions that drive the server, and what they leave behind.

    server ◄── session ─┬─ simulation (virtual time, `workers`)
                        └─ fleet.server.driver (a network)

`run_setup` makes a run's parts from a recipe, `evaluation` scores its model, `run_folder` keeps its files,
`run` is the whole of a simulated one. Nothing here knows of networks, terminals or pages.
"""
