"""Names in a study's folder. Light to import, for those who only look at one."""

STUDY = "study.json"
RUNS = "runs.jsonl"
"""Of its record."""
CELLS = "cells"
TRIAL_PREFIX = "tune-"
"""Beginning of the names of a search's trials, which stand among the cells."""
