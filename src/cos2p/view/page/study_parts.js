// The pictures of a study: means over seeds with their 95 % intervals.
(() => {
  "use strict";
  const { h, s, replace, onResize } = cos2p.dom;
  const { series, dash, onTheme } = cos2p.color;
  const { number, onAxis, short, shorten, ticks } = cos2p.format;
  const { write } = cos2p.studyTable;
  const ROW = 26; // px

  /** What a column's figures can be, in its unit: an interval of few seeds may reach far beyond. */
  const possible = (column) => (column.signed ? [-Infinity, Infinity] : [0, column.unit === "%" ? 100 : Infinity]);
  const within = ([least, most], value) => Math.max(least, Math.min(most, value));

  /** Means as dots with their intervals as whiskers and each seed as a tick, one line for each row: who is better, and is it sure? */
  function dotPlot(label) {
    const svg = s("svg", { class: "lines dots", role: "img" });
    const el = h("div", { class: "chart" }, svg);
    let data = null;

    function scaleOf({ column, rows, marks }, gutter, width) {
      const range = possible(column);
      const reach = rows.flatMap(({ figure }) => (figure.mean === null ? [] : [-1, 1].map((side) => end(figure, side, column))));
      let low = Math.min(...reach, ...marks.map(([, at]) => at));
      let high = Math.max(...reach, ...marks.map(([, at]) => at));
      if (high - low <= 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [low - 1, high + 1];
      const room = (high - low) * 0.04;
      [low, high] = [within(range, low - room), within(range, high + room)];
      return { low, high, ...ticks(low, high, Math.max(4, Math.floor((width - gutter) / 80))), px: (x) => gutter + ((x - low) / (high - low)) * (width - gutter - 22) };
    }

    const end = (figure, side, column) => within(possible(column), (figure.mean + side * (figure.half ?? 0)) * column.scale);

    function draw() {
      const width = el.clientWidth;
      if (!width || !data) return;
      const { column, rows, marks } = data;
      const gutter = Math.min(220, width * 0.38);
      const height = rows.length * ROW + 34 + (marks.length ? 16 : 0);
      const top = marks.length ? 16 : 0;
      const { found, step, px } = scaleOf(data, gutter, width);
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
      svg.setAttribute("aria-label", `${label}: ${rows.filter(({ figure }) => figure.mean !== null).map(({ title, figure }) => `${title} ${write(figure, column)}`).join("; ")}`);
      replace(svg, s("g", { class: "grid" }, found.map((x) => [
        s("line", { x1: px(x), x2: px(x), y1: top + 4, y2: height - 24 }),
        s("text", { x: px(x), y: height - 7, "text-anchor": "middle" }, onAxis(x, step)),
      ])), marks.map(([name, at], number) => [
        s("line", { class: "baseline", x1: px(at), x2: px(at), y1: top + 2, y2: height - 24 }),
        s("text", { x: px(at), y: 11, "text-anchor": number ? "start" : "end" }, number ? ` ${name}` : `${name} `),
      ]), rows.map((row, at) => drawRow(row, column, px, gutter, top + 17 + at * ROW)));
    }

    function drawRow({ title, figure }, column, px, gutter, y) {
      const name = s("text", { x: gutter - 12, y: y + 4, "text-anchor": "end" }, shorten(title, Math.floor(gutter / 6.8)));
      if (figure.mean === null) return name;
      const color = series(figure.best ? 2 : 0);
      const line = { stroke: color, "stroke-width": 2 };
      const ends = [-1, 1].map((side) => [end(figure, side, column), (figure.mean + side * (figure.half ?? 0)) * column.scale]);
      return [name, s("line", { x1: px(ends[0][0]), x2: px(ends[1][0]), y1: y, y2: y, ...line }),
        figure.half === null ? null : ends.map(([shown, value]) => (shown === value // one that goes on beyond what is possible has no end
          ? s("line", { class: "whisker", x1: px(shown), x2: px(shown), y1: y - 5, y2: y + 5, ...line }) : null)),
        Object.values(figure.by_seed).map((value) => s("line", { class: "seed", x1: px(value * column.scale), x2: px(value * column.scale), y1: y + 4, y2: y + 9, stroke: color, "stroke-width": 1.5 })),
        s("circle", { cx: px(figure.mean * column.scale), cy: y, r: figure.best ? 6 : 4.5, fill: color }, s("title", {}, `${title}: ${write(figure, column)}`))];
    }

    onResize(el, draw);
    onTheme(draw);
    return { el, update(next) { data = next; draw(); } };
  }

  const bandOf = (xs, mean, half, range, scale = 1) => xs.flatMap((x, at) => (half[at] === null ? []
    : [[x, within(range, (mean[at] - half[at]) * scale), within(range, (mean[at] + half[at]) * scale)]]));

  /** Lines for a chart from bands over `axis`: "rounds", "updates" or "time". */
  function bandLines(curves, whose, axis) {
    return curves.flatMap((curve, at) => {
      const band = curve[whose]?.[axis];
      if (!band?.x.length) return [];
      return [{
        key: curve.key, name: `${curve.title}${curve.seeds > 1 ? ` (${curve.seeds} seeds)` : ""}`, color: series(at), dash: dash(at),
        points: band.x.map((x, place) => [x, band.mean[place]]), band: bandOf(band.x, band.mean, band.half, [0, 1]),
      }];
    });
  }

  /** The lines of a sweep's panel and the way back from a place on the axis to its value. */
  function sweepLines(part) {
    const values = [...new Set(part.lines.flatMap((line) => line.x))];
    const numeric = values.every((value) => typeof value === "number");
    const log = part.log && numeric && values.every((value) => value > 0);
    const place = (value) => (numeric ? (log ? Math.log10(value) : value) : values.indexOf(value));
    const texts = new Map(values.map((value) => [place(value), String(value)]));
    const lines = part.lines.map((line, at) => {
      const order = line.x.map((_, index) => index).sort((a, b) => place(line.x[a]) - place(line.x[b]));
      const [xs, mean, half] = [order.map((i) => place(line.x[i])), order.map((i) => line.mean[i]), order.map((i) => line.half[i])];
      return {
        key: line.name || "mean", name: line.name || part.column.title, color: series(at), dash: dash(at), dots: true,
        points: xs.map((x, i) => [x, mean[i] * part.column.scale]), band: bandOf(xs, mean, half, possible(part.column), part.column.scale),
      };
    });
    return { lines, back: (x) => texts.get(x) ?? short(x), places: [...texts.keys()] };
  }

  cos2p.studyParts = { possible, dotPlot, bandLines, sweepLines };
})();
