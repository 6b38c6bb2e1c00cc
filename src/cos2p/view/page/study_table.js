// The tables of a study: means over seeds with their 95 % intervals, and every run one by one.
(() => {
  "use strict";
  const { h } = cos2p.dom;
  const { number, DASH } = cos2p.format;

  const heading = (column) => (column.unit ? `${column.title} (${column.unit})` : column.title);

  /** A value in its column's unit: "63.1", of a difference "+1.2". */
  function writeValue(value, column) {
    if (value === null) return DASH;
    const scaled = value * column.scale;
    const text = number(scaled, column.digits);
    return column.signed && scaled > 0 && /[1-9]/.test(text) ? `+${text}` : text;
  }

  /** "± 1.2", nothing for a single seed. */
  const writeHalf = (figure, column) => (figure.half === null ? "" : ` ± ${number(figure.half * column.scale, column.digits)}`);

  /** A figure in its column's unit: "63.1 ± 1.2". */
  const write = (figure, column) => (figure.mean === null ? DASH : writeValue(figure.mean, column) + writeHalf(figure, column));

  /** The interval stands below the mean: fourteen columns fit a screen. */
  function figureCell(figure, column) {
    if (figure.mean === null) return DASH;
    return h("span", { class: figure.best ? (column.signed ? "clear" : "best") : null },
      h("span", { class: "mean" }, writeValue(figure.mean, column)), h("small", {}, writeHalf(figure, column)));
  }

  /** Only ways to the neighbourhood of the page are followed, whatever a document says. */
  const leadsNearby = (link) => /^\.\/(?!\/)/.test(link);

  function runMark(run, seed) {
    if (run.state === "failed") return h("span", { title: run.failure }, `${seed} failed`);
    if (run.state === "waiting") return `${seed} …`;
    return leadsNearby(run.link) ? h("a", { href: run.link, title: `The run with seed ${seed}` }, seed) : seed;
  }

  const rowName = (row) => [row.title, row.marks ? ` ${row.marks}` : ""];
  const figureColumns = (table) => table.columns.map((column) => ({ title: heading(column), right: true }));

  function studyTable(table, seeds) {
    const columns = [{ title: "" }, ...table.facts.map((title) => ({ title })), ...figureColumns(table), { title: "runs" }];
    const rows = table.rows.map((row) => [
      rowName(row), ...row.facts, ...row.figures.map((figure, at) => figureCell(figure, table.columns[at])),
      h("span", { class: "runs" }, row.runs.map((run, at) => [at ? " " : "", runMark(run, seeds[at])])),
    ]);
    return h("div", { class: "figures whole" }, h("h3", {}, table.title), cos2p.table(table.title, columns, rows), table.notes.map((note) => h("p", { class: "note" }, note)));
  }

  /** One row for each run that is done, leading to it. */
  function runsTable(table, seeds) {
    const columns = [{ title: "" }, { title: "seed" }, ...figureColumns(table)];
    const rows = table.rows.flatMap((row) => seeds.flatMap((seed, at) => (row.runs[at].state !== "done" ? [] : [
      [rowName(row), runMark(row.runs[at], seed), ...row.figures.map((figure, place) => writeValue(figure.seeds[at], table.columns[place]))],
    ])));
    const title = `Every run: ${table.title}`;
    return h("div", { class: "figures" }, h("h3", {}, title), cos2p.table(title, columns, rows));
  }

  cos2p.studyTable = { write, heading, studyTable, runsTable };
})();
