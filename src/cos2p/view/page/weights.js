// How much each device's updates counted: γ̃ by client over the aggregations.
(() => {
  "use strict";
  const { replace } = cos2p.dom;
  const { panel, rampLegend, swatch } = cos2p.panel;
  const { ramp, onRamp, css } = cos2p.color;
  const { number, percent } = cos2p.format;
  const MOST = 160;

  /** [device shown][bin] → mean γ̃ and the number of updates in it. */
  function grid(run, parts) {
    const cells = new Map(cos2p.crowd.chosen(run).map((device) => [device, parts.map(() => ({ sum: 0, count: 0, tau: 0 }))]));
    const binOf = [];
    parts.forEach(([from, to], bin) => { for (let at = from; at < to; at += 1) binOf[at] = bin; });
    const { round, client, weight, tau } = run.updates;
    for (let at = 0; at < round.length; at += 1) {
      const cell = cells.get(client[at])?.[binOf[round[at]]];
      if (!cell || weight[at] === null) continue;
      cell.sum += weight[at];
      cell.tau += tau[at];
      cell.count += 1;
    }
    return [...cells.values()];
  }

  const shown = (run) => cos2p.crowd.chosen(run).map((at) => run.devices[at]);

  cos2p.weights = () => {
    let run = null;
    const map = cos2p.heatMap({ label: "Weights: devices by aggregations. Arrow keys move." });
    const frame = panel({
      id: "weights", title: "Weights γ̃",
      why: "When the server merges, an update counts by how much it changed, how many samples stand behind it and how stale it is; γ̃ is its share among those that held the same segments, by the mean of its weights.",
      figures: () => ({
        caption: "Mean weight of each device",
        columns: [{ title: "device" }, { title: "updates", right: true }, { title: "mean γ̃", right: true }, { title: "mean τ", right: true }],
        rows: shown(run).map((device) => [device.name, number(device.updates), percent(device.weight), number(device.staleness ?? NaN, 2)]),
      }),
    });
    replace(frame.body, map.el);

    function draw() {
      const parts = cos2p.runData.bins(run.rounds.t.length, MOST);
      const cells = grid(run, parts);
      const devices = shown(run);
      const mean = (row, column) => { const cell = cells[row][column]; return cell.count ? cell.sum / cell.count : null; };
      const few = parts.length <= 24;
      map.update({
        rows: devices.map((device) => device.name), columns: parts.length, gutter: 160, cell: { height: devices.length > 24 ? 13 : 20, most: 46 },
        color: (row, column) => (mean(row, column) === null ? css("--well") : ramp(0.06 + 0.94 * mean(row, column))),
        text: (row, column) => (few && mean(row, column) !== null ? number(100 * mean(row, column)) : ""),
        textColor: (row, column) => onRamp(mean(row, column)),
        columnLabel: (column) => number(parts[column][0] + 1), labelRoom: 34,
        tooltip: (row, column) => {
          const [from, to] = parts[column];
          const cell = cells[row][column];
          return {
            title: `${devices[row].name}, ${to - from > 1 ? `aggregations ${from + 1}–${to}` : `aggregation ${from + 1}`}`,
            lines: cell.count
              ? [[null, "weight γ̃", percent(cell.sum / cell.count)], [null, "updates", number(cell.count)], [null, "staleness τ", number(cell.tau / cell.count, cell.count > 1 ? 1 : 0)]]
              : ["no update in it"],
          };
        },
      });
      frame.legend([rampLegend("γ̃ 0 %", "100 %"), [swatch(css("--well"), "outline"), "no update"]]);
      frame.refresh();
    }

    cos2p.color.onTheme(() => { if (run) draw(); });
    return {
      id: "weights", short: "Weights", el: frame.el,
      shown: (view, one) => Boolean(one?.updates.weight.some((weight) => weight !== null)),
      update(view, one) { run = one; draw(); },
    };
  };
})();
