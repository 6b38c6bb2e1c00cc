// Lines over rounds or time, in SVG: a crosshair for pointer and keyboard, a legend whose entries switch lines off.
(() => {
  "use strict";
  const { h, s, replace, setText, onResize, keyed } = cos2p.dom;
  const { ticks, short, onAxis, DASH } = cos2p.format;
  const MARGIN = { top: 12, right: 14, bottom: 34, left: 50 };
  const EMPTY = 48; // px of a chart without a point
  const FEW = 45; // points; with fewer, each one gets a dot

  /**
   * update({series, x: {label, format, time, whole, places}, y: {label, format, low, high, least, most}}), where
   * low and high are always in the picture, least and most the ends of what is possible; a series being
   * {key, name, color, dash, width, points: [[x, y], …], band: [[x, low, high], …]}; a y of null is a gap.
   */
  function lineChart({ label, height = 260 }) {
    const svg = s("svg", {
      class: "lines", height, tabindex: "0", role: "application", "aria-roledescription": "line chart", "aria-label": label,
    });
    const legend = h("div", { class: "line-legend", role: "group", "aria-label": `Lines of ${label}` });
    const said = h("p", { class: "hidden", role: "status" });
    const el = h("div", { class: "chart" }, svg, legend, said);
    const off = new Set();
    let data = { series: [], x: {}, y: {} };
    let scale = null;
    let cursor = null; // an x of the data

    function update(next) {
      data = next;
      el.dataset.series = data.series.length;
      keyed(legend, data.series.length > 1 ? data.series : [], (one) => one.key, legendButton, dressButton);
      draw();
    }

    function legendButton(one) {
      const mark = s("svg", { class: "line-mark", width: 26, height: 10, "aria-hidden": "true" },
        s("line", { x1: 1, x2: 25, y1: 5, y2: 5 }));
      return h("button", {
        type: "button",
        onclick: () => { if (!off.delete(one.key)) off.add(one.key); update(data); },
      }, mark, h("span", {}, one.name));
    }

    function dressButton(button, one) {
      button.setAttribute("aria-pressed", String(!off.has(one.key)));
      setText(button.querySelector("span"), one.name); // one key may be another line's later
      const line = button.querySelector("line");
      line.setAttribute("stroke", one.color);
      line.setAttribute("stroke-width", one.width ?? 2);
      line.setAttribute("stroke-dasharray", one.dash ?? "");
    }

    const shown = () => data.series.filter((one) => !off.has(one.key));

    function extent() {
      let [x0, x1, y0, y1] = [Infinity, -Infinity, data.y.low ?? Infinity, data.y.high ?? -Infinity];
      for (const one of shown()) {
        for (const [x, y] of one.points) {
          if (x < x0) x0 = x;
          if (x > x1) x1 = x;
          if (y === null) continue;
          if (y < y0) y0 = y;
          if (y > y1) y1 = y;
        }
        for (const [, low, high] of one.band ?? []) { y0 = Math.min(y0, low); y1 = Math.max(y1, high); }
      }
      if (x0 > x1) [x0, x1] = [0, 1];
      if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
      if (y0 > y1) [y0, y1] = [0, 1];
      if (y1 - y0 <= 1e-9 * Math.abs(y1)) { // equal but for the last bits: no axis for those
        const room = (Math.abs(y0) || 1) * 0.05;
        [y0, y1] = [Math.max(y0 - room, data.y.least ?? -Infinity), Math.min(y1 + room, data.y.most ?? Infinity)];
      }
      const step = ticks(y0, y1, 5).step;
      return { x0, x1, y0: Math.floor(y0 / step + 1e-9) * step, y1: Math.ceil(y1 / step - 1e-9) * step };
    }

    function draw() {
      const width = el.clientWidth;
      if (!width) return;
      svg.setAttribute("width", width);
      const empty = !data.series.some((one) => one.points.some(([, y]) => y !== null));
      svg.setAttribute("height", empty ? EMPTY : height);
      if (empty) {
        scale = null;
        return replace(svg, s("text", { x: 0, y: EMPTY / 2 }, "Nothing to draw yet."));
      }
      const { x0, x1, y0, y1 } = extent();
      const right = width - MARGIN.right - (shown().some((one) => one.label) ? 16 : 0);
      const bottom = height - MARGIN.bottom;
      const px = (x) => MARGIN.left + ((x - x0) / (x1 - x0)) * (right - MARGIN.left);
      const py = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - MARGIN.top);
      scale = { px, py, x0, x1, right, bottom };
      replace(svg, grid(px, py, x0, x1, y0, y1, right, bottom), shown().map((one) => drawSeries(one, px, py)), endLabels(px, py),
        s("g", { class: "cursor" }));
      if (cursor !== null) drawCursor();
    }

    function grid(px, py, x0, x1, y0, y1, right, bottom) {
      const across = ticks(y0, y1, 5);
      const down = ticks(x0, x1, Math.max(3, Math.floor((right - MARGIN.left) / (data.x.time ? 72 : 52))), data.x.time);
      const xs = data.x.places ?? (data.x.whole ? down.found.filter(Number.isInteger) : down.found);
      return s("g", { class: "grid" },
        across.found.map((y) => [
          s("line", { x1: MARGIN.left, x2: right, y1: py(y), y2: py(y) }),
          s("text", { x: MARGIN.left - 8, y: py(y) + 4, "text-anchor": "end" }, (data.y.format ?? onAxis)(y, across.step)),
        ]),
        xs.map((x) => s("text", { x: px(x), y: bottom + 17, "text-anchor": "middle" }, (data.x.format ?? short)(x, down.step))),
        s("text", { class: "axis", x: right, y: height - 3, "text-anchor": "end" }, data.x.label ?? ""));
    }

    function drawSeries(one, px, py) {
      let path = "";
      let pen = false;
      for (const [x, y] of one.points) {
        if (y === null) { pen = false; continue; }
        path += `${pen ? "L" : "M"}${px(x).toFixed(1)},${py(y).toFixed(1)}`;
        pen = true;
      }
      const band = one.band?.length && s("path", {
        class: "band", fill: one.color,
        d: `M${one.band.map(([x, , high]) => `${px(x).toFixed(1)},${py(high).toFixed(1)}`).join("L")}` +
          `L${[...one.band].reverse().map(([x, low]) => `${px(x).toFixed(1)},${py(low).toFixed(1)}`).join("L")}Z`,
      });
      const known = one.points.filter(([, y]) => y !== null);
      const dots = (known.length <= FEW || one.dots) && !one.plain;
      return s("g", { "data-series": one.key, "data-points": one.points.length }, band || null,
        s("path", { class: "line", d: path, stroke: one.color, "stroke-width": one.width ?? 2, "stroke-dasharray": one.dash || null }),
        dots ? known.map(([x, y]) => s("circle", { cx: px(x), cy: py(y), r: Math.min(3, (one.width ?? 2) + 0.6), fill: one.color })) : null);
    }

    /** The names of lines at their last points, moved apart where they would lie on each other. */
    function endLabels(px, py) {
      const found = shown().filter((one) => one.label).flatMap((one) => {
        const last = one.points.findLast(([, y]) => y !== null);
        return last ? [{ x: px(last[0]) + 7, y: py(last[1]) + 4, one }] : [];
      }).sort((a, b) => a.y - b.y);
      found.forEach((here, at) => { if (at) here.y = Math.max(here.y, found[at - 1].y + 12); });
      const over = found.length ? Math.max(0, found.at(-1).y - (height - MARGIN.bottom)) : 0;
      return found.map(({ x, y, one }) => {
        const text = s("text", { x, y: y - over }, one.label);
        text.style.fill = one.color; // the sheet's colour would win over an attribute
        return text;
      });
    }

    // ---- the crosshair

    function places() {
      const found = new Set();
      for (const one of shown()) for (const [x] of one.points) found.add(x);
      return [...found].sort((a, b) => a - b);
    }

    function at(one, x) {
      const points = one.points;
      let low = 0;
      let high = points.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (points[middle][0] <= x) low = middle; else high = middle - 1;
      }
      return points.length && points[low][0] <= x + 1e-9 ? points[low] : null;
    }

    function drawCursor() {
      const box = svg.querySelector(".cursor");
      const { px, py } = scale;
      replace(box, s("line", { x1: px(cursor), x2: px(cursor), y1: MARGIN.top, y2: scale.bottom }),
        shown().map((one) => {
          const point = at(one, cursor);
          return point && point[1] !== null
            ? s("circle", { cx: px(point[0]), cy: py(point[1]), r: 4.5, stroke: one.color }) : null;
        }));
    }

    function announce(loud) {
      const title = `${data.x.name ?? data.x.label ?? ""} ${(data.x.say ?? data.x.format ?? short)(cursor, 0)}`.trim();
      const rows = shown().map((one) => {
        const point = at(one, cursor);
        return [one.color, one.name, point && point[1] !== null ? (data.y.say ?? data.y.format ?? short)(point[1]) : DASH];
      });
      const box = svg.getBoundingClientRect();
      cos2p.tip.show(title, rows, box.left + scale.px(cursor), box.top + MARGIN.top + 60);
      if (loud) said.textContent = `${title}: ${rows.map(([, name, value]) => `${name} ${value}`).join(", ")}`;
    }

    function forget() {
      cursor = null;
      replace(svg.querySelector(".cursor") ?? s("g"));
      cos2p.tip.hide();
    }

    svg.addEventListener("pointermove", (event) => {
      if (!scale) return;
      const all = places();
      if (!all.length) return;
      const left = svg.getBoundingClientRect().left;
      const x = scale.x0 + ((event.clientX - left - MARGIN.left) / (scale.right - MARGIN.left)) * (scale.x1 - scale.x0);
      cursor = all.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best), all[0]);
      drawCursor();
      announce(false);
    });
    svg.addEventListener("pointerleave", forget);
    svg.addEventListener("blur", forget);
    svg.addEventListener("keydown", (event) => {
      const all = scale ? places() : [];
      const here = cursor === null ? -1 : all.findIndex((x) => x >= cursor - 1e-9);
      const jump = event.shiftKey ? 10 : 1;
      const to = { ArrowRight: here + jump, ArrowLeft: here < 0 ? all.length - 1 : here - jump, Home: 0, End: all.length - 1 }[event.key];
      if (event.key === "Escape") forget();
      if (to === undefined || !all.length) return;
      event.preventDefault();
      cursor = all[Math.max(0, Math.min(all.length - 1, to))];
      drawCursor();
      announce(true);
    });

    onResize(el, draw);
    cos2p.color.onTheme(draw);
    return { el, update, state: () => ({ cursor, off: [...off] }) };
  }

  cos2p.lineChart = lineChart;
})();
