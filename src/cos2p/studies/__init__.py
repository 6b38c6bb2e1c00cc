"""Studies: grids of runs that answer one question, each one command, each resumable.

grid      rows (what is compared) × seeds; every cell is a run
runner    runs the cells, each in a process of its own, and keeps what is finished
compare · ablation · sweep    which rows, which tables
tuning    the learning rate of each row, on validation data; tuning_report tells of it
tables    means, intervals, paired differences → markdown, csv, html
folder    DIR/study.json, tables, cells/<name>/
"""
