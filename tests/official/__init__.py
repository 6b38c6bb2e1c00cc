"""Our parts against numbers that the authors' own code gave on tiny cases.

Each file in `fixtures` names the repository, commit and file that was run, says what was fed in, and holds what came
out. No code of the authors is here. `pytest tests/official -s` prints the largest difference of every comparison.
"""
