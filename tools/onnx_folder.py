"""An ONNX export of a BERT as a Hugging Face folder: matrices were stored transposed, without a name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

_BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def convert(source: Path, folder: Path, pooling: str) -> None:
    """`source` holds `onnx/model.onnx` and its json files; `pooling` is how its authors pool, which no file says."""
    graph = onnx.load(source / "onnx" / "model.onnx").graph
    values = {tensor.name: tensor for tensor in graph.initializer}
    names = {name: name for name in values if name.startswith(("embeddings.", "encoder.", "pooler."))}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in values:
            names[node.input[1]] = node.name.removesuffix("/MatMul").strip("/").replace("/", ".") + ".weight"
    tensors = {}
    for stored, name in names.items():
        array = numpy_helper.to_array(values[stored])
        tensors[name] = np.ascontiguousarray(array if stored == name else array.T)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in _BESIDE:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}_tokens": True}) + "\n")
    print(f"  {folder.name}: {len(tensors)} tensors", flush=True)
