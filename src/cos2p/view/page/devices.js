// Each device: memory against its budget, bytes, how busy it was. And how the traffic and the use of the fleet grew.
(() => {
  "use strict";
  const { h, replace } = cos2p.dom;
  const { panel, swatch } = cos2p.panel;
  const { series, css } = cos2p.color;
  const { number, percent, bytes, bytesOnAxis, known } = cos2p.format;
  const { X, PERCENT } = cos2p.curveParts;
  const { pairs } = cos2p.runData;

  /** A bar of `value` against `most`, with the figures in words. */
  function meter(value, most, words, over = false) {
    const fill = h("i", {});
    fill.style.width = `${known(value) && most ? Math.max(value ? 1.5 : 0, Math.min(100, (100 * value) / most)) : 0}%`;
    return h("div", { class: over ? "meter over" : "meter" }, h("div", { class: "track", "aria-hidden": "true" }, fill), h("span", {}, words));
  }

  cos2p.meter = meter;

  function memory(device) {
    const peak = device.measured ?? device.predicted;
    if (peak === null) return device.memory === null ? "–" : `budget ${bytes(device.memory)}`;
    const over = device.memory !== null && peak > device.memory;
    const words = `${bytes(peak)} of ${bytes(device.memory)}${device.measured !== null ? ", measured" : ""}${over ? ", over budget" : ""}`;
    return meter(peak, device.memory, words, over);
  }

  /** What it sent or received, and the rate of its link. */
  const carried = (device, key, way) => bytes(device[key]) + (device.link ? `, ${bytes(device.link[way])}/s` : "");

  cos2p.devices = () => {
    const frame = panel({
      id: "devices", title: "Devices",
      why: "What every device may hold, what it did hold, what it sent and received, and how much of the time it had something to do.",
    });
    frame.legend([[swatch(css("--accent")), "used, against the budget or the most of all devices"], [swatch(css("--warn")), "over budget, also said in words"]]);
    const right = true;
    const columns = [{ title: "device" }, { title: "R", right }, { title: "trains" }, { title: "memory, peak of budget" }, { title: "busy" }, { title: "down" }, { title: "up" },
      { title: "updates", right }, { title: "mean τ", right }, { title: "mean γ̃", right }, { title: "own top-1", right }, { title: "refused, failed, doubted", right }];
    return {
      id: "devices", short: "Devices", el: frame.el,
      shown: (view, run) => Boolean(run?.devices.length),
      update(view, run) {
        const most = (key) => run.devices.reduce((top, device) => Math.max(top, device[key]), 0);
        const [down, up] = [most("bytes_down"), most("bytes_up")];
        cos2p.keepPlace(frame.body, () => replace(frame.body, cos2p.table("Devices", columns, cos2p.crowd.chosen(run).map((at) => run.devices[at]).map((device) => [
          cos2p.nameCell(device.name), device.rate === null ? "–" : String(Number(device.rate.toPrecision(3))), device.plan ? h("span", { title: device.why ?? "" }, device.plan) : "–", memory(device), meter(device.busy, 1, percent(device.busy, 0)),
          meter(device.bytes_down, down, carried(device, "bytes_down", 0)), meter(device.bytes_up, up, carried(device, "bytes_up", 1)),
          number(device.updates), number(device.staleness ?? NaN, 2), percent(device.weight, 0), percent(device.top1),
          `${number(device.refused)} · ${number(device.failed)} · ${number(device.doubted ?? 0)}`,
        ]))));
      },
    };
  };

  cos2p.traffic = () => {
    let run = null;
    const sent = cos2p.lineChart({ label: "Bytes sent in total", height: 210 });
    const used = cos2p.lineChart({ label: "Use of the fleet per round", height: 210 });
    const lines = () => ({
      sent: [
        { key: "down", name: "down, to the devices", color: series(0), points: pairs(run.rounds.version, run.rounds.bytes_down) },
        { key: "up", name: "up, to the server", color: series(1), dash: "7 4", points: pairs(run.rounds.version, run.rounds.bytes_up) },
      ],
      used: [{ key: "ru", name: "RU", color: series(2), points: pairs(run.rounds.version, run.rounds.ru) }],
    });
    const frame = panel({
      id: "traffic", title: "Traffic and use of the fleet",
      why: "How many bytes have crossed the network so far, and in each round how busy the devices were on average against the busiest of them (RU).",
      figures: () => ({
        caption: "Traffic and RU",
        columns: [{ title: "round" }, { title: "down in total", right: true }, { title: "up in total", right: true }, { title: "RU", right: true }],
        rows: run.rounds.version.map((version, at) => [number(version), bytes(run.rounds.bytes_down[at]), bytes(run.rounds.bytes_up[at]), percent(run.rounds.ru[at])]),
      }),
    });
    replace(frame.body, h("div", { class: "pair" }, h("div", {}, h("h3", {}, "Bytes in total"), sent.el), h("div", {}, h("h3", {}, "RU of each round"), used.el)));
    function draw() {
      const { sent: bytesLines, used: ruLines } = lines();
      sent.update({ series: bytesLines, x: X.rounds, y: { low: 0, format: bytesOnAxis, say: bytes } });
      used.update({ series: ruLines, x: X.rounds, y: { low: 0, high: 1, ...PERCENT } });
      frame.refresh();
    }
    cos2p.color.onTheme(() => { if (run) draw(); });
    return { id: "traffic", short: "Traffic", el: frame.el, shown: (view, one) => Boolean(one?.rounds.t.length), update(view, one) { run = one; draw(); } };
  };
})();
