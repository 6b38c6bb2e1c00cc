"""How updates become the next version of the model: tensors alone.

`weights` says how much an update counts, `merge` adds updates up and makes the next version, `head_merge` computes
heads from statistics, `robust` and `privacy` stand between updates and merge. `triggers` says when a round closes,
`settings` is the recipe's [schedule]. A method with a merge of its own derives it from `Merge`.

Builds on models, submodel and training; knows neither clients nor rounds, neither clock nor network, nor any method.
"""
