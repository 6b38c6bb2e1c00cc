from __future__ import annotations

import io

import pytest
from rich.console import Console

from cos2p.terminal.following import NOTES, PLAIN_LINES, LiveView, budget_text, detail_text, following
from cos2p.terminal.progress import Progress
from cos2p.tracking.event_kinds import Aggregated, Started
from tests.events import event
from tests.terminal.fake_run import Clock, run_events, started


def plain(verbose: bool = False, rounds: int = 30, seconds: float = 3.0) -> list[str]:
    stream, clock = io.StringIO(), Clock()
    with following(Console(file=stream, width=120), verbose, clock) as listener:
        for shown in run_events(rounds):
            clock.now += seconds if shown.kind == "aggregated" else 0.0
            listener(shown)
    return stream.getvalue().splitlines()


def test_without_a_terminal_there_is_one_line_per_round() -> None:
    lines = plain(rounds=30)
    assert lines[0] == "Co-S²P: started, 4 devices"
    assert len(lines) == 1 + 30
    assert lines[10] == (
        "round 10/30 · virtual 1 min 40 s · server 25.0 % after round 9 (best 25.0 %, validation) · clients 50.0 % · "
        "late: nx-1 (τ 10) · about 1 min left"
    )
    assert "\x1b" not in "".join(lines)


def test_what_was_decided_for_the_user_is_told_at_the_start_in_one_line() -> None:
    stream = io.StringIO()
    with following(Console(file=stream, width=20)) as listener:
        listener(event("started", title="FedAvg", devices={}, notes=["model.pooling = 'mean' was chosen\x1b[31m"]))
    assert stream.getvalue().splitlines()[0] == "model.pooling = 'mean' was chosen?[31m"


def test_a_run_over_the_budget_says_so_once() -> None:
    stream = io.StringIO()
    with following(Console(file=stream, width=120)) as listener:
        listener(event("started", title="FedAvg", devices={name: {"memory": 60_000_000} for name in ("a", "b")}))
        for client in ("a", "b"):
            listener(event("dispatched", client=client, task=f"{client}#0", peak_memory=357_000_000))
        for version in (1, 2):
            listener(event("aggregated", 10.0, version=version))
    said = [line for line in stream.getvalue().splitlines() if "budget" in line]
    assert said == ["over the budget: needs 357 MB of 60.0 MB, 2 devices have too little"]


def test_long_runs_write_a_bounded_number_of_lines() -> None:
    assert 30 <= len(plain(rounds=2000)) <= 1 + PLAIN_LINES


def test_fast_rounds_are_thinned_out() -> None:
    """30 rounds of 0.1 s: one line every two seconds."""
    assert len(plain(rounds=30, seconds=0.1)) <= 3


def test_verbose_tells_every_round_and_every_update() -> None:
    lines = plain(verbose=True, rounds=5, seconds=0.1)
    assert len(lines) == 1 + 5 + 3 * 5
    assert lines[1] == "orin-1 merged: blocks 3–4, τ 0, loss 0.750"


def test_a_task_that_trains_nothing_is_told_as_what_it_is() -> None:
    assert detail_text(event("merged", client="pi", window=[2, 2])) == "pi merged: sums of features, τ 0"


@pytest.mark.parametrize(("verbose", "shown"), [(False, NOTES + 1), (True, 50)])
def test_troubles_are_told_but_do_not_flood(verbose: bool, shown: int) -> None:
    stream = io.StringIO()
    with following(Console(file=stream, width=120), verbose) as listener:
        for number in range(50):
            listener(event("refused", 61.0, client=f"pi-{number}", task="", reason="not finite"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == shown
    assert lines[0] == "virtual 1 min 1 s: pi-0 update refused: not finite"


def test_a_hostile_reason_stays_text() -> None:
    stream = io.StringIO()
    with following(Console(file=stream, width=120)) as listener:
        listener(event("refused", 0.0, client="[red]pi[/red]", task="", reason="\x1b[2J\nerror: gone"))
    assert stream.getvalue() == "virtual 0 s: [red]pi[/red] update refused: ?[2J?error: gone\n"


def test_on_a_fleet_the_time_is_the_clocks_and_what_holds_it_up_is_told() -> None:
    stream = io.StringIO()
    with following(Console(file=stream, width=120)) as listener:
        listener(event("waiting", 0.0, reason="no device is connected yet"))
        listener(event("dispatched", 1.0, client="pi", version=0))
        listener(event("unfit", 2.0, client="pi-2", reason="its data have 3 classes, the model 10"))
        listener(event("lowered", 3.0, client="pi", was=0.5, rate=0.25, memory=1))
    assert stream.getvalue().splitlines() == [
        "waiting: no device is connected yet",
        "after 2 s: pi-2 cannot take part: its data have 3 classes, the model 10",
        "after 3 s: pi gets a smaller submodel: R 0.5 → 0.25",
    ]


def draw(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=120, legacy_windows=False)
    with console.capture() as capture:
        console.print(view.draw())
    return capture.get()


def test_the_live_view_shows_bar_scores_and_who_is_late() -> None:
    clock = Clock()
    view = LiveView(Console(file=io.StringIO(), force_terminal=True), Progress(clock))
    clock.now += 7
    assert draw(view) == "loading the data, starting the workers · 7 s\n"
    for shown in list(run_events(rounds=10))[:-1]:
        if isinstance(shown, Aggregated) and shown.version == 6:
            break
        clock.now += 4 if isinstance(shown, Aggregated) else 0
        view(shown)
    head, scores, trouble = draw(view).splitlines()
    assert head.startswith("Co-S²P ━━━")
    assert "round 5/10" in head
    assert "27 s · about 20 s left" in head
    assert scores == "virtual 1 min · server 35.0 % (best 35.0 %, validation) · clients 50.0 %"
    assert trouble == "late: nx-1 (τ 5)"


def test_in_a_terminal_the_view_is_live_and_disappears() -> None:
    stream = io.StringIO()
    with following(Console(file=stream, force_terminal=True, width=120, _environ={})) as listener:
        assert isinstance(listener, LiveView)
        listener(started(rounds=2))
        listener(event("failed", 3.0, client="pi-1", task="", reason="the loss became nan"))
        listener.live.refresh()
    shown = stream.getvalue()
    assert "round 0/2" in shown
    assert "pi-1 task failed: the loss became nan" in shown
    assert shown.endswith("\x1b[2K")  # the last thing it does is to wipe its lines


def test_a_dumb_terminal_gets_plain_lines() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, _environ={"TERM": "dumb"})
    with following(console) as listener:
        listener(started(rounds=2))
    assert stream.getvalue() == "Co-S²P: started, 4 devices\n"


def test_who_could_train_the_whole_model_is_told_where_not_all_can() -> None:
    def words(full: int | None, *memories: int) -> str | None:
        devices = {str(i): {"memory": memory} for i, memory in enumerate(memories)}
        facts = {"recipe": "r", "method": "cos2p", "seed": 0, "rounds": 1, "updates": None, "model": {}}
        return budget_text(Started(**facts, full_memory=full, devices=devices))  # type: ignore[arg-type]

    assert words(25_600_000, 8_000_000, 12_000_000) == (
        "the whole model takes 25.6 MB to train, the devices have 8.00 MB to 12.0 MB: none of them could alone"
    )
    assert words(10_000_000, 8_000_000, 12_000_000, 12_000_000) == (
        "the whole model takes 10.0 MB to train, the devices have 8.00 MB to 12.0 MB: 2 of them could alone"
    )
    assert words(10, 10, 20) is None
    assert words(None, 10) is None
