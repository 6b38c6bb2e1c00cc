// Pointer, touch and keyboard for the lanes.
(() => {
  "use strict";

  function laneControls(chart) {
    const { canvas, overview } = chart;
    const fingers = new Map(); // pointer → [x, y]
    let drag = null;
    let pinch = null;

    // The wheel scrolls the page until one works with the chart: with Ctrl, or once it has the focus.
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas && !event.shiftKey) return;
      event.preventDefault();
      const step = event.deltaMode === 1 ? 30 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        return chart.pan(((event.deltaX || event.deltaY) * step) / 1200);
      }
      chart.zoom(Math.exp((event.deltaY * step) / 400), chart.time(event.clientX - canvas.getBoundingClientRect().left));
    }, { passive: false });

    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      if (fingers.size === 1) drag = { x: event.clientX, range: chart.view(), moved: false };
      if (fingers.size === 2) pinch = { apart: apart(), range: chart.view(), centre: chart.time(centre()) };
    });

    const apart = () => { const [a, b] = [...fingers.values()]; return Math.max(10, Math.abs(a - b)); };
    const centre = () => { const [a, b] = [...fingers.values()]; return (a + b) / 2 - canvas.getBoundingClientRect().left; };

    canvas.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return chart.tip(chart.hit(event), event);
      fingers.set(event.pointerId, event.clientX);
      if (fingers.size === 2 && pinch) {
        const factor = pinch.apart / apart();
        const [a, b] = pinch.range;
        drag = null;
        return chart.show(pinch.centre - (pinch.centre - a) * factor, pinch.centre + (b - pinch.centre) * factor);
      }
      if (!drag) return;
      const shift = event.clientX - drag.x;
      if (Math.abs(shift) > 4) drag.moved = true;
      if (!drag.moved) return;
      cos2p.tip.hide();
      const [a, b] = drag.range;
      const seconds = (shift / (chart.width() - chart.left())) * (b - a);
      chart.show(a - seconds, b - seconds);
    });

    function release(event) {
      if (event.type === "pointerup" && drag && !drag.moved && fingers.size === 1) {
        const found = chart.hit(event);
        chart.select(found?.lane ?? null, found?.task ?? null, false);
      }
      fingers.delete(event.pointerId);
      if (fingers.size < 2) pinch = null;
      if (!fingers.size) drag = null;
    }
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => cos2p.tip.hide());
    canvas.addEventListener("dblclick", (event) => chart.zoom(0.4, chart.time(event.clientX - canvas.getBoundingClientRect().left)));
    chart.scroll.addEventListener("scroll", chart.later, { passive: true });

    overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); follow(event); });
    overview.addEventListener("pointermove", (event) => { if (event.buttons) follow(event); });
    function follow(event) {
      const share = (event.clientX - overview.getBoundingClientRect().left - chart.left()) / (chart.width() - chart.left());
      const [a, b] = chart.view();
      const middle = share * chart.data().end;
      chart.show(middle - (b - a) / 2, middle + (b - a) / 2);
    }

    function step(lanes, tasks) {
      const all = chart.data().lanes;
      const from = chart.selected();
      if (!all.length) return;
      if (!from) {
        const first = all.findIndex((lane) => lane.tasks.length);
        if (first >= 0) chart.select(first, chart.near(first, chart.view()[0]), true);
        return;
      }
      let lane = from.lane;
      do lane += Math.sign(lanes); while (lanes && all[lane] && !all[lane].tasks.length);
      if (lanes) {
        if (all[lane]) chart.select(lane, chart.near(lane, all[from.lane].tasks[from.task].start), true);
      } else {
        chart.select(from.lane, Math.max(0, Math.min(all[from.lane].tasks.length - 1, from.task + tasks)), true);
      }
    }

    const KEYS = {
      ArrowLeft: () => step(0, -1), ArrowRight: () => step(0, 1), ArrowUp: () => step(-1, 0), ArrowDown: () => step(1, 0),
      Home: () => step(0, -1e9), End: () => step(0, 1e9),
      "+": () => chart.zoom(0.6), "=": () => chart.zoom(0.6), "-": () => chart.zoom(1 / 0.6), _: () => chart.zoom(1 / 0.6),
      0: () => chart.show(0, chart.data().end), Escape: () => chart.select(null, null, true),
    };
    const SHIFTED = { ArrowLeft: () => chart.pan(-0.25), ArrowRight: () => chart.pan(0.25) };
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
      if (!act) return;
      event.preventDefault();
      cos2p.tip.hide();
      act();
    });
  }

  cos2p.laneControls = laneControls;
})();
