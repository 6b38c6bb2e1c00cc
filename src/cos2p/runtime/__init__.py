"""A run: the coordinator's decisions, the server that carries them out with tensors, and the sessions that drive it.

    decisions ──► coordinator ──► server ──► session ─┬─► simulation (virtual time, `workers`)
                                                      └─► fleet.server.driver (a network)

`world` makes a run's parts from a recipe, `judge` has its model evaluated, `run_folder` keeps what it leaves behind,
`run` is the whole of a simulated one. Decisions touch neither clock nor file nor tensor; the server touches no clock
and no file. Nothing here knows of networks, terminals or pages.
"""
