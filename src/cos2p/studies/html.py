"""A study's tables as one HTML page that needs nothing else. Every name in it is text, whatever it contains."""

from __future__ import annotations

from html import escape

from cos2p.studies.markdown import run_link
from cos2p.studies.report import Report
from cos2p.studies.tables import MISSING, Line, Table

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; } dt { opacity: .7; } dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
thead th { vertical-align: bottom; font-weight: 600; } tbody tr:hover { background: var(--faint); }
th.text, td.text { text-align: left; } tbody th { font-weight: 500; }
a { color: inherit; text-decoration-color: var(--line); text-underline-offset: .2em; }
a:hover, a:focus { text-decoration-color: currentColor; }
.notes { font-size: .9rem; opacity: .85; } code { overflow-wrap: anywhere; }
"""


def to_html(report: Report, body: str = "") -> str:
    """The page; `body` is finished HTML to stand before the list of runs."""
    title = escape(report.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"{_provenance(report)}\n{''.join(_section(table) for table in report.tables)}{body}"
        f"{_runs(report)}{_failures(report)}</body>\n</html>\n"
    )


def _provenance(report: Report) -> str:
    entries = []
    for name, text in report.provenance():
        value = f"<code>{escape(text)}</code>" if name == "command" else escape(text)
        entries.append(f"<dt>{escape(name)}</dt><dd>{value}</dd>")
    return f"<dl>{''.join(entries)}</dl>"


def _section(table: Table) -> str:
    heads = ['<th class="text" scope="col"></th>']
    heads += [f'<th class="text" scope="col">{escape(fact)}</th>' for fact in table.facts]
    heads += [f'<th scope="col">{escape(column.heading)}</th>' for column in table.columns]
    heads.append('<th class="text" scope="col">runs</th>')
    rows = "\n".join(_row(line, table) for line in table.lines)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        f'<section id="{escape(table.name)}">\n<h2>{escape(table.title)}</h2>\n<div class="wide"><table>\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>\n"
        f'<ul class="notes">{notes}</ul>\n</section>\n'
    )


def _row(line: Line, table: Table) -> str:
    cells = [f'<th class="text" scope="row">{escape(line.title)} {escape(line.marks)}</th>']
    cells += [f'<td class="text">{escape(line.facts.get(fact, ""))}</td>' for fact in table.facts]
    target = _target(line)
    for column in table.columns:
        figure = line.figures[column.key]
        text = escape(figure.write(column))
        text = f"<strong>{text}</strong>" if figure.best else text
        cells.append(f"<td>{text if figure.mean is None or not target else _link(target, text)}</td>")
    cells.append(f'<td class="text">{_links(line)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _target(line: Line) -> str:
    """Where a figure leads: to its run, or to the list of its runs if it is a mean of several."""
    if not line.runs:
        return ""
    first = next(iter(line.runs.values()))
    return run_link(first) if len(line.runs) == 1 else f"#{_anchor(first)}"


def _anchor(cell: str) -> str:
    return f"run-{cell}"


def _links(line: Line) -> str:
    runs = [_link(run_link(name), str(seed)) for seed, name in line.runs.items()]
    runs += [f'<span title="{escape(reason)}">{seed} failed</span>' for seed, reason in line.failures.items()]
    return " ".join([*runs, *(f"{seed} …" for seed in line.waiting)])


def _link(target: str, text: str) -> str:
    return f'<a href="{escape(target)}">{text}</a>'


def _runs(report: Report) -> str:
    """One row for each run, every figure a link to its folder."""
    columns = report.tables[0].columns if report.tables else ()
    heads = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in columns)
    rows, seen = [], set()
    for row in report.grid.rows:
        for seed in report.grid.seeds:
            name = report.grid.name(row.key, seed)
            outcome = report.outcomes.get(name)
            if outcome is None or outcome.result is None:
                continue
            mark = "" if name in seen else f' id="{escape(_anchor(name))}"'
            seen.add(name)
            cells = []
            for column in columns:
                value = column.read(outcome.result)
                text = MISSING if value is None else _link(run_link(name), escape(column.write(value)))
                cells.append(f"<td>{text}</td>")
            head = f'<th class="text" scope="row">{escape(row.title)}</th><td>{seed}</td>'
            rows.append(f"<tr{mark}>{head}{''.join(cells)}</tr>")
    return (
        '<section id="runs">\n<h2>Every run</h2>\n<div class="wide"><table>\n'
        f'<thead><tr><th class="text" scope="col"></th><th scope="col">seed</th>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table></div>\n</section>\n"
    )


def _failures(report: Report) -> str:
    if not report.failures:
        return ""
    entries = "".join(f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in report.failures.items())
    return f'<section id="failures">\n<h2>Failed runs</h2>\n<ul class="notes">{entries}</ul>\n</section>\n'
