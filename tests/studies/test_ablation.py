from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cos2p.errors import ConfigError
from cos2p.messages import Order
from cos2p.methods import run_task
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.server.protocol import ClientJoined, Effect, Send
from cos2p.server.server import Server
from cos2p.studies.ablation import OWN_ROWS, PAPER_ROWS, ablation, choose_rows
from cos2p.studies.grid import Row
from cos2p.studies.report import StudyPlan, run_study
from cos2p.tracking.event_kinds import Event
from cos2p.training.client_cache import ClientCache
from cos2p.training.contract import as_it_travels
from tests.studies.fakes import FakeExecute, figures, tiny_base


def test_the_papers_eight_rows_in_its_order() -> None:
    ticks = ["".join("x" if tick == "✓" else "-" for tick in row.facts.values()) for row in PAPER_ROWS]
    # Linear, MSA, self-distillation, semi-asynchronous: the lines of the paper's table.
    assert ticks == ["---x", "--xx", "-xxx", "x-xx", "xx-x", "xxx-", "xx--", "xxxx"]


@pytest.mark.parametrize("row", PAPER_ROWS, ids=lambda row: row.key)
def test_what_a_tick_means(row: Row, tmp_path: Path) -> None:
    recipe = tiny_base(tmp_path).load(row)
    units, heads, distillation, semi = (tick == "✓" for tick in row.facts.values())
    assert recipe.method["masks"]["units"] == ("trainable" if units else "fixed")
    assert recipe.method["masks"]["heads"] == ("trainable" if heads else "fixed")
    assert recipe.method["exits"]["kind"] == ("tiers" if distillation else "none")
    assert recipe.method["name"] == ("cos2p" if semi else "cos2p-sync")
    assert recipe.method["masks"]["epochs"] == 1, "the recipe's own settings stay"


def test_every_row_of_our_own_changes_something_and_can_run(tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    plain = base.load(OWN_ROWS[0])
    already = {"rolling", "at-aggregation", "skew-ignored"}  # the defaults, which the recipe here leaves as they are
    for row in OWN_ROWS[1:]:
        changed = base.load(row)
        assert (changed == plain) == (row.key in already), row.key
        assert changed.method["name"] == "cos2p"
    assert len({row.key for row in (*PAPER_ROWS, *OWN_ROWS)}) == len(PAPER_ROWS) + len(OWN_ROWS)


def test_without_exits_the_top_one_starts_and_ends_as_the_recipe_says(tmp_path: Path) -> None:
    base = tiny_base(tmp_path, "method.exits.finish=discriminant")
    for key in ("no-exits", "no-distillation"):
        (row,) = [row for row in (*PAPER_ROWS, *OWN_ROWS) if row.key == key]
        exits = base.load(row).method["exits"]
        assert (exits["kind"], exits["finish"]) == ("none", "discriminant")


def test_rows_by_group_or_by_name() -> None:
    assert choose_rows("paper") == PAPER_ROWS
    assert choose_rows("all") == (*PAPER_ROWS, *OWN_ROWS)
    assert [row.key for row in choose_rows("units-only, balanced")] == [
        "units-only",
        "all-parts",
        "as-the-recipe",
        "balanced",
    ]
    for wrong in ("no-such-row", ","):
        with pytest.raises(ConfigError, match="known: paper, ours, all, no-masks"):
            choose_rows(wrong)


def test_two_tables_each_with_differences_to_its_full_row(tmp_path: Path) -> None:
    rows = choose_rows("no-masks,no-distillation,no-exits,rescale")
    execute = FakeExecute(lambda cell: figures(0.8 if cell.row in ("all-parts", "as-the-recipe") else 0.7))
    plan = ablation(StudyPlan(tiny_base(tmp_path), (0,), "cos2p ablate"), rows)
    report = run_study(plan, execute, lambda report: None)
    assert [table.name for table in report.tables] == ["paper", "paper-differences", "own", "own-differences"]
    paper, _, own, differences = report.tables
    assert paper.facts == ("units", "heads", "self-distillation", "semi-asynchronous")
    assert own.facts == ("changed",)
    assert own.line("rescale").facts["changed"] == "rescale=true"
    assert differences.line("rescale").figures["top1"].mean == pytest.approx(-0.1)
    # The full method is in both tables, and so is the one without exits: they are run once.
    assert own.line("as-the-recipe").runs == paper.line("all-parts").runs
    assert own.line("no-exits").runs == paper.line("no-distillation").runs
    assert len(execute.cells) == 4


@pytest.mark.parametrize("row", [*PAPER_ROWS, *OWN_ROWS], ids=lambda row: row.key)
def test_every_row_trains_and_its_updates_are_merged(row: Row, tmp_path: Path) -> None:
    run_setup = build_run_setup(tiny_base(tmp_path, "model.depth=4", "data.train_samples=60").load(row))
    server = Server(run_setup.context, run_setup.method(), first_weights(run_setup.recipe, run_setup.config))
    orders = [order for client in run_setup.context.names for order in sent(server.handle(ClientJoined(client)))]
    for order in orders:
        client_cache = ClientCache(tmp_path / "client_cache")
        update, _ = run_task(
            run_setup.config, server.orders.task(order), run_setup.shards[order.client], {}, client_cache
        )
        travelled = as_it_travels(update, order).to_bytes()
        notes = [effect for effect in server.receive(order.client, travelled) if isinstance(effect, Event)]
        assert "merged" in {note.kind for note in notes}, notes
    assert len(orders) == 2


def sent(effects: Sequence[Effect]) -> list[Order]:
    return [effect.order for effect in effects if isinstance(effect, Send)]
