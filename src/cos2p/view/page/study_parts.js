// The tables and plots of a study: means over seeds with their 95 % intervals.
(() => {
  "use strict";
  const { h, s, replace, onResize } = cos2p.dom;
  const { series, dash, onTheme } = cos2p.color;
  const { number, DASH, ticks } = cos2p.format;

  /** A figure in its column's unit: "63.1 ± 1.2". */
  function write(figure, column) {
    if (figure.mean === null) return DASH;
    const mean = figure.mean * column.scale;
    const sign = column.signed && mean > 0 ? "+" : "";
    return `${sign}${number(mean, column.digits)}${figure.half === null ? "" : ` ± ${number(figure.half * column.scale, column.digits)}`}`;
  }

  const heading = (column) => (column.unit ? `${column.title} (${column.unit})` : column.title);

  function studyTable(table) {
    const columns = [{ title: "" }, ...table.facts.map((title) => ({ title })), ...table.columns.map((column) => ({ title: heading(column), right: true }))];
    const rows = table.rows.map((row) => [
      h("span", row.failures.length ? { title: row.failures.join("\n") } : {}, row.title, row.marks ? ` ${row.marks}` : ""),
      ...row.facts,
      ...row.figures.map((figure, at) => h("span", { class: figure.best ? (table.columns[at].signed ? "clear" : "best") : null }, write(figure, table.columns[at]))),
    ]);
    return h("div", {}, h("h3", {}, table.title), cos2p.table(table.title, columns, rows), table.notes.map((note) => h("p", { class: "note" }, note)));
  }

  /** Means as dots with their intervals as whiskers, one line of the picture for each row: who is better, and is it sure? */
  function dotPlot(label) {
    const svg = s("svg", { class: "lines", role: "img" });
    const el = h("div", { class: "chart" }, svg);
    let data = null;
    function draw() {
      const width = el.clientWidth;
      if (!width || !data) return;
      const { column, rows } = data;
      const gutter = Math.min(220, width * 0.38);
      const height = rows.length * 26 + 34;
      const value = (figure, side) => (figure.mean + side * (figure.half ?? 0)) * column.scale;
      const known = rows.filter(({ figure }) => figure.mean !== null);
      let low = Math.min(...known.map(({ figure }) => value(figure, -1)));
      let high = Math.max(...known.map(({ figure }) => value(figure, 1)));
      if (!(high > low)) [low, high] = [(low || 0) - 1, (high || 0) + 1];
      const { found, step } = ticks(low - (high - low) * 0.05, high + (high - low) * 0.05, Math.max(2, Math.floor((width - gutter) / 80)));
      [low, high] = [low - (high - low) * 0.05, high + (high - low) * 0.05];
      const px = (x) => gutter + ((x - low) / (high - low)) * (width - gutter - 16);
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
      svg.setAttribute("aria-label", `${label}: ${known.map(({ title, figure }) => `${title} ${write(figure, column)}`).join("; ")}`);
      replace(svg, s("g", { class: "grid" }, found.map((x) => [
        s("line", { x1: px(x), x2: px(x), y1: 4, y2: height - 24 }),
        s("text", { x: px(x), y: height - 7, "text-anchor": "middle" }, number(x, step < 1 ? 1 : 0)),
      ])), rows.map(({ title, figure }, at) => {
        const y = 17 + at * 26;
        const name = s("text", { x: gutter - 12, y: y + 4, "text-anchor": "end" }, cos2p.format.shorten(title, Math.floor(gutter / 6.8)));
        if (figure.mean === null) return name;
        const color = series(figure.best ? 2 : 0);
        return [name, s("line", { x1: px(value(figure, -1)), x2: px(value(figure, 1)), y1: y, y2: y, stroke: color, "stroke-width": 2 }),
          figure.half === null ? null : [-1, 1].map((side) => s("line", { x1: px(value(figure, side)), x2: px(value(figure, side)), y1: y - 5, y2: y + 5, stroke: color, "stroke-width": 2 })),
          s("circle", { cx: px(value(figure, 0)), cy: y, r: figure.best ? 6 : 4.5, fill: color },
            s("title", {}, `${title}: ${write(figure, column)}`))];
      }));
    }
    onResize(el, draw);
    onTheme(draw);
    return { el, update(next) { data = next; draw(); } };
  }

  /** Lines for a chart from bands over `axis`: "rounds", "updates" or "time". */
  function bandLines(curves, whose, axis) {
    return curves.flatMap((curve, at) => {
      const band = curve[whose]?.[axis];
      if (!band?.x.length) return [];
      return [{
        key: curve.key, name: `${curve.title}${curve.seeds > 1 ? ` (${curve.seeds} seeds)` : ""}`, color: series(at), dash: dash(at),
        points: band.x.map((x, place) => [x, band.mean[place]]),
        band: band.x.flatMap((x, place) => (band.half[place] === null ? [] : [[x, band.mean[place] - band.half[place], band.mean[place] + band.half[place]]])),
      }];
    });
  }

  /** The lines of a sweep's panel and the way back from a place on the axis to its value. */
  function sweepLines(part) {
    const values = [...new Set(part.lines.flatMap((line) => line.x))];
    const numeric = values.every((value) => typeof value === "number");
    const log = part.log && numeric && values.every((value) => value > 0);
    const place = (value) => (numeric ? (log ? Math.log10(value) : value) : values.indexOf(value));
    const back = (x) => (numeric ? (log ? number(10 ** x, 10 ** x < 1 ? 4 : 1).replace(/\.?0+$/, "") : cos2p.format.short(x)) : values[Math.round(x)] ?? "");
    const lines = part.lines.map((line, at) => {
      const order = line.x.map((_, index) => index).sort((a, b) => place(line.x[a]) - place(line.x[b]));
      return {
        key: line.name || "mean", name: line.name || part.column.title, color: series(at), dash: dash(at), dots: true,
        points: order.map((i) => [place(line.x[i]), line.mean[i] * part.column.scale]),
        band: order.flatMap((i) => (line.half[i] === null ? [] : [[place(line.x[i]), (line.mean[i] - line.half[i]) * part.column.scale, (line.mean[i] + line.half[i]) * part.column.scale]])),
      };
    });
    return { lines, back, places: values.map(place) };
  }

  cos2p.studyParts = { write, heading, studyTable, dotPlot, bandLines, sweepLines };
})();
