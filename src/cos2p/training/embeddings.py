"""How much of the token tables a device has, and whether they train: `training.embeddings`.

    rows     only the rows of tokens that occur in its data are sent, held, trained and sent back
    frozen   the same rows are sent, and stay as they are; so do positions, patches and whatever else is embedded
    whole    all rows are sent, held and trained

A row is a segment like a head or a unit: it is merged over those who hold it, and one that nobody holds stays bitwise.
The output table of a language model is cut to the same rows: a device's softmax is over the tokens that occur in its
data, a token that does not is no class there, and its logit is neither raised nor lowered. Which tokens these are is a
device's own knowledge: of its training and its test part, so that both are computed as with the whole table, and the
one that fills up short texts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from cos2p.costs.shape import WHOLE, Tables
from cos2p.data.examples import Examples
from cos2p.data.ragged import Ragged
from cos2p.errors import TrainingError
from cos2p.models.config import ModelConfig
from cos2p.models.spec import SubmodelSpec, from_bits, to_bits
from cos2p.training.shard import Shard

Embeddings = Literal["rows", "frozen", "whole"]


def token_rows(shard: Shard, embeddings: Embeddings, pad_token: int = 0) -> str:
    """The tokens of a device's data as bits (`models.spec.to_bits`); empty if nobody needs to know: of images, or
    where tables stay whole."""
    if embeddings == "whole" or not shard.train.is_text:
        return ""
    return to_bits(_used(shard, pad_token).tolist())


def cut_tables(spec: SubmodelSpec, config: ModelConfig, embeddings: Embeddings, rows: str) -> SubmodelSpec:
    """The spec with the rows that a device has said it needs. One that names rows itself keeps them."""
    if embeddings == "whole":
        return spec
    if rows and spec.rows is None and config.vocab:
        held = from_bits(rows)
        spec = replace(spec, rows=held if len(held) < config.vocab else None)
    return replace(spec, fixed_embeddings=True) if embeddings == "frozen" else spec


def held_tables(config: ModelConfig, embeddings: Embeddings, rows: str) -> Tables:
    """The tables that `cut_tables` leaves, in numbers."""
    if embeddings == "whole":
        return WHOLE
    count = len(from_bits(rows)) if rows and config.vocab else config.vocab
    return Tables(count if count < config.vocab else None, fixed=embeddings == "frozen")


def check_rows(spec: SubmodelSpec, shard: Shard) -> None:
    """TrainingError if the shard has a token whose row is not among those of the task."""
    if spec.rows is None:
        return
    used, rows = _used(shard), torch.tensor(spec.rows, dtype=torch.int64)
    missing = used[~torch.isin(used, rows)]
    if len(missing):
        raise TrainingError(
            f"the task has {len(rows)} rows of the token table, but not those of {len(missing)} tokens in the device's "
            f"data, {int(missing[0])} among them; its data changed since it joined: let it join again"
        )


def _used(shard: Shard, pad_token: int | None = None) -> Tensor:
    """All ids that the model will be asked for, ascending."""
    parts = [part for part in (shard.train, shard.test) if len(part)]
    padding = {part.pad_id for part in parts} | {pad_token}
    found = [_ids(part) for part in parts]
    ids = torch.cat([*found, torch.tensor([pad for pad in padding if pad is not None], dtype=torch.int64)])
    different: Tensor = ids.unique()
    return different


def _ids(part: Examples) -> Tensor:
    """The different ids of its texts, and of what a language model shall answer."""
    if isinstance(part.inputs, Ragged):
        return part.inputs.different()
    assert isinstance(part.inputs, Tensor)
    ids = part.inputs.unique()
    return torch.cat((ids, part.labels[part.labels >= 0].unique())) if part.labels.ndim == 2 else ids
