// The rolling window: which blocks each device trained in a round, and how that moves.
(() => {
  "use strict";
  const { h, replace, calm } = cos2p.dom;
  const { panel, swatch } = cos2p.panel;
  const { stale, css } = cos2p.color;
  const { number, duration } = cos2p.format;

  cos2p.rolling = () => {
    let run = null;
    let round = 0;
    let last = true; // stay at the newest round until somebody moves the slider
    let timer = null;
    const map = cos2p.heatMap({ label: "Blocks trained in this round: devices by blocks. Arrow keys move." });
    const slider = h("input", { type: "range", min: "0", step: "1", value: "0", "aria-label": "Round", oninput: () => go(Number(slider.value), true) });
    const play = h("button", { type: "button", class: "icon", "aria-label": "Play", title: "Play", onclick: toggle }, "▶");
    const output = h("output", {});
    const frame = panel({
      id: "window", title: "The rolling window",
      why: "A device can train only a few neighbouring blocks at a time; its window moves on with every task, so that over a few rounds all devices together reach the whole depth.",
      figures: () => ({
        caption: "Windows of this round", columns: [{ title: "device" }, { title: "blocks" }, { title: "τ", right: true }],
        rows: rows().map(({ client, start, top, tau }) => [run.devices[client]?.name ?? "?", `${start + 1}–${top}`, number(tau)]),
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

    const rounds = () => Math.max(0, cos2p.runData.roundStarts(run).length - 1);

    function go(to, byHand = false) {
      round = Math.max(0, Math.min(rounds() - 1, to));
      if (byHand) last = round === rounds() - 1;
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

    function draw() {
      const depth = run.model?.depth ?? Math.max(1, ...run.updates.top);
      const count = run.devices.length;
      slider.max = String(Math.max(0, rounds() - 1));
      slider.disabled = play.disabled = rounds() < 2;
      slider.value = String(round);
      const held = run.devices.map(() => new Array(depth).fill(null));
      const sums = new Array(depth).fill(0);
      const here = rows();
      for (const one of here) {
        for (let block = one.start; block < one.top; block += 1) {
          held[one.client][block] = Math.min(held[one.client][block] ?? Infinity, one.tau);
          sums[block] += 1;
        }
      }
      const t = run.rounds.t[round];
      const text = rounds() ? `round ${number(round + 1)} of ${number(rounds())} · ${t === undefined ? "still open" : duration(t)}` : "no round yet";
      output.textContent = text;
      slider.setAttribute("aria-valuetext", text);
      const most = Math.max(1, ...sums);
      map.update({
        rows: [...run.devices.map((device) => device.name), "updates here"], columns: depth, gutter: 160,
        cell: { height: count > 24 ? 14 : 20, most: 112 },
        color: (row, column) => (row === count ? cos2p.color.ramp(sums[column] / most) : held[row][column] === null ? css("--well") : stale(held[row][column])),
        empty: (row, column) => row === count && sums[column] === 0,
        text: (row, column) => (row === count ? String(sums[column] || "") : held[row][column] === null ? "" : `τ ${held[row][column]}`),
        textColor: (row, column) => (row === count ? cos2p.color.onRamp(sums[column] / most) : "#10151c"),
        columnLabel: (column) => number(column + 1),
        tell: (row, column) => row === count
          ? { title: `Block ${column + 1}`, lines: [[null, "updates this round", number(sums[column])]] }
          : { title: run.devices[row].name, lines: [[held[row][column] === null ? null : stale(held[row][column]), `block ${column + 1}`,
            held[row][column] === null ? "not trained" : `trained, τ = ${held[row][column]}`]] },
      });
      map.el.dataset.round = round;
      frame.legend([[swatch(stale(0)), "trained, fresh"], [swatch(stale(2)), "trained, stale"], [swatch(css("--well"), "outline"), "not trained"], [swatch(css("--warn"), "crossed"), "nobody was here"]]);
      frame.refresh();
    }

    cos2p.color.onTheme(() => { if (run) draw(); });
    return {
      id: "window", short: "Window", el: frame.el, state: () => round,
      shown: (view, one) => Boolean(one),
      update(view, one, fresh) {
        run = one;
        if (fresh) { stop(); last = true; }
        go(last ? rounds() - 1 : round);
      },
    };
  };
})();
