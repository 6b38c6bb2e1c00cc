"""The server's tensors: from an update that comes in to the next version of the model.

A weight's way: `admission` lets an update in or says why not, `weights` says how much it counts, `merge` adds it up and
makes the next version, `versions` keeps those still in flight. `triggers` and `rules` say when a round closes,
`settings` is the recipe's [schedule]. A method with a merge of its own derives it from `Merge` and keeps it beside its
other half in `methods`.

Builds on models, submodel and training; knows neither clock nor network, nor any method.
"""
