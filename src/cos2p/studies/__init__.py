"""Studies: grids of runs that answer one question, each one command, each resumable.

grid      rows (what is compared) × seeds; every cell is a run, with its outcome
runner    runs the cells, each in a process of its own, and keeps finished ones; progress and views show it
compare · ablation · sweep · attack · frontier    which rows, which tables; equal_time plans a frontier's second part
tuning    the learning rate of each row, on validation data
tables    means, intervals, paired differences; columns names the figures
report    a study's tables and where they come from; folder has the files, and cos2p.view draws the page from it
record    what is kept of a study when the runs' files are not: runs.jsonl, recipe, table; picture draws from it
"""
