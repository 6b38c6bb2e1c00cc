"""What torch's allocator really holds while a function runs, tensor by tensor."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_allocated(function: Callable[[], object]) -> int:
    """Most bytes of tensors alive at once that were made inside `function`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    alive = most = 0
    for _, change in changes:
        alive += change
        most = max(most, alive)
    return most
