"""`fedrolex-official` against AIoT-MLSys-Lab/FedRolex: which entries a device holds in a round, and the average.

Two commits are needed. At 704079d the transformer server rolls but throws its average away (the assignment is commented
out); at 3f1485e it keeps the average but does not roll (that is commented out). `combine` differs in nothing else.

Different on purpose: the step, one entry a round there, `turns` in a run here (`step = "official"` is theirs); no
masking of labels that a device lacks, so here every device owns all labels. `fedrolex` (heads and units) shares the
rule, a rolling window and the average over holders, but not these slices.
"""

from __future__ import annotations

from typing import Any

import pytest

from cos2p.methods import build_method
from cos2p_rivals.fedrolex_official import FedRolexOfficial
from cos2p_rivals.heterofl.cut import scaled_cut
from tests.official.case import fixture
from tests.official.thin_case import assert_combined, assert_index_lists, our_config
from tests.tiny import context

OFFICIAL = fixture("fedrolex")
CONFIG = our_config(OFFICIAL["model"])


def shift(round: int) -> tuple[int, int, int]:
    method = build_method({"name": "fedrolex-official", "step": "official"}, context(CONFIG, rates=(0.5,)))
    assert isinstance(method, FedRolexOfficial)
    return method.shift(round)


@pytest.mark.parametrize("case", OFFICIAL["index_lists"], ids=lambda case: f"round {case['round']}")
def test_the_entries_of_every_tensor(case: dict[str, Any]) -> None:
    for rate, lists in zip(OFFICIAL["rates"], case["clients"], strict=True):
        assert_index_lists(CONFIG, scaled_cut(CONFIG, rate, shift(case["round"])), lists)


def test_the_average_over_holders() -> None:
    combine = OFFICIAL["combine"]
    parts = [scaled_cut(CONFIG, rate, shift(combine["round"])) for rate in combine["combine_rates"]]
    assert_combined(CONFIG, OFFICIAL["names"], parts, combine["after"])
