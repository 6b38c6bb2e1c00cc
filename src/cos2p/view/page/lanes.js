// The fleet in time: one lane per device, drawn only where one looks. Zoom and pan by pointer, touch and keyboard.
(() => {
  "use strict";
  const { h, onResize, perFrame } = cos2p.dom;
  const { css } = cos2p.color;
  const { clock, ticks, fitted } = cos2p.format;
  const { makeBrush } = cos2p.laneDrawing;
  const AXIS = 26;
  const OVERVIEW = 30;

  /** The last task of a lane that begins at or before `t`; -1 if none does. Tasks are sorted by their start. */
  function lastBefore(tasks, t) {
    let [low, high] = [0, tasks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tasks[middle].start <= t) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  /**
   * update({lanes: [{name, tasks, gone: [[from, to]]}], aggregations: [{t, …}], end}) and options.colorBy.
   * `chosen(lane, task, loud)` says what is selected; `describe(lane, task)` gives the tip.
   */
  function laneChart({ chosen, describe }) {
    const canvas = h("canvas", {
      tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label":
        "Timeline of the fleet. Left and right arrows go from task to task, up and down from device to device, " +
        "plus and minus zoom, shift with an arrow moves along, 0 shows everything.",
    });
    const axis = h("canvas", { class: "axis-canvas", "aria-hidden": "true" });
    const overview = h("canvas", { class: "overview", "aria-hidden": "true" });
    const space = h("div", { class: "lanes-space" }, canvas);
    const scroll = h("div", { class: "lanes-scroll" }, space);
    const el = h("div", { class: "lanes" }, scroll, axis, overview);
    const options = { colorBy: "stale" };
    let data = { lanes: [], aggregations: [], end: 1 };
    let range = null; // [from, to] in seconds; null: everything
    let selected = null; // {lane, task}: indices
    let size = { width: 0, gutter: 0, tall: 0, height: 0 };
    let drawn = 0;

    const view = () => range ?? [0, data.end];
    const left = () => size.gutter;
    const px = (t) => { const [a, b] = view(); return size.gutter + ((t - a) / (b - a)) * (size.width - size.gutter); };
    const time = (x) => { const [a, b] = view(); return a + ((x - size.gutter) / (size.width - size.gutter)) * (b - a); };

    function update(next) {
      const followed = range && range[1] >= data.end * 0.999 && next.end > data.end; // looking at the newest: go along
      if (followed) range = [range[0] + next.end - data.end, next.end];
      data = next;
      const tasks = data.lanes.reduce((sum, lane) => sum + lane.tasks.length, 0);
      Object.assign(el.dataset, { lanes: data.lanes.length, tasks, aggregations: data.aggregations.length });
      if (selected && !data.lanes[selected.lane]?.tasks[selected.task]) selected = null;
      if (selected) chosen(data.lanes[selected.lane], data.lanes[selected.lane].tasks[selected.task], false);
      later();
    }

    function measure() {
      size.width = el.clientWidth - 2;
      size.gutter = size.width < 560 ? 84 : 172;
      const count = data.lanes.length;
      size.tall = count <= 12 ? 28 : count <= 32 ? 20 : 14;
      const full = count * size.tall + 8;
      space.style.height = `${full}px`;
      size.height = Math.min(full, Math.max(160, Math.min(704, innerHeight * 0.8)));
      scroll.style.maxHeight = `${size.height}px`;
    }

    function fit(surface, height) {
      const ratio = devicePixelRatio || 1;
      surface.width = Math.round(size.width * ratio);
      surface.height = Math.round(height * ratio);
      surface.style.height = `${height}px`;
      const pen = surface.getContext("2d");
      pen.scale(ratio, ratio);
      pen.font = `12px ${css("--font")}`;
      pen.textBaseline = "middle";
      return pen;
    }

    function draw() {
      measure(); // here, once per frame: it makes the browser lay out the page
      if (size.width < 10) return;
      const started = performance.now();
      const pen = fit(canvas, size.height);
      const first = Math.max(0, Math.floor((scroll.scrollTop - 4) / size.tall));
      const last = Math.min(data.lanes.length - 1, Math.ceil((scroll.scrollTop + size.height) / size.tall));
      const yOf = (lane) => 4 + lane * size.tall - scroll.scrollTop;
      pen.save();
      pen.beginPath();
      pen.rect(left(), 0, size.width - left(), size.height);
      pen.clip();
      drawAggregations(pen, size.height);
      const brush = makeBrush(pen, options.colorBy);
      drawn = 0;
      for (let lane = first; lane <= last; lane += 1) drawLane(pen, brush, data.lanes[lane], yOf(lane));
      if (selected) drawSelected(pen, yOf(selected.lane));
      pen.restore();
      for (let lane = first; lane <= last; lane += 1) drawName(pen, lane, yOf(lane));
      drawAxis();
      drawOverview();
      el.dataset.drawMs = (performance.now() - started).toFixed(1);
      el.dataset.drawn = drawn;
    }

    function drawLane(pen, brush, lane, y) {
      const [a, b] = view();
      const middle = y + size.tall / 2;
      pen.strokeStyle = css("--line-strong");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(px(Math.max(0, a)), middle);
      pen.lineTo(px(Math.min(b, data.end)), middle);
      pen.stroke();
      const pad = size.tall > 18 ? 4 : 2;
      let covered = -1; // tasks that end within the pixel already drawn need no bar of their own
      for (let at = Math.max(0, lastBefore(lane.tasks, a)); at < lane.tasks.length; at += 1) {
        const task = lane.tasks[at];
        if (task.start > b) break;
        const x = px(task.end);
        if (x - covered < 0.7) continue;
        covered = x;
        brush.task(task, px, y + pad, size.tall - 2 * pad, left(), size.width);
        drawn += 1;
      }
      for (const [from, to] of lane.gone) if (to >= a && from <= b) brush.gone(px(from), px(to), middle);
    }

    function drawAggregations(pen, height) {
      const [a, b] = view();
      const room = (size.width - left()) / Math.max(1, data.aggregations.filter(({ t }) => t >= a && t <= b).length);
      pen.fillStyle = css("--ink-soft");
      pen.globalAlpha = room > 24 ? 0.6 : room > 6 ? 0.32 : 0.14;
      for (const { t } of data.aggregations) if (t >= a && t <= b) pen.fillRect(px(t) - 0.5, 0, 1, height);
      pen.globalAlpha = 1;
    }

    function drawSelected(pen, y) {
      const task = data.lanes[selected.lane].tasks[selected.task];
      pen.strokeStyle = css("--focus");
      pen.lineWidth = 2.5;
      pen.strokeRect(px(task.start) - 1.5, y + 0.5, Math.max(3, px(task.end) - px(task.start)) + 3, size.tall - 1);
    }

    function drawName(pen, lane, y) {
      pen.textAlign = "right";
      pen.fillStyle = selected?.lane === lane ? css("--ink") : css("--ink-soft");
      pen.font = `${selected?.lane === lane ? "600 " : ""}${size.tall < 18 ? 11 : 12}px ${css("--font")}`;
      pen.fillText(fitted(pen, data.lanes[lane].name, left() - 14), left() - 9, y + size.tall / 2);
    }

    function drawAxis() {
      const pen = fit(axis, AXIS);
      const [a, b] = view();
      const { found, step } = ticks(a, b, Math.max(3, Math.floor((size.width - left()) / 90)), true);
      pen.fillStyle = css("--ink-faint");
      pen.textAlign = "center";
      for (const t of found) {
        pen.fillRect(px(t), 0, 1, 5);
        const text = clock(t, step);
        const half = pen.measureText(text).width / 2;
        pen.fillText(text, Math.min(size.width - half - 4, Math.max(left() + half, px(t))), 15);
      }
    }

    /** The whole run in a strip, with a frame around what is shown above. */
    function drawOverview() {
      overview.hidden = !range;
      if (!range) return;
      const pen = fit(overview, OVERVIEW);
      const wide = size.width - left();
      const at = (t) => left() + (t / data.end) * wide;
      const bins = new Float64Array(Math.max(1, Math.floor(wide / 3)));
      for (const lane of data.lanes) {
        for (const task of lane.tasks) {
          const from = Math.floor((task.start / data.end) * bins.length);
          const to = Math.min(bins.length - 1, Math.floor((task.end / data.end) * bins.length));
          for (let bin = from; bin <= to; bin += 1) bins[bin] += 1;
        }
      }
      const most = Math.max(1, ...bins);
      pen.fillStyle = css("--quiet");
      bins.forEach((count, bin) => pen.fillRect(left() + bin * 3, OVERVIEW - 4 - (22 * count) / most, 2.4, (22 * count) / most));
      pen.fillStyle = css("--ink-faint");
      pen.textAlign = "right";
      pen.fillText("overview", left() - 9, OVERVIEW / 2);
      pen.strokeStyle = css("--accent");
      pen.lineWidth = 2;
      pen.strokeRect(at(range[0]), 2, Math.max(4, at(range[1]) - at(range[0])), OVERVIEW - 4);
    }

    const later = perFrame(draw);

    // ---- where one looks

    function show(from, to) {
      const span = Math.min(data.end, Math.max(data.end / 2e5, to - from));
      const start = Math.max(0, Math.min(data.end - span, from));
      range = span >= data.end * 0.9999 ? null : [start, start + span];
      later();
    }

    function zoom(factor, around = null) {
      const [a, b] = view();
      const task = selected && data.lanes[selected.lane].tasks[selected.task];
      const seen = task && task.start < b && task.end > a;
      const centre = around ?? (seen ? (Math.max(a, task.start) + Math.min(b, task.end)) / 2 : (a + b) / 2);
      show(centre - (centre - a) * factor, centre + (b - centre) * factor);
    }

    const pan = (share) => { const [a, b] = view(); show(a + (b - a) * share, b + (b - a) * share); };

    function select(lane, task, loud) {
      selected = lane === null ? null : { lane, task };
      if (selected) {
        const one = data.lanes[lane].tasks[task];
        const [a, b] = view();
        if (loud && (one.end < a || one.start > b)) show(one.start - (b - a) / 2, one.start + (b - a) / 2);
        if (loud) keepInSight(lane);
        chosen(data.lanes[lane], one, loud);
      } else chosen(null, null, loud);
      later();
    }

    function keepInSight(lane) {
      const top = lane * size.tall;
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (top + size.tall + 8 > scroll.scrollTop + size.height) scroll.scrollTop = top + size.tall + 8 - size.height;
    }

    function hit(event) {
      const box = canvas.getBoundingClientRect();
      const lane = Math.floor((event.clientY - box.top - 4 + scroll.scrollTop) / size.tall);
      const t = time(event.clientX - box.left);
      if (!data.lanes[lane] || event.clientX - box.left < left()) return null;
      const slack = (view()[1] - view()[0]) / (size.width - left());
      const at = lastBefore(data.lanes[lane].tasks, t + slack);
      const task = data.lanes[lane].tasks[at];
      return task && task.end + slack >= t ? { lane, task: at } : null;
    }

    cos2p.laneControls({
      canvas, overview, scroll, hit, zoom, pan, show, select, later, time, view,
      data: () => data, selected: () => selected, left, width: () => size.width,
      near: (lane, t) => Math.max(0, lastBefore(data.lanes[lane].tasks, t)),
      tip(found, event) {
        if (!found) return cos2p.tip.hide();
        const lane = data.lanes[found.lane];
        const { title, lines } = describe(lane, lane.tasks[found.task]);
        cos2p.tip.show(title, lines, event.clientX, event.clientY);
      },
    });

    onResize(el, draw);
    cos2p.color.onTheme(later);
    return {
      el, update, zoom, pan, options,
      redraw: later,
      all: () => { range = null; later(); },
      state: () => ({ range: view(), zoomed: range !== null, selected }),
    };
  }

  cos2p.laneChart = laneChart;
})();
