// A grid of coloured cells on a canvas, with a cursor for pointer and keyboard. Empty cells are crossed, never only pale.
(() => {
  "use strict";
  const { h, onResize, perFrame } = cos2p.dom;
  const { css } = cos2p.color;
  const { fitted } = cos2p.format;

  /**
   * update({rows: [name], columns: count, color(row, column), tooltip(row, column) → {title, lines},
   *         empty(row, column), text(row, column), columnLabel(column), fitLabels, gutter, cell: {height}, groups: [[column, name]]}).
   * `pick(row, column)` is called when a cell is chosen.
   */
  function heatMap({ label, pick = null }) {
    const canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map", "aria-label": label });
    const said = h("p", { class: "hidden", role: "status" });
    const el = h("div", { class: "heat" }, canvas, said);
    let data = null;
    let cursor = null;
    let box = null;

    function update(next) {
      data = next;
      el.dataset.rows = next.rows.length;
      el.dataset.columns = next.columns;
      if (cursor && (cursor.row >= next.rows.length || cursor.column >= next.columns)) cursor = null;
      later();
    }

    function draw() {
      const width = el.clientWidth;
      if (!width || !data) return;
      const dense = width < 560;
      const gutter = Math.min(data.gutter ?? 120, dense ? 92 : 400);
      const top = data.groups ? 22 : data.columnLabel ? 18 : 2;
      const bottom = data.groups && data.columnLabel ? 18 : 2;
      const tall = data.cell?.height ?? 22;
      const wide = Math.min(data.cell?.most ?? 60, (width - gutter - 2) / Math.max(1, data.columns));
      const height = top + data.rows.length * tall + bottom;
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      box = { gutter, top, tall, wide };
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.font = `12px ${css("--font")}`;
      pen.textBaseline = "middle";
      drawRows(pen, dense);
      drawLabels(pen, top + data.rows.length * tall + 11);
      if (cursor) drawCursor(pen);
    }

    function drawRows(pen) {
      const { gutter, top, tall, wide } = box;
      const gap = wide >= 9 ? 1 : 0;
      const ink = css("--ink-soft");
      data.rows.forEach((name, row) => {
        pen.fillStyle = ink;
        pen.textAlign = "right";
        pen.fillText(fitted(pen, String(name), gutter - 10), gutter - 8, top + (row + 0.5) * tall);
        for (let column = 0; column < data.columns; column += 1) {
          // Whole pixels: neighbours meet without a seam.
          const x = Math.round(gutter + column * wide);
          const y = top + row * tall;
          const width = Math.max(1, Math.round(gutter + (column + 1) * wide) - x - gap);
          const color = data.color(row, column);
          if (color) {
            pen.fillStyle = color;
            pen.fillRect(x, y, width, tall - 1);
          }
          if (data.empty?.(row, column)) cross(pen, x, y, width, tall - 1);
          const text = wide > 19 && data.text?.(row, column);
          if (text) {
            pen.fillStyle = data.textColor?.(row, column) ?? ink;
            pen.textAlign = "center";
            pen.fillText(text, x + width / 2, y + tall / 2);
          }
        }
      });
    }

    function cross(pen, x, y, width, height) {
      pen.strokeStyle = css("--warn");
      pen.lineWidth = 1;
      const size = Math.min(width, height, 10) / 2 - 1.5;
      if (size < 1) return;
      const [cx, cy] = [x + width / 2, y + height / 2];
      pen.beginPath();
      pen.moveTo(cx - size, cy - size); pen.lineTo(cx + size, cy + size);
      pen.moveTo(cx + size, cy - size); pen.lineTo(cx - size, cy + size);
      pen.stroke();
    }

    function drawLabels(pen, under) {
      const { gutter, top, wide } = box;
      pen.fillStyle = css("--ink-faint");
      pen.textAlign = "left";
      for (const [column, name] of data.groups ?? []) {
        pen.fillText(name, gutter + column * wide, 9);
        if (column) pen.fillRect(gutter + column * wide - 2, top, 1.5, data.rows.length * box.tall);
      }
      if (!data.columnLabel) return;
      const every = Math.max(1, Math.ceil((data.labelRoom ?? 26) / wide));
      pen.textAlign = "center";
      for (let column = 0; column < data.columns; column += every) {
        const label = data.columnLabel(column);
        if (label === null) continue;
        const text = data.fitLabels ? fitted(pen, label, wide - 5) : label;
        const half = pen.measureText(text).width / 2;
        pen.fillText(text, Math.min(gutter + data.columns * wide - half, gutter + (column + 0.5) * wide), data.groups ? under : 8);
      }
    }

    function drawCursor(pen) {
      const { gutter, top, tall, wide } = box;
      pen.strokeStyle = css("--focus");
      pen.lineWidth = 2;
      pen.strokeRect(gutter + cursor.column * wide - 1.5, top + cursor.row * tall - 1.5, Math.max(3, wide) + 1.5, tall + 2);
    }

    const later = perFrame(draw);

    function place(event) {
      if (!box || !data) return null;
      const area = canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - area.top - box.top) / box.tall);
      const column = Math.floor((event.clientX - area.left - box.gutter) / box.wide);
      return row >= 0 && row < data.rows.length && column >= 0 && column < data.columns ? { row, column } : null;
    }

    function move(to, loud) {
      cursor = to;
      later();
      if (!to) return cos2p.tip.hide();
      const { title, lines } = data.tooltip(to.row, to.column);
      const area = canvas.getBoundingClientRect();
      cos2p.tip.show(title, lines, area.left + box.gutter + (to.column + 1) * box.wide, area.top + box.top + (to.row + 0.5) * box.tall);
      if (loud) said.textContent = `${title}. ${lines.map((one) => (Array.isArray(one) ? one.slice(1).join(" ") : one)).join(", ")}`;
    }

    canvas.addEventListener("pointermove", (event) => move(place(event), false));
    canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) move(null, false); else cos2p.tip.hide(); });
    canvas.addEventListener("blur", () => move(null, false));
    canvas.addEventListener("click", (event) => { const to = place(event); if (to && pick) pick(to.row, to.column); });
    canvas.addEventListener("keydown", (event) => {
      if (!data || !data.rows.length || !data.columns) return;
      if (event.key === "Escape") return move(null, false);
      if ((event.key === "Enter" || event.key === " ") && cursor && pick) {
        event.preventDefault();
        return pick(cursor.row, cursor.column);
      }
      const jump = event.shiftKey ? 10 : 1;
      const step = { ArrowRight: [0, jump], ArrowLeft: [0, -jump], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -1e9], End: [0, 1e9] }[event.key];
      if (!step) return;
      event.preventDefault();
      const from = cursor ?? { row: 0, column: 0 };
      const clip = (value, most) => Math.max(0, Math.min(most - 1, value));
      move(cursor ? { row: clip(from.row + step[0], data.rows.length), column: clip(from.column + step[1], data.columns) } : from, true);
    });

    onResize(el, draw);
    cos2p.color.onTheme(later);
    return { el, update, state: () => cursor };
  }

  cos2p.heatMap = heatMap;
})();
