// Which parts of the model were trained: blocks × (heads, units).
(() => {
  "use strict";
  const { h, replace, setText } = cos2p.dom;
  const { panel, choice, swatch, rampLegend } = cos2p.panel;
  const { ramp, onRamp, css } = cos2p.color;
  const { number, short, plural } = cos2p.format;
  const { bins } = cos2p.runData;
  const MOST_BINS = 128;

  const MODES = {
    clients: { word: "clients", pick: (coverage, what) => coverage[`${what}_clients`] },
    updates: { word: "updates", pick: (coverage, what) => coverage[what] },
    stale: { word: "rounds ago", pick: (coverage, what, round) => coverage[`${what}_last`]?.map((row) => row.map((last) => (last ? round - last : null))) },
  };

  /** The values of a block's segments in bins: mean and extremes; null where nothing was ever trained. */
  function binned(row, parts) {
    return parts.map(([from, to]) => {
      const values = row.slice(from, to);
      const known = values.filter((value) => value !== null);
      return { from, to, never: values.some((value) => value === null), least: Math.min(...known), most: Math.max(...known),
        mean: known.length ? known.reduce((a, b) => a + b, 0) / known.length : null };
    });
  }

  cos2p.coverage = () => {
    let run = null;
    let mode = "clients";
    const headMap = cos2p.heatMap({ label: "Coverage of attention heads: blocks by heads. Arrow keys move." });
    const unitMap = cos2p.heatMap({ label: "Coverage of MLP units: blocks by units. Arrow keys move." });
    const frame = panel({
      id: "coverage", title: "Coverage",
      why: "A segment (an attention head or an MLP unit) that no device trains stands still; here is how many devices trained each one, how often, and how long ago.",
      figures: () => table(),
    });
    const pick = choice("What the colour shows", [["clients", "Clients"], ["updates", "Updates"], ["stale", "Staleness"]], mode, (value) => { mode = value; draw(); });
    const note = h("p", { class: "note" });
    replace(frame.tools, pick.el);
    const unitsTitle = h("h3", {}, "MLP units");
    const pair = h("div", { class: "pair uneven" }, h("div", {}, h("h3", {}, "Attention heads"), headMap.el), h("div", {}, unitsTitle, unitMap.el));
    replace(frame.body, pair, note);

    function rowsOf(what) {
      return MODES[mode].pick(run.coverage, what, run.header.round) ?? null;
    }

    function drawMap(map, what, count, most) {
      const rows = rowsOf(what);
      map.el.hidden = !rows;
      if (!rows) return;
      const parts = bins(count, MOST_BINS);
      const depth = rows.length;
      // The deepest block on top, as one draws a network that grows upwards.
      const cells = rows.map((row) => binned(row, parts)).reverse();
      const share = (cell) => (cell.mean === null ? 0 : most ? (mode === "stale" ? 1 - cell.mean / most : cell.mean / most) : mode === "stale" ? 1 : 0);
      const noun = what === "heads" ? "head" : "unit";
      map.update({
        rows: cells.map((_, at) => `block ${depth - at}`), columns: parts.length, gutter: 66, cell: { height: depth > 16 ? 16 : 22, most: 46 },
        color: (row, column) => (cells[row][column].mean === null ? css("--well") : ramp(0.06 + 0.94 * share(cells[row][column]))),
        empty: (row, column) => (mode === "stale" ? cells[row][column].never : cells[row][column].least === 0),
        text: (row, column) => (parts.length <= 16 && cells[row][column].mean ? short(Math.round(cells[row][column].mean)) : ""),
        textColor: (row, column) => onRamp(share(cells[row][column])),
        columnLabel: (column) => number(parts[column][0] + 1), labelRoom: 34,
        tooltip: (row, column) => {
          const cell = cells[row][column];
          const span = cell.to - cell.from > 1 ? `${noun}s ${cell.from + 1}–${cell.to}` : `${noun} ${cell.from + 1}`;
          const range = cell.mean === null ? "never trained" : cell.least === cell.most ? short(cell.mean) : `${short(cell.least)} to ${short(cell.most)}, mean ${short(cell.mean)}`;
          return { title: `Block ${depth - row}, ${span}`, lines: [[null, MODES[mode].word, range]] };
        },
      });
    }

    function draw() {
      const coverage = run.coverage;
      pair.hidden = !coverage || !run.header.updates;
      if (pair.hidden) {
        frame.legend([]);
        return setText(note, "No update has been merged yet.");
      }
      const all = ["heads", "units"].flatMap((what) => (rowsOf(what) ?? []).flat()).filter((value) => value !== null);
      const most = all.reduce((a, b) => Math.max(a, b), 0);
      drawMap(headMap, "heads", run.model?.heads ?? coverage.heads[0].length, most);
      drawMap(unitMap, "units", run.model?.units ?? coverage.units[0].length, most);
      frame.legend([
        mode === "stale" ? rampLegend(`${number(most)} rounds ago`, "just now") : rampLegend("0", `${number(most)} ${MODES[mode].word}`),
        [swatch(css("--warn"), "crossed"), "a segment here was never trained"],
      ], `${mode} ${most} ${cos2p.color.theme()}`);
      setText(note, noteWords(coverage));
      frame.refresh();
    }

    function noteWords(coverage) {
      const whole = Math.min(...coverage.heads_clients.flat(), ...coverage.units_clients.map((row) => Math.min(...row)));
      const star = run.header.n_star;
      const first = star === null ? "" : star === 0
        ? "N* = 0: in some round, some segment was held by no update and stood still. "
        : `N* = ${number(star)}: in every round, every segment was held by at least ${plural(star, "update")}. `;
      const second = whole === 0
        ? "Over the whole run, some segment was trained by no device at all. "
        : `Over the whole run, every segment was trained by at least ${plural(whole, "device")}. `;
      return first + second;
    }

    function table() {
      const rows = [];
      const heads = rowsOf("heads") ?? [];
      const units = rowsOf("units") ?? [];
      for (let block = Math.max(heads.length, units.length) - 1; block >= 0; block -= 1) {
        const of = (row) => { const known = (row ?? []).filter((v) => v !== null); return known.length ? `${short(Math.min(...known))} – ${short(Math.max(...known))}` : "–"; };
        rows.push([`block ${block + 1}`, of(heads[block]), of(units[block])]);
      }
      const word = MODES[mode].word;
      return { caption: `Coverage, ${word}`, columns: [{ title: "block" }, { title: `heads: ${word}`, right: true }, { title: `units: ${word}`, right: true }], rows };
    }

    cos2p.color.onTheme(() => { if (run) draw(); });
    return { id: "coverage", short: "Coverage", el: frame.el, shown: (view, one) => Boolean(one?.model), update(view, one) { run = one; draw(); } };
  };
})();
