// How well the models do: server, clients, every exit; and the loss the devices report.
(() => {
  "use strict";
  const { series, ramp, theme } = cos2p.color;
  const { percent, number, clock, duration } = cos2p.format;
  const { panel, choice } = cos2p.panel;
  const { pairs } = cos2p.runData;
  const { h, replace } = cos2p.dom;

  const X = {
    rounds: { label: "round", name: "Round", format: (x) => number(x), whole: true },
    time: { label: "time of the run", name: "At", format: clock, say: duration, time: true },
  };

  /** Lines of the server's model: {key, name, color, …, points} over rounds or time. */
  function accuracyLines(run, over) {
    const scores = run.evaluations;
    const at = over === "time" ? scores.t : scores.version;
    const lines = [];
    for (const [part, name, dash] of [["test", "server, test", ""], ["validation", "server, validation", "7 4"]]) {
      if (scores[part].top1?.length) lines.push({ key: part, name, color: series(0), dash, width: 2.6, points: pairs(at, scores[part].top1) });
    }
    const clients = pairs(over === "time" ? run.rounds.t : run.rounds.version, run.rounds.client_top1);
    if (clients.some(([, y]) => y !== null)) {
      lines.push({ key: "clients", name: "clients, average", color: series(1), dash: "10 3 2 3", width: 2.6, points: clients });
    }
    return lines.concat(exitLines(scores, at));
  }

  function exitLines(scores, at) {
    const count = scores.exits.length;
    return scores.exits.map((depth, index) => ({
      key: `exit-${depth}`, name: `exit ${depth}`, width: 1.3, points: pairs(at, scores.exits_top1[index]),
      color: ramp((theme() === "light" ? 0.35 : 0.25) + (0.6 * index) / Math.max(1, count - 1)), dash: index % 2 ? "3 3" : "",
    }));
  }

  /** Lines of a language model, which is judged by its perplexity; none of a classifier. */
  function perplexityLines(run, over) {
    const scores = run.evaluations;
    const at = over === "time" ? scores.t : scores.version;
    return [["test", "server, test", ""], ["validation", "server, validation", "7 4"]]
      .filter(([part]) => scores[part].perplexity?.length)
      .map(([part, name, dash]) => ({ key: part, name, color: series(0), dash, width: 2.6, points: pairs(at, scores[part].perplexity) }));
  }

  function lossLines(run, over) {
    const at = over === "time" ? run.rounds.t : run.rounds.version;
    return [
      { key: "loss", name: "training", color: series(0), points: pairs(at, run.rounds.loss) },
      { key: "mask-loss", name: "mask phase", color: series(3), dash: "7 4", points: pairs(at, run.rounds.mask_loss) },
    ].filter((line) => line.points.some(([, y]) => y !== null));
  }

  const PERCENT = { format: (y) => percent(y, 0), say: (y) => percent(y) };

  /** A table with one line per x and one column per series. */
  function asTable(lines, x, say) {
    const places = [...new Set(lines.flatMap((line) => line.points.map(([place]) => place)))].sort((a, b) => a - b);
    const known = lines.map((line) => new Map(line.points));
    return {
      columns: [{ title: x.label }, ...lines.map((line) => ({ title: line.name, right: true }))],
      rows: places.map((place) => [(x.say ?? x.format)(place), ...known.map((map) => say(map.get(place) ?? null))]),
    };
  }

  cos2p.curves = () => {
    let over = "rounds";
    let run = null;
    const accuracy = cos2p.lineChart({ label: "Accuracy", height: 300 });
    const loss = cos2p.lineChart({ label: "Loss", height: 300 });
    const perplexity = cos2p.lineChart({ label: "Perplexity", height: 300 });
    const language = h("div", { hidden: true }, h("h3", {}, "Perplexity of the server's model"), perplexity.el);
    const frame = panel({
      id: "curves", title: "Accuracy and loss",
      why: "How often the server's model is right on samples it never saw, how often the devices' own smaller models are, and what the devices still get wrong while training.",
      figures: () => ({ caption: "Accuracy", ...asTable(accuracyLines(run, over), X[over], (y) => percent(y)) }),
    });
    const pick = choice("Horizontal axis", [["rounds", "Rounds"], ["time", "Time"]], over, (value) => { over = value; draw(); });
    replace(frame.tools, pick.el);
    replace(frame.body, language, h("div", { class: "pair most" }, h("div", {}, h("h3", {}, "Top-1"), accuracy.el),
      h("div", {}, h("h3", {}, "Loss, as the devices report it"), loss.el)));

    function draw() {
      const lines = accuracyLines(run, over);
      accuracy.update({ series: lines, x: X[over], y: { low: 0, ...PERCENT } });
      const hesitation = perplexityLines(run, over);
      language.hidden = !hesitation.length;
      if (hesitation.length) perplexity.update({ series: hesitation, x: X[over], y: { say: (y) => number(y, 2) } });
      loss.update({ series: lossLines(run, over), x: X[over], y: { say: (y) => number(y, 3) } });
      frame.refresh();
    }
    cos2p.color.onTheme(() => { if (run) draw(); });
    return {
      id: "curves", short: "Accuracy", el: frame.el,
      shown: (view, one) => Boolean(one),
      update(view, one) { run = one; draw(); },
    };
  };

  cos2p.curveParts = { X, PERCENT, accuracyLines, asTable };
})();
