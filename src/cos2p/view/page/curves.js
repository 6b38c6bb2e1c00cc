// How well the models do: server, clients, every exit; and the loss the devices report.
(() => {
  "use strict";
  const { series, spectrum, css } = cos2p.color;
  const { percent, number, clock, duration } = cos2p.format;
  const { panel, choice } = cos2p.panel;
  const { pairs } = cos2p.runData;
  const { h, replace, setText } = cos2p.dom;

  const X = {
    rounds: { label: "round", name: "Round", format: (x) => number(x), whole: true },
    time: { label: "time of the run", name: "At", format: clock, say: duration, time: true },
  };

  const WHAT = { models: "Server and clients", exits: "Exits" };

  /** Server, clients, and the exit to use if it is not the deepest: {key, name, color, …, points} over rounds or time. */
  function accuracyLines(run, over) {
    const scores = run.evaluations;
    const at = over === "time" ? scores.t : scores.version;
    const lines = [];
    for (const [part, name, index, dash] of [["test", "server, test", 0, ""], ["validation", "server, validation", 2, "7 4"]]) {
      if (scores[part].top1?.length) lines.push({ key: part, name, color: series(index), dash, width: 2.4, points: pairs(at, scores[part].top1) });
    }
    const clients = pairs(over === "time" ? run.rounds.t : run.rounds.version, run.rounds.client_top1);
    if (clients.some(([, y]) => y !== null)) {
      lines.push({ key: "clients", name: "clients, average", color: series(1), dash: "10 3 2 3", width: 2.4, points: clients });
    }
    const best = run.header.best_exit;
    if (best) lines.push({ ...exitLines(run, over).find((line) => line.key === `exit-${best.depth}`), name: `exit ${best.depth}, ${best.part}`, color: series(3), dash: "2 3", width: 2.4, label: "" });
    return lines;
  }

  /** One line for each exit, named at its end. */
  function exitLines(run, over) {
    const scores = run.evaluations;
    const at = over === "time" ? scores.t : scores.version;
    const last = scores.exits.length - 1;
    return scores.exits.map((depth, index) => ({
      key: `exit-${depth}`, name: `exit ${depth}${index === last ? ", the deepest" : ""}`, width: index === last ? 2.6 : 1.7, label: String(depth),
      points: pairs(at, scores.exits_top1[index]), color: spectrum(last ? index / last : 0), dash: index % 2 && index !== last ? "5 3" : "",
    }));
  }

  /** Lines of a language model, which is evaluated by its perplexity; none of a classifier. */
  function perplexityLines(run, over) {
    const scores = run.evaluations;
    const at = over === "time" ? scores.t : scores.version;
    return [["test", "server, test", ""], ["validation", "server, validation", "7 4"]]
      .filter(([part]) => scores[part].perplexity?.length)
      .map(([part, name, dash]) => ({ key: part, name, color: series(0), dash, width: 2.6, points: pairs(at, scores[part].perplexity) }));
  }

  /** Level lines of what needs no training: [[name, share], …] across the points of `lines`. */
  function baselines(lines, known) {
    const xs = lines.flatMap((line) => line.points.map(([x]) => x));
    if (!xs.length) return [];
    const [first, last] = [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))];
    return known.filter(([, share]) => typeof share === "number").map(([name, share], at) => ({
      key: name, name, color: css("--ink-faint"), dash: ["1 3", "4 3", "8 3 1 3"][at % 3], width: 1.3, plain: true, points: [[first, share], [last, share]],
    }));
  }

  const worth = ({ header }) => [["chance", header.chance], ["most frequent class", header.majority], ["clients' own most frequent class", header.client_majority]];

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
    let what = "models";
    let run = null;
    const accuracy = cos2p.lineChart({ label: "Accuracy", height: 300 });
    const loss = cos2p.lineChart({ label: "Loss", height: 220 });
    const perplexity = cos2p.lineChart({ label: "Perplexity", height: 300 });
    const rate = cos2p.lineChart({ label: "Learning rate", height: 150 });
    const language = h("div", { class: "language", hidden: true }, h("h3", {}, "Perplexity of the server's model"), perplexity.el);
    const rateBox = h("div", {}, h("h3", {}, "Learning rate of the tasks"), rate.el);
    const frame = panel({
      id: "curves", title: "Accuracy and loss",
      why: "How often the server's model is right on samples it never saw, how often the devices' own smaller models are, and what the devices still get wrong while training.",
      figures: () => ({ caption: "Accuracy", ...asTable(lines(), X[over], (y) => percent(y)) }),
    });
    const pickWhat = choice("Which models", Object.entries(WHAT), what, (value) => { what = value; draw(); });
    const pick = choice("Horizontal axis", [["rounds", "Rounds"], ["time", "Time"]], over, (value) => { over = value; draw(); });
    const title = h("h3", {});
    const note = h("p", { class: "note" });
    replace(frame.tools, pickWhat.el, pick.el);
    replace(frame.body, h("div", { class: "pair most" }, h("div", {}, title, accuracy.el, note), h("div", {}, h("h3", {}, "Loss, as the devices report it"), loss.el, rateBox)), language); // the sheet puts it first

    const lines = () => (what === "exits" ? exitLines : accuracyLines)(run, over);

    function draw() {
      const shown = lines();
      const known = what === "exits" ? worth(run).slice(0, 2) : worth(run);
      setText(title, what === "exits" ? `Top-1 of every exit${run.evaluations.exits_part ? `, ${run.evaluations.exits_part} samples` : ""}` : "Top-1");
      accuracy.update({ series: shown.concat(baselines(shown, known)), x: X[over], y: { low: 0, most: 1, ...PERCENT } });
      const hesitation = perplexityLines(run, over);
      language.hidden = !hesitation.length;
      if (hesitation.length) perplexity.update({ series: hesitation, x: X[over], y: { say: (y) => number(y, 2) } });
      loss.update({ series: lossLines(run, over), x: X[over], y: { say: (y) => number(y, 3) } });
      const rates = pairs(over === "time" ? run.rounds.t : run.rounds.version, run.rounds.lr);
      rateBox.hidden = !rates.some(([, y]) => y !== null);
      rate.update({ series: [{ key: "lr", name: "learning rate", color: series(2), points: rates }], x: X[over], y: { low: 0, say: cos2p.format.short } });
      pickWhat.el.hidden = run.evaluations.exits.length < 2;
      const head = (run.about ?? []).find(([name]) => name === "Head")?.[1];
      setText(note, [exitWords(run.header.best_exit), head && `The head is ${head}.`].filter(Boolean).join(" "));
      note.hidden = !note.textContent;
      frame.refresh();
    }
    cos2p.color.onTheme(() => { if (run) draw(); });
    return {
      id: "curves", short: "Accuracy", el: frame.el,
      shown: (view, one) => Boolean(one?.model),
      update(view, one) { run = one; draw(); },
    };
  };

  /** Of a shallower exit that is better than the deepest. */
  function exitWords(best) {
    if (!best) return "";
    const [here, there] = best.perplexity === null || best.perplexity === undefined ? [percent(best.top1), percent(best.deepest_top1)]
      : [`perplexity ${number(best.perplexity, 2)}`, number(best.deepest_perplexity, 2)];
    return `Exit ${best.depth} is better than the deepest: ${here} against ${there} on ${best.part} samples at the last evaluation.`;
  }

  cos2p.curveParts = { X, PERCENT, accuracyLines, asTable, baselines };
})();
