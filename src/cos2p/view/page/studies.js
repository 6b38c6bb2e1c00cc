// Studies: compare, ablate and sweep, each with its tables and plots.
(() => {
  "use strict";
  const { h, replace, keyed } = cos2p.dom;
  const { panel, choice, swatch } = cos2p.panel;
  const { series } = cos2p.color;
  const { number } = cos2p.format;
  const { X, PERCENT } = cos2p.curveParts;
  const { studyTable, dotPlot, bandLines, sweepLines, heading } = cos2p.studyParts;
  const WHY = {
    compare: "Methods at equal budget, on the same data split and with the same number of client updates; each figure is a mean over seeds with its 95 % interval.",
    ablate: "One part of the method taken away at a time; a difference counts when its 95 % interval does not hold 0.",
    sweep: "One setting, or two, over several values; the shaded band is the 95 % interval of the mean over seeds.",
  };
  const AXES = { rounds: X.rounds, updates: { ...X.rounds, label: "client updates", name: "After updates" }, time: { ...X.time, label: "virtual time" } };

  function facts(study) {
    const entries = [["Recipe", study.recipe], ["Seeds", study.seeds.join(", ")], ["Client updates", study.updates === null ? "" : number(study.updates)],
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
      el.hidden = !data.curves.length;
      chart.update({ series: bandLines(data.curves, whose, axis), x: AXES[axis], y: PERCENT });
    }
    cos2p.color.onTheme(draw);
    return { el, update(next) { data = next; draw(); } };
  }

  function sweepOf(part) {
    const chart = cos2p.lineChart({ label: `${heading(part.column)} over ${part.axis}`, height: 260 });
    let data = part;
    function draw() {
      const { lines, back, places } = sweepLines(data);
      chart.update({ series: lines, x: { label: data.axis, name: data.axis, format: back, places }, y: { say: (y) => number(y, data.column.digits) } });
    }
    cos2p.color.onTheme(draw);
    return { el: h("div", {}, h("h3", {}, heading(part.column)), chart.el), update(next) { data = next; draw(); } };
  }

  function studyPanel(study) {
    const frame = panel({ id: `study-${study.name.replace(/\W+/g, "-")}`, title: study.title || study.name, why: WHY[study.kind] ?? "Runs of one study." });
    frame.legend([[swatch(series(0)), "mean"], [swatch(series(0), "thin"), "95 % interval over seeds"], ["★ ", "best of its column"]]);
    const dots = dotPlot(study.title);
    const dotsTitle = h("h3", {});
    const curves = curvesOf(study);
    const sweeps = new Map();
    const sweepBox = h("div", { class: "pair" });
    const tables = h("div", {});
    const factsBox = h("div", {});
    const notes = h("div", {});
    replace(frame.body, factsBox, dotsTitle, dots.el, sweepBox, tables, curves.el, notes);
    function update(next) {
      const first = next.tables[0];
      const column = first?.columns.findIndex((one) => one.key === "top1") ?? -1;
      const place = column >= 0 ? column : 0;
      dotsTitle.hidden = dots.el.hidden = !first?.columns.length || !first.rows.some((row) => row.figures[place].mean !== null);
      if (!dots.el.hidden) {
        dotsTitle.textContent = `${heading(first.columns[place])} of each row`;
        dots.update({ column: first.columns[place], rows: first.rows.map((row) => ({ title: `${row.title}${row.marks ? ` ${row.marks}` : ""}`, figure: row.figures[place] })) });
      }
      replace(factsBox, facts(next));
      cos2p.keepPlace(tables, () => replace(tables, next.tables.map(studyTable)));
      keyed(sweepBox, next.sweep, (part) => part.column.key, (part) => { sweeps.set(part.column.key, sweepOf(part)); return sweeps.get(part.column.key).el; },
        (_, part) => sweeps.get(part.column.key).update(part));
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
