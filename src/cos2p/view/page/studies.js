// Studies: compare, ablate and sweep, each with its tables and plots.
(() => {
  "use strict";
  const { h, replace, keyed } = cos2p.dom;
  const { panel, choice, swatch } = cos2p.panel;
  const { series } = cos2p.color;
  const { number } = cos2p.format;
  const { X, PERCENT, baselines } = cos2p.curveParts;
  const { studyTable, runsTable, heading, rowName, write } = cos2p.studyTable;
  const { possible, dotPlot, bandLines, sweepLines } = cos2p.studyParts;
  const WHY = {
    compare: "Methods at equal budget, on the same data split and with the same number of client updates; each figure is a mean over seeds with its 95 % interval.",
    attack: "One device or several that lie, against several defences; a difference counts when its 95 % interval does not hold 0.",
    ablate: "One part of the method taken away at a time; a difference counts when its 95 % interval does not hold 0.",
    frontier: "Methods at equal bytes per device, each with the largest rate, rank or group of blocks that fits; the shaded band is the 95 % interval of the mean over seeds.",
    sweep: "One setting, or two, over several values; the shaded band is the 95 % interval of the mean over seeds.",
  };
  const AXES = { rounds: X.rounds, updates: { ...X.rounds, label: "client updates", name: "After updates" }, time: { ...X.time, label: "virtual time" } };

  function facts(study) {
    const entries = [["Recipe", study.recipe], ["Seeds", study.seeds.join(", ")], ["Client updates", study.updates.map((count) => number(count)).join(", ")],
      ["Runs", study.done === study.cells ? number(study.cells) : `${number(study.done)} of ${number(study.cells)} so far`],
      ["Made with", study.versions.join("; ")]];
    return h("dl", { class: "facts" }, entries.filter(([, text]) => text).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))),
      study.command ? h("div", { class: "command" }, h("dt", {}, "Command"), h("dd", {}, h("code", {}, study.command))) : null);
  }

  function curvesOf(study) {
    let data = study;
    let axis = "updates";
    let whose = "top1";
    const chart = cos2p.lineChart({ label: `Curves of ${study.title}`, height: 320 });
    const pickAxis = choice("Horizontal axis", [["updates", "Updates"], ["rounds", "Rounds"], ["time", "Virtual time"]], axis, (value) => { axis = value; draw(); });
    const pickWhose = choice("Whose accuracy", [["top1", "Server"], ["client_top1", "Clients"]], whose, (value) => { whose = value; draw(); });
    const el = h("div", {}, h("h3", {}, "Top-1 on the way"), h("div", { class: "tools" }, pickWhose.el, pickAxis.el), chart.el);
    function draw() {
      const lines = bandLines(data.curves, whose, axis);
      el.hidden = !data.curves.some((curve) => curve.top1.rounds.x.length || curve.client_top1.rounds.x.length);
      chart.update({ series: lines.concat(whose === "top1" ? baselines(lines, marksOf(data.tables[0])) : []), x: AXES[axis], y: { least: 0, most: 1, ...PERCENT } });
    }
    cos2p.color.onTheme(draw);
    return { el, update(next) { data = next; draw(); } };
  }

  /** What an accuracy is worth, as far as the runs know it: [name, share]. */
  function marksOf(table) {
    return [["chance", table?.baselines.chance], ["most frequent class", table?.baselines.majority]].filter(([, share]) => typeof share === "number");
  }

  /** Which row is ahead, and whether by more than chance: what a reader wants to know first. */
  function headline(study) {
    const table = study.tables[0];
    const column = table?.columns.find((one) => one.key === "top1" && !one.signed);
    if (!column || study.kind === "sweep") return "";
    const rows = table.rows.filter((row) => row.figures.top1.mean !== null).sort((a, b) => b.figures.top1.mean - a.figures.top1.mean);
    if (rows.length < 2) return "";
    const [first, second] = rows.map((row) => `${rowName(row)} with ${write(row.figures.top1, column)} ${column.unit}`);
    const clear = rows[0].figures.top1.best ? "clear of all other intervals" : study.seeds.length < 2 ? "one seed has no interval" : "their intervals overlap, so that none is clearly ahead";
    return `Highest ${column.title}: ${first}; next is ${second}: ${clear}.`;
  }

  function sweepOf(part) {
    const chart = cos2p.lineChart({ label: `${heading(part.column)} over ${part.axis}`, height: 260 });
    let data = part;
    function draw() {
      const { lines, back, places } = sweepLines(data);
      const [least, most] = possible(data.column);
      chart.update({ series: lines, x: { label: data.axis, name: data.axis, format: back, places }, y: { least, most, say: (y) => number(y, data.column.digits) } });
    }
    cos2p.color.onTheme(draw);
    return { el: h("div", {}, h("h3", {}, `${heading(part.column)} over ${part.axis}`), chart.el), update(next) { data = next; draw(); } };
  }

  function studyPanel(study) {
    const frame = panel({ id: `study-${study.name.replace(/\W+/g, "-")}`, title: study.title || study.name, why: WHY[study.kind] ?? "Runs of one study." });
    frame.legend([[swatch(series(0)), "mean"], [swatch(series(0), "thin"), "95 % interval over seeds"], [swatch(series(0), "rule"), "one seed"], ["★ ", "clear of all other intervals"]]);
    const dots = dotPlot(study.title);
    const dotsTitle = h("h3", {});
    const curves = curvesOf(study);
    const sweeps = new Map();
    const sweepBox = h("div", { class: "pair" });
    const tables = h("div", {});
    const runs = h("div", {});
    const everyRun = h("details", {}, h("summary", {}, "Every run"), runs);
    const factsBox = h("div", {});
    const notes = h("div", {});
    const verdict = h("p", { class: "study-verdict" });
    replace(frame.body, verdict, dotsTitle, dots.el, sweepBox, tables, curves.el, everyRun, factsBox, notes);
    function update(next) {
      const first = next.tables[0];
      const column = first?.columns.find((one) => one.key === "top1") ?? first?.columns[0];
      dotsTitle.hidden = dots.el.hidden = !column || !first.rows.some((row) => row.figures[column.key].mean !== null);
      if (!dots.el.hidden) {
        dotsTitle.textContent = `${heading(column)} of each row`;
        const marks = column.key === "top1" ? marksOf(first).map(([name, share]) => [name, share * column.scale]) : [];
        dots.update({ column, marks, rows: first.rows.map((row) => ({ title: rowName(row), figure: row.figures[column.key] })) });
      }
      verdict.textContent = headline(next);
      verdict.hidden = !verdict.textContent;
      replace(factsBox, facts(next));
      cos2p.keepPlace(tables, () => replace(tables, next.tables.map((table) => studyTable(table, next))));
      const results = next.tables.filter((table) => table.columns.some((one) => !one.signed));
      everyRun.hidden = !results.length;
      cos2p.keepPlace(runs, () => replace(runs, results.map((table) => runsTable(table, next))));
      const key = (part) => `${part.axis} ${part.column.key}`; // over two axes there are two panels of each figure
      keyed(sweepBox, next.sweep, key, (part) => { sweeps.set(key(part), sweepOf(part)); return sweeps.get(key(part)).el; },
        (_, part) => sweeps.get(key(part)).update(part));
      curves.update(next);
      replace(notes, next.notes.map((note) => h("p", { class: "note" }, note)),
        next.failures.map(([cell, reason]) => h("p", { class: "note" }, `× ${cell}: ${reason}`)));
    }
    update(study);
    return { el: frame.el, update };
  }

  cos2p.studies = () => {
    const el = h("div", { id: "studies", class: "panel-list" });
    const known = new Map();
    return {
      id: "studies", short: "Studies", el,
      shown: (view) => view.studies.length > 0,
      update(view) {
        keyed(el, view.studies, (study) => study.name, (study) => { known.set(study.name, studyPanel(study)); return known.get(study.name).el; },
          (_, study) => known.get(study.name).update(study));
      },
    };
  };
})();
