// The rolling window: which blocks each device trained in a round, and how that moves.
(() => {
  "use strict";
  const { h, replace, calm } = cos2p.dom;
  const { panel, swatch } = cos2p.panel;
  const { stale, css } = cos2p.color;
  const { number, duration } = cos2p.format;

  const MOST = 160; // columns
  const NAMED = 32; // columns with names
  const REPORTED = "reported sums of features"; // an update that trained nothing

  const WINDOW = "A device can train only a few neighbouring blocks at a time; its window moves on with every task, so that over a few rounds all devices together reach the whole depth.";

  cos2p.rolling = () => {
    let run = null;
    let round = 0;
    let last = true; // stay at the newest round until somebody moves the slider
    let timer = null;
    const map = cos2p.heatMap({ label: "Blocks trained in this round: blocks by devices. Arrow keys move." });
    const slider = h("input", { type: "range", min: "0", step: "1", value: "0", "aria-label": "Round", oninput: () => go(Number(slider.value), true) });
    const play = h("button", { type: "button", class: "icon", "aria-label": "Play", title: "Play", onclick: toggle }, "▶");
    const output = h("output", {});
    const frame = panel({
      id: "window", title: "The rolling window",
      why: WINDOW,
      figures: () => ({
        caption: "Windows of this round", columns: [{ title: "device" }, { title: "blocks" }, { title: "τ", right: true }],
        rows: rows().map(({ client, start, top, tau }) => [cos2p.nameCell(run.devices[client]?.name ?? "?"), start === top ? REPORTED : `${start + 1}–${top}`, number(tau)]),
      }),
    });
    replace(frame.body, h("div", { class: "player" }, play, slider, output), map.el);

    function rows() {
      const starts = cos2p.runData.roundStarts(run);
      const { client, start, top, tau } = run.updates;
      const found = [];
      for (let at = starts[round] ?? 0; at < (starts[round + 1] ?? starts[round] ?? 0); at += 1) {
        found.push({ client: client[at], start: start[at], top: top[at], tau: tau[at] });
      }
      return found;
    }

    /** The last round in which something trained: of the last one of all devices may only report sums. */
    function newest() {
      const { round: of, start, top } = run.updates;
      for (let at = of.length - 1; at >= 0; at -= 1) if (start[at] < top[at]) return Math.min(of[at], rounds() - 1);
      return rounds() - 1;
    }

    /** Whether every device trains all blocks at once, so that no window moves. */
    const whole = () => cos2p.runData.once(run, "whole", ({ updates, model }) => updates.start.every((start, at) => start === updates.top[at] || (start === 0 && updates.top[at] === model.depth)));

    const rounds = () => Math.max(0, cos2p.runData.roundStarts(run).length - 1);

    function go(to, byHand = false) {
      round = Math.max(0, Math.min(rounds() - 1, to));
      if (byHand) last = round >= newest();
      draw();
    }

    function toggle() {
      if (timer) return stop();
      if (round >= rounds() - 1) round = -1;
      last = false;
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
      play.title = "Pause";
      timer = setInterval(() => { go(round + 1); if (round >= rounds() - 1) { last = true; stop(); } }, calm() ? 1200 : Math.max(120, Math.min(600, 12000 / rounds())));
    }

    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "▶";
      play.setAttribute("aria-label", "Play");
      play.title = "Play";
    }

    /** The columns of the picture: every device of a small fleet, of a large one those that took part, in bins if they are many. */
    function columnsOf(here) {
      const crowded = cos2p.crowd.crowded(run);
      const devices = crowded ? [...new Set(here.map((one) => one.client))].sort((a, b) => a - b) : run.devices.map((_, at) => at);
      return cos2p.runData.bins(devices.length, MOST).map(([from, to]) => devices.slice(from, to));
    }

    /** [column][block] → {count: its updates that held the block, tau: the freshest of them, reported: only sums came}. */
    function heldBy(columns, here, depth) {
      const place = new Map(columns.flatMap((devices, at) => devices.map((device) => [device, at])));
      const held = columns.map(() => Array.from({ length: depth }, () => ({ count: 0, tau: Infinity, reported: false })));
      for (const one of here) {
        if (one.start === one.top) for (const cell of held[place.get(one.client)]) cell.reported = true;
        for (let block = one.start; block < one.top; block += 1) {
          const cell = held[place.get(one.client)][block];
          cell.count += 1;
          cell.tau = Math.min(cell.tau, one.tau);
        }
      }
      return held;
    }

    function draw() {
      const depth = run.model?.depth ?? Math.max(1, ...run.updates.top);
      slider.max = String(Math.max(0, rounds() - 1));
      slider.disabled = play.disabled = rounds() < 2;
      slider.value = String(round);
      const here = rows();
      const columns = columnsOf(here);
      const held = heldBy(columns, here, depth);
      const sums = Array.from({ length: depth }, (_, block) => held.reduce((sum, column) => sum + column[block].count, 0));
      const t = run.rounds.t[round];
      const trains = here.some((one) => one.start < one.top);
      const note = here.length && !trains ? " · every device reported sums of its features, nothing trained" : "";
      const text = rounds() ? `round ${number(round + 1)} of ${number(rounds())} · ${t === undefined ? "still open" : duration(t)}${note}` : "no round yet";
      output.textContent = text;
      slider.setAttribute("aria-valuetext", text);
      const most = Math.max(1, ...sums);
      const all = columns.length; // the last column adds up the others
      const block = (row) => depth - 1 - row; // block 1 at the bottom, as in the other panels
      const cell = (row, column) => held[column][block(row)];
      const name = (column) => (columns[column].length === 1 ? run.devices[columns[column][0]].name : `${number(columns[column].length)} devices from ${run.devices[columns[column][0]].name}`);
      map.update({
        rows: Array.from({ length: depth }, (_, row) => `block ${block(row) + 1}`), columns: all + 1, gutter: 66, cell: { height: depth > 16 ? 16 : 22, most: 128 },
        color: (row, column) => (column === all ? cos2p.color.ramp(sums[block(row)] / most) : cell(row, column).count ? stale(cell(row, column).tau) : css("--well")),
        empty: (row, column) => column === all && sums[block(row)] === 0 && trains,
        text: (row, column) => (column === all ? String(sums[block(row)] || "") : cell(row, column).count ? `τ ${cell(row, column).tau}` : ""),
        textColor: (row, column) => (column === all ? cos2p.color.onRamp(sums[block(row)] / most) : "#10151c"),
        columnLabel: (column) => (column === all ? "Σ" : all > NAMED ? null : name(column)), fitLabels: true, labelRoom: 1,
        tooltip: (row, column) => column === all
          ? { title: `Block ${block(row) + 1}`, lines: [[null, "updates this round", number(sums[block(row)])]] }
          : { title: name(column), lines: [[cell(row, column).count ? stale(cell(row, column).tau) : null, `block ${block(row) + 1}`,
            cell(row, column).count ? `trained, τ = ${cell(row, column).tau}` : cell(row, column).reported ? REPORTED : "not trained"]] },
      });
      map.el.dataset.round = round;
      frame.legend([
        [swatch(stale(0)), "trained, fresh"], [swatch(stale(2)), "trained, stale"], [swatch(css("--well"), "outline"), "not trained"],
        [swatch(css("--warn"), "crossed"), "nobody was here"], ["Σ ", "updates of the round"],
      ]);
      frame.refresh();
    }

    cos2p.color.onTheme(() => { if (run) draw(); });
    return {
      id: "window", short: "Blocks", el: frame.el, state: () => round,
      shown: (view, one) => Boolean(one?.model),
      update(view, one, fresh) {
        run = one;
        if (fresh) { stop(); last = true; }
        frame.explain(...(whole()
          ? ["Trained blocks", "Which blocks each device trained in a round. In this run a device that trains takes all blocks at once; what it trains in them stands under Devices."]
          : ["The rolling window", WINDOW]));
        go(last ? newest() : round);
      },
    };
  };
})();
