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

  function runMark(row, seed, links) {
    if (seed in row.failures) return h("span", { title: row.failures[seed] }, `${seed} failed`);
    if (row.waiting.includes(seed)) return `${seed} …`;
    const link = links[row.runs[seed]] ?? "";
    return leadsNearby(link) ? h("a", { href: link, title: `The run with seed ${seed}` }, seed) : seed;
  }

  /** A row's title, and what a reader must know before comparing: * over the budget, † not all seeds. */
  function rowName(row) {
    const marks = (row.over_budget ? "*" : "") + (row.waiting.length || Object.keys(row.failures).length ? "†" : "");
    return marks ? `${row.title} ${marks}` : row.title;
  }

  const figureColumns = (table) => table.columns.map((column) => ({ title: heading(column), right: true }));

  function studyTable(table, { seeds, links }) {
    const columns = [{ title: "" }, ...table.facts.map((title) => ({ title })), ...figureColumns(table), { title: "runs" }];
    const rows = table.rows.map((row) => [
      rowName(row), ...table.facts.map((fact) => row.facts[fact] ?? ""), ...table.columns.map((column) => figureCell(row.figures[column.key], column)),
      h("span", { class: "runs" }, seeds.map((seed, at) => [at ? " " : "", runMark(row, seed, links)])),
    ]);
    return h("div", { class: "figures whole" }, h("h3", {}, table.title), cos2p.table(table.title, columns, rows), table.notes.map((note) => h("p", { class: "note" }, note)));
  }

  /** One row for each run that is done, leading to it. */
  function runsTable(table, { seeds, links }) {
    const columns = [{ title: "" }, { title: "seed" }, ...figureColumns(table)];
    const rows = table.rows.flatMap((row) => seeds.flatMap((seed) => (!(seed in row.runs) ? [] : [
      [rowName(row), runMark(row, seed, links), ...table.columns.map((column) => writeValue(row.figures[column.key].by_seed[seed] ?? null, column))],
    ])));
    const title = `Every run: ${table.title}`;
    return h("div", { class: "figures" }, h("h3", {}, title), cos2p.table(title, columns, rows));
  }

  cos2p.studyTable = { write, rowName, heading, studyTable, runsTable };
})();
