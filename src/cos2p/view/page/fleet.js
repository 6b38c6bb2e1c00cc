// The panel around the lanes: legend, zoom buttons, and what is known of the selected task.
(() => {
  "use strict";
  const { h, replace } = cos2p.dom;
  const { panel, choice, swatch, nothing } = cos2p.panel;
  const { stale, STALE_STEPS, series, css } = cos2p.color;
  const { duration, number, percent } = cos2p.format;
  const { PHASES, words } = cos2p.laneDrawing;
  const OUTCOMES = { open: "under way", merged: "merged", refused: "refused", dropped: "dropped", failed: "failed", lost: "lost" };

  function legendItems(colorBy, aggregations) {
    const grey = css("--ink-faint");
    const phases = PHASES.map(([, text, form, index]) =>
      [swatch(colorBy === "phase" ? series(index) : grey, { full: "", low: "low", hatched: "hatched", pale: "pale", outline: "outline" }[form]), text]);
    const taus = colorBy === "phase" ? [] : Array.from({ length: STALE_STEPS }, (_, tau) =>
      [swatch(stale(tau)), tau === 0 ? "fresh (τ = 0)" : tau === STALE_STEPS - 1 ? `τ ≥ ${tau}` : `τ = ${tau}`]);
    return [
      ...taus, ...phases, [swatch(css("--line-strong"), "thin"), "idle"],
      [swatch(css("--warn"), "dashes"), "dead or away"], [swatch(css("--warn"), "crossed"), "came to nothing"],
      aggregations ? [swatch(grey, "rule"), "aggregation"] : null,
    ].filter(Boolean);
  }

  function tauWords(task) {
    if (task.tau === null) return "–";
    const rounds = `${number(task.tau)} ${task.tau === 1 ? "aggregation" : "aggregations"} late`;
    return task.tau === 0 ? "0, fresh" : task.outcome === "open" ? `${rounds} so far` : rounds;
  }

  const shownLanes = (run) => { const all = cos2p.runData.lanes(run); return cos2p.crowd.chosen(run).map((device) => all[device]); };

  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

  cos2p.fleet = () => {
    let run = null;
    const details = h("div", { class: "details", role: "status", id: "fleet-details" });
    const chart = cos2p.laneChart({ chosen, describe });
    const frame = panel({
      id: "fleet", title: "The fleet in time",
      why: "One lane per device: fast devices do not wait for slow ones, the server aggregates whenever enough updates are in (vertical lines), and an update that missed some aggregations is stale and shown in a warmer colour.",
      figures,
    });
    const pick = choice("Colour of the lanes", [["stale", "Staleness"], ["phase", "Phase"]], "stale", (value) => {
      chart.options.colorBy = value;
      chart.redraw();
      frame.legend(legendItems(value, true));
    });
    const button = (label, text, act) => h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick: act }, text);
    replace(frame.tools, pick.el, button("Zoom in", "+", () => chart.zoom(0.5)), button("Zoom out", "−", () => chart.zoom(2)),
      button("Show the whole run", "⤢", chart.all));
    const empty = nothing("No device has a task yet.");
    const byGroup = cos2p.groupLanes();
    replace(frame.body, empty, chart.el, details, byGroup.el); // the sheet puts the groups first
    hint();

    function hint() {
      replace(details, "Select a task by a click, or with ", h("kbd", {}, "Tab"), " and the arrow keys. Drag to move, ",
        h("kbd", {}, "Ctrl"), " + wheel, pinch or ", h("kbd", {}, "+"), " ", h("kbd", {}, "−"), " to zoom, ", h("kbd", {}, "0"), " for everything.");
    }

    function describe(lane, task) {
      return {
        title: lane.name,
        lines: [
          [null, "task", `${task.index + 1}, ${OUTCOMES[task.outcome]}`], [stale(task.tau), "staleness τ", tauWords(task)],
          [null, "from version", number(task.version)], [null, "lasted", duration(task.end - task.start)],
          ...task.phases.map(([phase, from, to]) => [null, words(phase), duration(to - from)]),
        ],
      };
    }

    let announced = ""; // a screen reader hears of the task again only when it has changed
    function chosen(lane, task) {
      const news = lane ? JSON.stringify([lane.name, lane.tasks.length, task]) : "";
      if (lane && news === announced) return;
      announced = news;
      if (!lane) return hint();
      const device = run.devices[lane.device];
      replace(details, h("strong", {}, lane.name), ` · task ${task.index + 1} of ${lane.tasks.length} · ${OUTCOMES[task.outcome]}`,
        h("dl", {}, fact("Staleness τ", tauWords(task)), fact("Cut from version", number(task.version)),
          fact("From", duration(task.start)), fact("Lasted", duration(task.end - task.start)),
          task.phases.map(([phase, from, to]) => fact(words(phase), duration(to - from))),
          fact("Device busy", percent(device.busy, 0)), fact("Rate R", device.rate === null ? "–" : String(device.rate))));
    }

    function figures() {
      const rows = [];
      for (const lane of shownLanes(run)) {
        for (const task of lane.tasks) {
          rows.push([lane.name, number(task.index + 1), duration(task.start), duration(task.end), number(task.version),
            task.tau === null ? "–" : number(task.tau), OUTCOMES[task.outcome]]);
        }
      }
      const right = true;
      return {
        caption: "Tasks of every device",
        columns: [{ title: "device" }, { title: "task", right }, { title: "from", right }, { title: "to", right },
          { title: "version", right }, { title: "τ", right }, { title: "outcome" }], rows,
      };
    }

    cos2p.color.onTheme(() => frame.legend(legendItems(chart.options.colorBy, true)));
    return {
      id: "fleet", short: "Fleet", el: frame.el, chart,
      shown: (view, one) => Boolean(one?.model || one?.devices.length),
      update(view, one, fresh) {
        run = one;
        if (fresh) { chart.all(); hint(); }
        const lanes = shownLanes(one);
        byGroup.update(one);
        empty.hidden = lanes.some((lane) => lane.tasks.length);
        chart.el.hidden = details.hidden = !empty.hidden;
        chart.update({ lanes, aggregations: one.rounds.t.map((t, at) => ({ t, round: at })), end: Math.max(one.lanes.end * one.lanes.tick, 1e-9) });
        frame.legend(legendItems(chart.options.colorBy, true));
        frame.refresh();
      },
    };
  };
})();
