from __future__ import annotations

from cos2p.costs.tape import Moment, Op, Recomputed, walk


def test_walk_finds_the_worst_moment_of_forward_and_backward() -> None:
    first, second = Op(kept=4, grown=1, forward=1, backward=2), Op(kept=2, grown=3, forward=5, backward=1)
    # forward: 4+1, then 4+2+5 = 11; backward: 4+2+1 kept and 3 grown, then 4+2 kept and 3+1 grown
    assert walk([first, second]) == Moment(activations=11, gradients=0)
    assert walk([first, Op(kept=2, grown=9)]) == Moment(activations=6, gradients=10)


def test_walk_over_micro_batches_holds_all_gradients_and_the_one_that_arrives() -> None:
    # forward: 4 kept + 1, all 9 gradients held; backward: 4 kept + 2 + the arriving 9
    assert walk([Op(kept=4, grown=9, forward=1, backward=2)], "accumulated") == Moment(activations=15, gradients=9)


def test_walk_with_steps_in_backward_holds_the_gradient_of_one_op() -> None:
    first, second = Op(kept=4, grown=9, backward=2), Op(kept=2, grown=3, backward=1)
    # backward: 4+2+1 kept and 3 grown, gone with it; then 4+2 kept and 9 grown
    assert walk([first, second], "stepped") == Moment(activations=6, gradients=9)


def test_what_is_recomputed_keeps_its_input_and_is_inside_memory_one_at_a_time() -> None:
    block = Recomputed((Op(kept=10, grown=1, forward=2, backward=3), Op(kept=20)), kept=4, forward=7, arriving=5)
    # Forward: 4+7, then 8+7. Backward: both inputs and 10, 30 of the upper block with the gradient that arrived.
    assert walk([block]) == Moment(activations=4 + 5 + 10 + 20, gradients=0)
    assert walk([block, block]) == Moment(activations=4 + 4 + 5 + 10 + 20, gradients=0)
    # The lower block runs again when the upper one has left its gradients, unless these were stepped with.
    heavy = Recomputed((Op(kept=10, grown=9),), kept=4, forward=0, arriving=1)
    assert walk([heavy, heavy]) == Moment(activations=4 + 10, gradients=18)
    assert walk([heavy, heavy], "stepped") == Moment(activations=4 + 4 + 10, gradients=9)
