"""Studies: grids of runs that answer one question, each one command, each resumable.

grid      rows (what is compared) × seeds; every cell is a run
runner    runs the cells, each in a process of its own, and keeps what is finished
compare · ablation · sweep    which rows, which tables
tuning    the learning rate of each row, on validation data; tuning_report tells of it
tables    means, intervals, paired differences; markdown writes them, and csv
folder    DIR/study.json, tables, cells/<name>/; the page is drawn from it by cos2p.view
record    what is kept of a study when the runs' files are not: runs.jsonl, recipe, table
"""
