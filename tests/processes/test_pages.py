"""What a process frees it has at once for the next time."""

import subprocess
import sys

SCRIPT = """
import resource, torch
from cos2p.processes.children import keep_freed_pages
assert keep_freed_pages(2**28)
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    room = [torch.full((2**20,), 1.0) for _ in range(8)]
    del room
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_pages_are_touched_for_the_first_time_once() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    first, *_, last = map(int, done.stdout.split())
    assert first >= 8 * 2**20 * 4 // 4096 // 600  # pages of 4 KB, or huge ones of 2 MB
    assert last <= first // 2  # pieces find their places within a few rounds
