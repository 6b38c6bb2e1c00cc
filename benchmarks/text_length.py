"""What a step on short texts costs against one at full length, in processor time: python -m benchmarks.text_length

Texts of AG News (below $COS2P_DATA) in batches as the trainer makes them, through bert-small as the recipe has it; a
batch of full length goes next to them in the same process, turn by turn. By its FLOPs a short step would take
`expected` of the full one; what it takes beyond that is padding and what does not shrink with the length.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from cos2p import ElasticTransformer, SubmodelSpec, extract, init_weights
from cos2p.costs.flops import shape_flops
from cos2p.costs.shape import Shape, Workload
from cos2p.data import load
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import model_config
from cos2p.seeding import torch_rng
from cos2p.training.shard import shuffled


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = Recipe.load("bert-small-agnews", ["data.train_samples=2000"])
    bundle = load(recipe.data, recipe.seed)
    config = model_config(recipe, bundle)
    spec = SubmodelSpec.full(config)
    model = ElasticTransformer(config, spec).load(extract(init_weights(config, 0), config, spec))
    model.requires_grad_(True)
    for name, parameter in model.named_parameters():  # a table's dense gradient would cost the same at any length
        parameter.requires_grad_("tokens" not in name)

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(inputs)[-1], labels).backward()

    def flops(tokens: int) -> float:
        return shape_flops(config, Shape.of(config, spec), Workload(batch=given.batch, tokens=tokens), "weight")

    train = bundle.train
    assert train.widths is not None
    batches = shuffled(len(train), given.batch, 1, torch_rng(0, "benchmark"), train.widths)
    whole = torch.randint(1000, 30000, (given.batch, config.max_tokens))
    step(whole, torch.zeros(given.batch, dtype=torch.int64))
    full, short, expected, real = [], [], [], []
    whole_batches = (rows for rows in batches if len(rows) == given.batch)
    for rows, _ in zip(whole_batches, range(given.turns), strict=False):
        inputs, labels = train.batch(rows)
        full.append(seconds(lambda x=inputs, y=labels: step(whole, y)))  # type: ignore[misc]
        short.append(seconds(lambda x=inputs, y=labels: step(x, y)))  # type: ignore[misc]
        mean = float(train.inputs.lengths[rows].double().mean())  # type: ignore[union-attr]
        expected.append(flops(round(mean)) / flops(config.max_tokens))
        real.append(mean)
    ratios = [s / f / e for s, f, e in zip(short, full, expected, strict=True)]
    print(f"mean text {float(train.inputs.lengths.double().mean()):.1f} tokens of {config.max_tokens}")  # type: ignore[union-attr]
    for tokens, f, s, e, r in zip(real, full, short, expected, ratios, strict=True):
        print(f"{tokens:5.1f} tokens: {s:.2f} s against {f:.2f} s, expected {e:.3f}, took {s / f:.3f}: {r:.2f}x")
    print(f"median {median(ratios):.2f}x of the FLOP-proportional time")


if __name__ == "__main__":
    main()
