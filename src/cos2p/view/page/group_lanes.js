// A large fleet in time: for every group, how many of its devices were at work.
(() => {
  "use strict";
  const { h, replace, setText } = cos2p.dom;
  const { ramp } = cos2p.color;
  const { percent, number, duration, clock, niceStep } = cos2p.format;
  const BINS = 160;

  /** [group][bin] → {busy: seconds at work, tau: its sum over merged tasks that ended here, merged}. */
  function density(run) {
    const end = Math.max(run.lanes.end * run.lanes.tick, 1e-9);
    const wide = end / BINS;
    const lanes = cos2p.runData.lanes(run);
    return cos2p.crowd.groups(run).map(({ devices }) => {
      const cells = Array.from({ length: BINS }, () => ({ busy: 0, tau: 0, merged: 0 }));
      for (const device of devices) {
        for (const task of lanes[device].tasks) {
          const [first, last] = [task.start, task.end].map((t) => Math.min(BINS - 1, Math.floor(t / wide)));
          for (let bin = first; bin <= last; bin += 1) cells[bin].busy += Math.max(0, Math.min(task.end, (bin + 1) * wide) - Math.max(task.start, bin * wide));
          if (task.outcome === "merged") { cells[last].tau += task.tau; cells[last].merged += 1; }
        }
      }
      return cells;
    });
  }

  cos2p.groupLanes = () => {
    const map = cos2p.heatMap({ label: "Share of each group at work: groups by time. Arrow keys move." });
    const el = h("div", { class: "group-lanes" });
    const title = h("h3", {});
    replace(el, title, map.el, h("h3", {}, "One by one"));
    function update(run) {
      el.hidden = !cos2p.crowd.crowded(run);
      if (el.hidden) return;
      const cells = cos2p.runData.once(run, "density", density);
      const groups = cos2p.crowd.groups(run);
      const end = Math.max(run.lanes.end * run.lanes.tick, 1e-9);
      const wide = end / BINS;
      const share = (row, column) => cells[row][column].busy / (wide * groups[row].devices.length);
      const most = cells.reduce((top, row, at) => row.reduce((high, _, column) => Math.max(high, share(at, column)), top), 1e-9);
      setText(title, `Share of each group at work; the darkest is ${percent(most)}`);
      const step = niceStep(end, innerWidth < 640 ? 4 : 10, true);
      map.update({
        rows: groups.map((group) => `${group.name} (${number(group.devices.length)})`), columns: BINS, gutter: 190, cell: { height: 22, most: 60 },
        color: (row, column) => ramp(0.04 + (0.96 * share(row, column)) / most),
        // Only where a round moment lies in the column.
        columnLabel: (column) => { const at = Math.ceil((column * wide) / step - 1e-9) * step; return at < (column + 1) * wide - 1e-9 ? clock(at, step) : null; }, labelRoom: 1,
        tooltip: (row, column) => {
          const { tau, merged } = cells[row][column];
          return {
            title: `${groups[row].name}, from ${duration(column * wide)} on`,
            lines: [[null, "at work", `${percent(share(row, column))} of ${number(groups[row].devices.length)}`], [null, "updates merged", number(merged)],
              ...(merged ? [[null, "mean τ", number(tau / merged, 1)]] : [])],
          };
        },
      });
    }
    return { el, update };
  };
})();
