"""What a frozen base in fewer bits costs: perplexity of a language model on texts it was not trained on.

    COS2P_DATA=<folder with weights/ and finance/> python -m benchmarks.base_bits smollm2-135m --texts 60

Blocks in 16 and 8 bits as they travel (`training.prefix.encode`); in 4 bits by groups of a row, each with a scale of 16
bits, as users of other tools have them: 15 equal steps. Embeddings and the output table stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from cos2p.data.paths import checkpoint_folder, find
from cos2p.training.prefix import decode, encode


def four_bits(matrix: Tensor, group: int) -> Tensor:
    """The numbers that are left of it."""
    rows = matrix.view(-1, group)
    scale = (rows.abs().amax(1, keepdim=True) / 7).half().float().clamp_min(1e-8)
    return ((rows / scale).round().clamp(-7, 7) * scale).view_as(matrix)


FORMS = {
    "float32": lambda w: w,
    "float16": lambda w: decode(encode({"w": w}, "float16"))["w"],
    "int8": lambda w: decode(encode({"w": w}, "int8"))["w"],
    "int4, groups of 64": lambda w: four_bits(w, 64),
    "int4, groups of 32": lambda w: four_bits(w, 32),
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=60)
    options = parser.parse_args()
    folder = Path(checkpoint_folder(f"weights/{options.model}"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lines = find("finance", "test-fpb.jsonl").read_text().splitlines()[: options.texts]
    texts = [tokenizer(json.loads(line)["text"], return_tensors="pt").input_ids for line in lines]
    matrices = {name: p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}
    for form, changed in FORMS.items():
        whole = {name: p.clone() for name, p in matrices.items()} if form != "float32" else {}
        for name in whole:
            matrices[name].copy_(changed(whole[name]))
        tokens = sum(ids.shape[1] - 1 for ids in texts)
        total = sum(float(model(ids, labels=ids).loss) * (ids.shape[1] - 1) for ids in texts)
        for name, before in whole.items():
            matrices[name].copy_(before)
        found = {"model": options.model, "form": form, "tokens": tokens}
        print(json.dumps(found | {"perplexity": round(math.exp(total / tokens), 3)}), flush=True)


if __name__ == "__main__":
    main()
