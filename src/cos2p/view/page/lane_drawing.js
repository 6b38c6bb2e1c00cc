// How a device's time looks on the canvas. The form says what the device does, the colour how stale its update was.
(() => {
  "use strict";
  const { css, stale, series } = cos2p.color;

  // [name in the data, words, form, index of the colour when phases are coloured]
  const PHASES = [
    ["download", "downloading", "low", 5],
    ["masks", "mask phase", "hatched", 3],
    ["prefix", "frozen prefix", "pale", 6],
    ["training", "training", "full", 0],
    ["upload", "uploading", "low", 2],
    ["late", "late", "outline", 1],
  ];
  const PHASE = new Map(PHASES.map((entry) => [entry[0], entry]));
  const words = (phase) => PHASE.get(phase)?.[1] ?? phase;

  const FINE = 3; // px; a narrower task is one bar of its colour

  function hatch(pen, color) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.fillStyle = color;
    brush.globalAlpha = 0.28;
    brush.fillRect(0, 0, 6, 6);
    brush.globalAlpha = 1;
    brush.strokeStyle = color;
    brush.lineWidth = 1.6;
    for (const shift of [-6, 0, 6]) {
      brush.beginPath();
      brush.moveTo(shift, 6);
      brush.lineTo(shift + 6, 0);
      brush.stroke();
    }
    return pen.createPattern(tile, "repeat");
  }

  /** A brush for one drawing: patterns are made once per colour. */
  function makeBrush(pen, colorBy) {
    const patterns = new Map();
    const pattern = (color) => patterns.get(color) ?? patterns.set(color, hatch(pen, color)).get(color);
    const byTau = new Map();
    const byPhase = new Map(PHASES.map(([phase, , , index]) => [phase, series(index)]));
    const unknown = series(6);
    const card = css("--card");
    function colorOf(task, phase) {
      if (colorBy === "phase") return byPhase.get(phase) ?? unknown;
      if (!byTau.has(task.tau)) byTau.set(task.tau, stale(task.tau));
      return byTau.get(task.tau);
    }

    function bar(form, color, x, y, width, tall) {
      if (form === "low") {
        pen.fillStyle = color;
        pen.fillRect(x, y + tall * 0.55, width, tall * 0.45);
      } else if (form === "hatched") {
        pen.fillStyle = pattern(color);
        pen.fillRect(x, y, width, tall);
      } else if (form === "pale") {
        pen.globalAlpha = 0.38;
        pen.fillStyle = color;
        pen.fillRect(x, y, width, tall);
        pen.globalAlpha = 1;
      } else if (form === "outline") {
        pen.strokeStyle = color;
        pen.lineWidth = 1.5;
        pen.strokeRect(x + 0.75, y + 0.75, Math.max(0.5, width - 1.5), tall - 1.5);
      } else {
        pen.fillStyle = color;
        pen.fillRect(x, y, width, tall);
      }
    }

    function task(one, px, y, tall, left, right) {
      const x0 = px(one.start);
      const x1 = px(one.end);
      if (x1 - x0 < FINE) {
        pen.fillStyle = colorOf(one, "training");
        pen.fillRect(x0, y, Math.max(0.6, x1 - x0 - 0.4), tall);
      } else {
        for (const [phase, from, to] of one.phases) {
          const a = Math.max(left - 2, px(from));
          const b = Math.min(right + 2, px(to));
          if (b > a) bar(PHASE.get(phase)?.[2] ?? "full", colorOf(one, phase), a, y, Math.max(0.75, b - a), tall);
        }
        pen.fillStyle = card;
        pen.fillRect(x1 - 0.75, y, 1, tall);
      }
      if (one.lost && x1 - x0 > 1) mark(Math.min(x1, right) - 6, y + tall / 2, tall);
    }

    /** A cross: the update was refused, dropped, or never came. */
    function mark(x, y, tall) {
      const size = Math.min(4, tall / 3);
      pen.lineWidth = 4;
      pen.strokeStyle = css("--card");
      for (const color of [css("--card"), css("--warn")]) {
        pen.strokeStyle = color;
        pen.beginPath();
        pen.moveTo(x - size, y - size); pen.lineTo(x + size, y + size);
        pen.moveTo(x + size, y - size); pen.lineTo(x - size, y + size);
        pen.stroke();
        pen.lineWidth = 2;
      }
    }

    /** Away or dead: a dashed line with a cross at its start. */
    function gone(x0, x1, y) {
      pen.strokeStyle = css("--warn");
      pen.lineWidth = 1.5;
      pen.setLineDash([2, 4]);
      pen.beginPath();
      pen.moveTo(x0, y); pen.lineTo(x1, y);
      pen.stroke();
      pen.setLineDash([]);
      mark(x0 + 5, y, 14);
    }

    return { task, gone };
  }

  cos2p.laneDrawing = { PHASES, words, makeBrush };
})();
