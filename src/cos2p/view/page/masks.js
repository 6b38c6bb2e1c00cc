// Masks: which segments of a block each device kept, and how much two devices agree.
(() => {
  "use strict";
  const { h, replace, keyed, setText } = cos2p.dom;
  const { panel, choice, swatch, rampLegend } = cos2p.panel;
  const { ramp, onRamp, css } = cos2p.color;
  const { number, percent } = cos2p.format;
  const { bits, bins } = cos2p.runData;

  /** A mask that leaves something out; null where all devices trained whole blocks, so that no mask chose anything. */
  const chosen = (run) => cos2p.runData.once(run, "masked", ({ masks, model }) => masks.kept.flat().findLast((mask) =>
    ["heads", "units"].some((what) => bits(mask[what], model[what]).includes(0))) ?? null);

  cos2p.masks = () => {
    let run = null;
    let block = 0;
    let what = "heads";
    const kept = cos2p.heatMap({ label: "Kept segments: devices by segments of the chosen block. Arrow keys move." });
    const agree = cos2p.heatMap({ label: "Agreement of masks: devices by devices. Arrow keys move." });
    const select = h("select", { "aria-label": "Block", onchange: () => { block = Number(select.value); draw(); } });
    const keptTitle = h("h3", {});
    const agreeTitle = h("h3", {});
    const note = h("p", { class: "note" });
    const frame = panel({
      id: "masks", title: "Masks",
      why: "A device that cannot hold a whole block learns which heads and units matter for its own data and keeps only those; two devices with similar data should keep similar ones.",
      figures,
    });
    const pick = choice("Segments", [["heads", "Heads"], ["units", "Units"]], what, (value) => { what = value; draw(); });
    replace(frame.tools, pick.el, select);
    replace(frame.body, h("div", { class: "pair" }, h("div", {}, keptTitle, kept.el), h("div", {}, agreeTitle, agree.el)), note);

    const devices = () => run.masks.devices.map((at) => run.devices[at]);
    const maskOf = (row) => run.masks.kept[row]?.find((mask) => mask.block === block);

    function draw() {
      const depth = run.model?.depth ?? 1;
      const count = run.model?.[what] ?? 1;
      keyed(select, Array.from({ length: depth }, (_, at) => at), (at) => at, (at) => h("option", { value: at }, `block ${at + 1}`));
      select.value = String(block);
      const noun = what === "heads" ? "head" : "unit";
      setText(keptTitle, `Kept ${noun}s of block ${block + 1}, at each device's last visit`);
      setText(agreeTitle, `Agreement of ${noun}s between devices`);
      drawKept(count, noun);
      drawAgreement();
      frame.legend([
        [swatch(ramp(0.75)), "kept"], [swatch(css("--well"), "outline"), "not kept"], [swatch(css("--line-strong"), "dotted"), "never here"],
        rampLegend("agree 0 %", "100 %"),
      ]);
      const few = run.masks.devices.length < run.devices.length ? `Masks of ${number(run.masks.devices.length)} of ${number(run.devices.length)} devices are in this page, spread evenly over those that have any.` : "";
      setText(note, run.masks.kept.some((entry) => entry.length) ? few : "No update with a mask has been merged yet.");
      frame.refresh();
    }

    function drawKept(count, noun) {
      const parts = bins(count, 96);
      const found = run.masks.devices.map((_, row) => { const mask = maskOf(row); return mask ? bits(mask[what], count) : null; });
      const share = (row, column) => {
        const [from, to] = parts[column];
        let sum = 0;
        for (let at = from; at < to; at += 1) sum += found[row][at];
        return sum / (to - from);
      };
      kept.update({
        rows: devices().map((device) => device.name), columns: parts.length, gutter: 160, cell: { height: found.length > 24 ? 12 : 20, most: 40 },
        color: (row, column) => {
          if (!found[row]) return null;
          const here = share(row, column);
          return here ? ramp(0.2 + 0.55 * here) : css("--well");
        },
        text: (row, column) => (!found[row] && column === 0 ? "–" : ""),
        columnLabel: (column) => number(parts[column][0] + 1), labelRoom: 34,
        tooltip: (row, column) => {
          const [from, to] = parts[column];
          const name = to - from > 1 ? `${noun}s ${from + 1}–${to}` : `${noun} ${from + 1}`;
          const mask = maskOf(row);
          const words = !mask ? "never here" : to - from > 1 ? `${percent(share(row, column), 0)} kept` : share(row, column) ? "kept" : "not kept";
          return { title: devices()[row].name, lines: [[null, name, words], mask ? [null, "of version", number(mask.version)] : null].filter(Boolean) };
        },
      });
    }

    function drawAgreement() {
      const matrix = run.masks[`agreement_${what}`];
      const value = (row, column) => matrix[row]?.[column] ?? null;
      const count = matrix.length;
      agree.el.hidden = !count;
      agree.update({
        rows: devices().map((device) => device.name), columns: count, gutter: 160, cell: { height: count > 24 ? 12 : 20, most: 40 },
        color: (row, column) => (value(row, column) === null ? css("--well") : ramp(value(row, column))),
        text: (row, column) => (value(row, column) === null ? "–" : count <= 12 ? number(100 * value(row, column)) : ""),
        textColor: (row, column) => (value(row, column) === null ? css("--ink-faint") : onRamp(value(row, column))),
        columnLabel: (column) => number(column + 1),
        tooltip: (row, column) => ({
          title: `${devices()[row].name} and ${devices()[column].name}`,
          lines: [[null, "agree on", value(row, column) === null ? "no block in common" : percent(value(row, column), 0)]],
        }),
      });
    }

    function figures() {
      const count = run.model?.[what] ?? 1;
      return {
        caption: `Kept ${what}`,
        columns: [{ title: "device" }, { title: "kept of block " + (block + 1), right: true }, { title: "segments" }],
        rows: devices().map((device, at) => {
          const mask = maskOf(at);
          const list = mask ? [...bits(mask[what], count)].flatMap((bit, place) => (bit ? [place + 1] : [])) : [];
          const words = list.length > 40 ? `${list.slice(0, 40).join(", ")}, …` : list.join(", ");
          return [cos2p.nameCell(device.name), mask ? `${number(list.length)} of ${number(count)}` : "never here", words];
        }),
      };
    }

    cos2p.color.onTheme(() => { if (run) draw(); });
    return {
      id: "masks", short: "Masks", el: frame.el,
      shown: (view, one) => Boolean(one?.masks && one.model && chosen(one)),
      update(view, one, fresh) { run = one; if (fresh) block = chosen(one).block; draw(); },
    };
  };
})();
