from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.costs.fitting import make_spec
from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Task
from cos2p.methods import make_contract, run_task
from cos2p.models.layout import Weights, init_weights
from cos2p.testing.gpu import peak_allocated
from cos2p_rivals.qvit.device import QuantSettings
from cos2p_rivals.qvit.model import QuantTransformer, build_quant, first_tensors, step_table
from cos2p_rivals.qvit.quantizers import UNSET, from_codes, on_grid, unpack_codes, weight_codes
from cos2p_rivals.qvit.teacher import Teacher, ask, gram, gram_distance
from cos2p_rivals.qvit.wire import code_bits, code_shapes, quant_table, step_name
from tests.runtime.played import check_update
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, shard

SPEC = SubmodelSpec.full(VIT)


def quant_order(spec: SubmodelSpec = SPEC, lr: float = 5e-3, **settings: Any) -> Order:
    local = QuantSettings.model_validate({"epochs": 2, "batch": 4, "lambda2": 0.0, **settings})
    return Order("pi-1", "pi-1#0", 0, 0, 0, 7, "qvit", local.model_dump(mode="json"), lr, spec)


def weights_of(config: ModelConfig = VIT, bits: int = 8) -> Weights:
    return {**init_weights(config, 0), **first_tensors(config, (bits,))}


def task(given: Order, config: ModelConfig = VIT) -> Task:
    return Task(given, make_contract(config, given).sent(weights_of(config, given.settings["bits"])))


def loaded(bits: int, spec: SubmodelSpec = SPEC, weights: Weights | None = None, **kwargs: Any) -> QuantTransformer:
    held = make_contract(VIT, quant_order(spec, bits=bits)).sent(weights or weights_of(bits=bits))
    model = QuantTransformer(VIT, spec, bits, **kwargs)
    model.load({name: tensor.clone() for name, tensor in held.items()})
    return model


def set_up(model: QuantTransformer, inputs: Tensor) -> QuantTransformer:
    model.train()
    model.see_weights()
    with torch.no_grad():
        model(inputs)
    return model.eval()


def test_the_table_names_every_parameter_beside_the_model() -> None:
    model = loaded(4)
    side = {n: tuple(p.shape) for n, p in model.named_parameters() if n.startswith("qvit.")}
    table = quant_table(VIT, 4, SPEC)
    assert side == {name: entry.shape for name, entry in table.items()}
    spec = make_spec(VIT, 0.5, ratio=0.0)
    small = loaded(4, spec)
    for name, entry in quant_table(VIT, 4, spec).items():
        assert tuple(small.get_parameter(name).shape) == entry.compact(VIT, spec), name
    assert {step_name(n, 4) for n in code_shapes(VIT, SPEC)} <= table.keys()
    assert set(model.weight_steps()) == code_shapes(VIT, SPEC).keys()


def test_eight_bits_are_close_to_full_precision_and_two_are_not() -> None:
    inputs = random_inputs(VIT, 1, 8)
    away = {}
    for bits in (8, 2):
        model = set_up(loaded(bits), inputs)
        with torch.no_grad():
            rounded = model(inputs)[0]
            model.quantized = False
            exact = model(inputs)[0]
        away[bits] = float((rounded - exact).norm() / exact.norm())
    assert away[8] < 0.35  # LSQ's first steps spend most of the range on outliers; training narrows them
    assert away[2] > 2 * away[8]


def test_every_matrix_of_a_block_is_on_its_grid() -> None:
    model = set_up(loaded(3), random_inputs(VIT, 1))
    for name, (step, bits) in model.weight_steps().items():
        rows = step(model.get_parameter(name), bits).detach().flatten(1)
        assert max(len(row.unique()) for row in rows) <= 2**bits, name
        assert bits == (3 if name.startswith("blocks.") else 8)


def test_queries_and_keys_are_normed_before_they_are_quantised() -> None:
    model = loaded(8)
    model.quantized = False
    with torch.no_grad():
        model(random_inputs(VIT, 1))
    assert len(model.seen) == VIT.depth
    for q, k in model.seen:
        for x in (q, k):
            torch.testing.assert_close(x.mean(-1), torch.zeros(x.shape[:-1]), atol=1e-5, rtol=0.0)
            torch.testing.assert_close(x.var(-1, unbiased=False), torch.ones(x.shape[:-1]), atol=2e-2, rtol=0.0)


def test_the_attention_is_quantised_without_a_sign_and_scales_with_the_kept_share() -> None:
    spec = make_spec(VIT, 0.5, ratio=0.0)
    model = loaded(8, spec, rescale=True)
    model.quantized = False
    inputs = random_inputs(VIT, 1)
    with torch.no_grad():
        training = model.train()(inputs)[0]
        without = model.eval()(inputs)[0]
        model.fold_rescale()
        folded = model(inputs)[0]
    torch.testing.assert_close(training, folded)
    assert not torch.allclose(training, without)


def test_a_block_without_segments_adds_its_biases() -> None:
    spec = make_spec(VIT, 0.03, ratio=0.0)
    assert any(not keep.heads for keep in spec.window)
    update, _ = run_task(VIT, task(quant_order(spec, bits=2)), shard(VIT), {})
    assert torch.isfinite(torch.tensor(update.report["loss"]))


# ---------------------------------------------------------------- the teacher


def test_the_teacher_is_the_model_as_it_came_in_full_precision() -> None:
    data = shard(VIT)
    model = loaded(2)
    model.train()
    teacher = ask(model, data, batch=4, remember=True)
    model.quantized = False
    with torch.no_grad():
        said = model(data.inputs(data.train, slice(None)))[0].argmax(-1)
    assert torch.equal(teacher.answers, said)
    assert teacher.accuracy == pytest.approx(float((said == data.train.labels).float().mean()))
    torch.testing.assert_close(teacher.queries[1], model.seen[1][0].half())
    assert not ask(model, data, 4, remember=False).queries


def test_gram_matrices_are_normed_and_equal_ones_have_no_distance() -> None:
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    norms = torch.linalg.vector_norm(gram(x), dim=(-2, -1))
    torch.testing.assert_close(norms, torch.ones(2, 3))
    same = [(x.clone().requires_grad_(), x)]
    distance = gram_distance(same, [(x, x)])
    distance.backward()
    assert distance.item() == 0.0
    assert torch.isfinite(same[0][0].grad).all()  # type: ignore[arg-type]
    assert float(gram_distance([(x, x)], [(x.flip(2), x)])) > 0
    torch.testing.assert_close(gram(3 * x), gram(x))


def test_a_hand_computed_gram_distance() -> None:
    """One head, two tokens of size 1: x·xᵀ of (1, 0) is [[1,0],[0,0]], of (0, 1) is [[0,0],[0,1]]; √2 apart."""
    one, two = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1), torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    assert float(gram_distance([(one, one)], [(two, one)])) == pytest.approx(2**0.5)


@pytest.mark.parametrize("trust", ["accuracy", "full"])
def test_a_teacher_that_is_always_wrong_teaches_only_if_it_is_trusted(
    trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = []
    for answers in (0, 1):

        def wrong(model: QuantTransformer, data: Any, batch: int, remember: bool, answers: int = answers) -> Any:
            return Teacher(torch.full((len(data.train),), answers), [], [], 0.0)

        monkeypatch.setattr("cos2p_rivals.qvit.device.ask", wrong)
        update, _ = run_task(VIT, task(quant_order(trust=trust, dgd=0.0)), shard(VIT), {})
        deltas.append(update.delta["exits.4.linear.bias"])
    assert torch.equal(deltas[0], deltas[1]) == (trust == "accuracy")


# ---------------------------------------------------------------- what travels


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_what_codes_tell_and_what_stays_on_the_device_is_what_was_trained(bits: int) -> None:
    given = quant_order(make_spec(VIT, 0.5, ratio=0.0), bits=bits, rescale=True)
    sent = task(given)
    update, memory = run_task(VIT, sent, shard(VIT), {})
    exact, _ = run_task(VIT, task(_with(given, wire="float32")), shard(VIT), {})  # the same training
    shapes = code_shapes(VIT, given.spec)
    assert not shapes.keys() & update.delta.keys()
    widths = code_bits(shapes, bits)
    for name, values in unpack_codes(update.extras["codes"], shapes, widths).items():
        step = step_name(name, bits)
        reported = from_codes(values, sent.weights[step] - update.delta[step], widths[name])
        reported -= on_grid(sent.weights[name], sent.weights[step], widths[name])
        torch.testing.assert_close(reported + memory[f"qvit.{name}"], -exact.delta[name], atol=1e-5, rtol=0.0)
    wire = sum(t.nbytes for part in (update.delta, update.extras) for t in part.values())
    assert wire == make_contract(VIT, given).upload()
    check_update(update, given, VIT, max_rms=10.0)


def _with(given: Order, **settings: Any) -> Order:
    return replace(given, settings={**given.settings, **settings})


def test_two_bits_take_a_sixteenth_of_the_matrices_bytes() -> None:
    config = VIT.with_(dim=64, mlp=256, heads=4)
    spec = SubmodelSpec.full(config)
    matrices = sum(torch.Size(shape).numel() for shape in code_shapes(config, spec).values())
    small, large = (
        make_contract(config, quant_order(spec, bits=2, wire=wire)).upload() for wire in ("codes", "float32")
    )
    assert large - small > 4 * matrices * 0.92


@pytest.mark.parametrize("residual", [True, False])
def test_what_stayed_on_the_device_is_added_in_its_next_task(residual: bool) -> None:
    given = quant_order(bits=4, lr=1e-9, dgd=0.0, distillation=0.0, residual=residual)
    name, sent = "blocks.0.q.weight", task(given)
    left = {f"qvit.{name}": torch.full_like(sent.weights[name], 0.2)}
    update, memory = run_task(VIT, sent, shard(VIT), left)
    shapes = code_shapes(VIT, SPEC)
    codes = unpack_codes(update.extras["codes"], shapes, code_bits(shapes, 4))[name]
    start = sent.weights[name] + (0.2 if residual else 0.0)
    step = sent.weights[step_name(name, 4)] - update.delta[step_name(name, 4)]
    assert torch.equal(codes, weight_codes(start, step, 4))
    if residual:  # nothing was trained: what codes tell and what stays add up to what was left
        reported = from_codes(codes, step, 4) - on_grid(sent.weights[name], sent.weights[step_name(name, 4)], 4)
        torch.testing.assert_close(reported + memory[f"qvit.{name}"], torch.full_like(start, 0.2), atol=1e-5, rtol=0.0)
    else:
        assert torch.equal(memory[f"qvit.{name}"], left[f"qvit.{name}"])


def test_as_numbers_the_latent_weights_go_back() -> None:
    given = quant_order(bits=2, wire="float32")
    update, memory = run_task(VIT, task(given), shard(VIT), {})
    assert not update.extras
    assert not memory
    assert update.delta["blocks.0.q.weight"].abs().max() > 0
    assert sum(t.nbytes for t in update.delta.values()) == make_contract(VIT, given).upload()


@pytest.mark.slow
def test_it_learns_at_two_bits() -> None:
    losses = []
    for epochs in (1, 40):
        update, _ = run_task(VIT, task(quant_order(bits=2, epochs=epochs, lr=1e-2)), shard(VIT), {})
        losses.append(update.report["loss"])
    assert losses[1] < losses[0] - 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extras": {}}, "codes is missing"),
        ({"extras": {"codes": torch.zeros(3, dtype=torch.uint8)}}, "codes is torch"),
        ({"extras": {"codes": torch.zeros(9)}}, "codes is torch"),
    ],
)
def test_codes_that_cannot_be_read_are_refused(change: dict[str, Any], message: str) -> None:
    given = quant_order(bits=4)
    update, _ = run_task(VIT, task(given), shard(VIT), {})
    with pytest.raises(UpdateRefused, match=message):
        check_update(replace(update, **change), given, VIT, max_rms=10.0)


def test_a_step_that_leaps_is_refused() -> None:
    given = quant_order(bits=4)
    update, _ = run_task(VIT, task(given), shard(VIT), {})
    delta = {**update.delta, "qvit.b4.0.q.step": torch.full((16,), 9.0)}
    with pytest.raises(UpdateRefused, match="factor"):
        check_update(replace(update, delta=delta), given, VIT, max_rms=10.0)


# ---------------------------------------------------------------- evaluation and costs


def test_the_model_is_built_again_from_its_weights_alone() -> None:
    model = set_up(loaded(4, weights={**random_weights(VIT, 2), **first_tensors(VIT, (4,))}), random_inputs(VIT, 1))
    stored = {name: p.detach() for name, p in model.named_parameters()}
    everything = {**random_weights(VIT, 2), **first_tensors(VIT, (4,)), **stored}
    again = build_quant(VIT, SPEC, everything).eval()
    assert isinstance(again, QuantTransformer)
    assert again.bits == 4
    inputs = random_inputs(VIT, 5)
    with torch.no_grad():
        assert torch.equal(again(inputs)[0], model(inputs)[0])
    assert all(bool((t == UNSET).all()) for n, t in first_tensors(VIT, (4,)).items() if n.endswith(".step"))
    assert len(step_table(VIT, 4)) > len(step_table(VIT, 4, (4,)))


def test_the_ledger_covers_what_a_task_allocates_and_is_no_smaller_than_plain_training() -> None:
    config = ModelConfig("vit", dim=128, depth=3, heads=4, mlp=256, classes=10, image=32, patch=4, channels=3)
    given = quant_order(make_spec(config, 0.5, ratio=0.0), epochs=1, batch=8, bits=4, rescale=True)
    data, work = shard(config, train=8, test=0), task(given, config)
    promised = make_contract(config, given).memory(8)
    room = promised.total - promised.overhead
    start = sum(t.nbytes for t in work.weights.values())
    used = start + peak_allocated(lambda: run_task(config, work, data, {}))
    assert 0.5 * room < used <= room
    own = set(QuantSettings.model_fields) - set(type(work.order).__dataclass_fields__)
    plain = replace(given, trainer="submodel", settings={k: v for k, v in given.settings.items() if k in _plain(own)})
    assert promised.total > make_contract(config, plain).memory(8).total
    assert make_contract(config, given).flops(8, 2).training > make_contract(config, plain).flops(8, 2).training


def _plain(names: set[str]) -> set[str]:
    return names - {"bits", "wire", "residual", "distillation", "dgd", "trust"}
