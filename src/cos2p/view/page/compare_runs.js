// Several runs next to each other: over rounds and over virtual time.
(() => {
  "use strict";
  const { h, replace } = cos2p.dom;
  const { panel, choice } = cos2p.panel;
  const { series, dash } = cos2p.color;
  const { number, percent, duration, bytes } = cos2p.format;
  const { X, PERCENT } = cos2p.curveParts;
  const { pairs } = cos2p.runData;

  function points(run, over, whose) {
    if (whose === "clients") return pairs(over === "time" ? run.rounds.t : run.rounds.version, run.rounds.client_top1);
    const scores = run.evaluations;
    const values = scores.test.top1?.length ? scores.test.top1 : scores.validation.top1 ?? [];
    return pairs(over === "time" ? scores.t : scores.version, values);
  }

  cos2p.compareRuns = () => {
    let view = null;
    let whose = "server";
    const overRounds = cos2p.lineChart({ label: "Accuracy of all runs over rounds", height: 280 });
    const overTime = cos2p.lineChart({ label: "Accuracy of all runs over time", height: 280 });
    const frame = panel({
      id: "runs", title: "Runs next to each other",
      why: "The same curves twice: over rounds, which counts aggregations, and over the fleet's time, which counts what a user waits for; a method may win one and lose the other.",
      figures,
    });
    const pick = choice("Whose accuracy", [["server", "Server"], ["clients", "Clients"]], whose, (value) => { whose = value; draw(); });
    replace(frame.tools, pick.el);
    replace(frame.body, h("div", { class: "pair" }, h("div", {}, h("h3", {}, "Over rounds"), overRounds.el), h("div", {}, h("h3", {}, "Over virtual time"), overTime.el)));

    function draw() {
      const lines = (over) => view.runs.map((run, at) => ({
        key: String(at), name: run.header.name, color: series(at), dash: dash(at), points: points(run, over, whose),
      }));
      overRounds.update({ series: lines("rounds"), x: X.rounds, y: { low: 0, ...PERCENT } });
      overTime.update({ series: lines("time"), x: X.time, y: { low: 0, ...PERCENT } });
      frame.refresh();
    }

    function figures() {
      const right = true;
      return {
        caption: "Runs",
        columns: [{ title: "run" }, { title: "method" }, { title: "state" }, { title: "round", right }, { title: "updates", right }, { title: "server top-1", right },
          { title: "clients top-1", right }, { title: "RU", right }, { title: "time", right }, { title: "down", right }, { title: "up", right }],
        rows: view.runs.map(({ header }) => [header.name, header.title, header.status, number(header.round), number(header.updates), percent(header.test ?? header.last),
          percent(header.clients), percent(header.ru), duration(header.t), bytes(header.bytes_down), bytes(header.bytes_up)]),
      };
    }

    cos2p.color.onTheme(() => { if (view) draw(); });
    return { id: "runs", short: "Runs", el: frame.el, shown: (one) => one.runs.length > 1, update(one) { view = one; draw(); } };
  };
})();
