"""Language models on a device: the tokens that count alone pass the output table, and it is read in parts."""

from __future__ import annotations

from torch import Tensor

from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.output_table import SMALL, cross_entropy_in_parts
from cos2p.training.distillation import IGNORED


def reads_in_parts(model: ElasticTransformer) -> bool:
    """Whether a loss can be taken without whole logits: of one exit, which nobody learns from."""
    plain = type(model).forward is ElasticTransformer.forward and type(model).run_exit is ElasticTransformer.run_exit
    language = model.config.task == "language-modeling"
    return language and plain and len(model.spec.exits) == 1 and model.outputs > SMALL


def loss_of_tokens(
    model: ElasticTransformer, inputs: Tensor, labels: Tensor, features: Tensor | None, lambda2: float = 0.0
) -> Tensor:
    """What `exits_loss` gives for one exit, from the tokens alone that have a label."""
    places = (labels.flatten() != IGNORED).nonzero().squeeze(1)
    (rows_nD,) = model.rows_at(places, inputs, features)
    if len(rows_nD) == 0:
        return rows_nD.sum()
    table = model.table
    assert table is not None
    loss = cross_entropy_in_parts(rows_nD, table, model.targets(labels).flatten()[places])
    return (1 - lambda2) * loss if lambda2 > 0 else loss
