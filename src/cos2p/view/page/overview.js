// The first screen: did it work, against what, at what price. Further figures stand below, each with what it means.
(() => {
  "use strict";
  const { h, keyed, replace, setText } = cos2p.dom;
  const { number, percent, duration, bytes, known } = cos2p.format;
  const { panel } = cos2p.panel;
  const UNDER_WAY = { waiting: "Nothing has happened yet", running: "Under way", stopped: "Stopped before the end", failed: "The run failed" };

  const lastOf = (run, name) => (run.evaluations.test[name]?.length ? run.evaluations.test[name] : run.evaluations.validation[name] ?? []).findLast(known);
  const joined = (...words) => words.filter(Boolean).join("; ");
  const against = (name, share) => (known(share) ? `${name} ${percent(share, share < 0.01 ? 1 : 0)}` : "");

  /** What the server's model can do: a language model is judged by its perplexity and its answers. */
  function scores(run) {
    const { header } = run;
    const before = (name) => { const own = (run.evaluations.test[name] ?? []).filter(known); return own.length > 1 ? `before training ${percent(own[0])}` : ""; };
    const perplexity = lastOf(run, "perplexity");
    if (!known(perplexity)) {
      const best = header.best !== null ? `best ${percent(header.best)} on ${header.part}, round ${number(header.best_round)}` : "";
      return [["Accuracy", percent(header.test ?? header.last), joined(known(header.base) ? `before training ${percent(header.base)}` : "", against("chance", header.chance), best)]];
    }
    const found = [["Perplexity", number(perplexity, 2), joined(known(header.base) ? `before training ${number(header.base, 2)}` : "", `loss ${number(lastOf(run, "loss"), 3)} per token`)]];
    if (known(lastOf(run, "generated"))) found.push(["Generated answers right", percent(lastOf(run, "generated")), before("generated")]);
    else if (known(lastOf(run, "answers"))) found.push(["Right answers", percent(lastOf(run, "answers")), "every token of the answer"]);
    if (known(lastOf(run, "likeliest"))) found.push(["Likeliest choice right", percent(lastOf(run, "likeliest")), before("likeliest")]);
    return found;
  }

  /** Of the device that comes nearest to its budget: what its largest task takes. */
  function memory(run) {
    const tasks = run.devices.map((one) => [one.measured ?? one.predicted, one.memory]).filter(([needs, has]) => needs && has);
    if (!tasks.length) return [];
    const [needs, has] = tasks.reduce((a, b) => (b[0] / b[1] > a[0] / a[1] ? b : a));
    const over = needs > has ? "over the budget" : tasks.length > 1 ? "of the device nearest to its budget" : "of its budget";
    return [["Memory of a device", `${bytes(needs)} of ${bytes(has)}`, joined(over, known(run.header.full_memory) ? `the whole model takes ${bytes(run.header.full_memory)}` : "")]];
  }

  function tiles(run) {
    const { header } = run;
    const simulated = header.kind === "simulation";
    const merged = `${number(header.updates)}${header.updates_planned ? ` of ${number(header.updates_planned)}` : ""} updates merged`;
    return [
      ...scores(run), ...memory(run),
      ["Bytes sent", bytes(header.bytes_down + header.bytes_up), `${bytes(header.bytes_down)} down, ${bytes(header.bytes_up)} up`],
      [simulated ? "Virtual time" : "Time", duration(header.t), simulated ? `on the simulated fleet; ${duration(header.wall)} on this machine` : "of the run"],
      ["Round", header.rounds ? `${number(header.round)} of ${number(header.rounds)}` : number(header.round), joined(merged, known(header.wall_left) ? `about ${duration(header.wall_left)} left` : "")],
      ...(header.privacy ? [["Privacy", header.privacy, "what the run discloses of any one device, at most"]] : []),
    ];
  }

  /** In few words; while the run goes on, of what is known so far. */
  function headline({ status, verdict, share }) {
    if (status === "finished") return verdict.headline ?? "Finished";
    return `${UNDER_WAY[status]}${status === "running" ? `, ${percent(share, 0)} done` : ""}${verdict.headline ? `. So far: ${verdict.headline}` : ""}`;
  }

  /** Recipe, data, model, devices: what the figures are of. */
  cos2p.about = () => {
    const el = h("dl", { class: "facts about", id: "about", "aria-label": "What the run is of" });
    return {
      id: "about", short: "About", el,
      shown: (view, run) => Boolean(run?.about?.length),
      update(view, run) {
        keyed(el, run.about, ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})), (fact, [, words]) => setText(fact.children[1], words));
      },
    };
  };

  cos2p.overview = () => {
    const title = h("h2", { id: "overview-title" });
    const said = ["outcome", "warning", "reference"].map((name) => h("p", { class: name }));
    const figures = h("dl", { class: "tiles", "aria-label": "Price and place" });
    const el = h("section", { class: "verdict", id: "overview", "aria-labelledby": "overview-title" }, title, said, figures);
    return {
      id: "overview", short: "Overview", el,
      shown: (view, run) => Boolean(run?.model || run?.devices.length),
      update(view, run) {
        const { verdict } = run.header;
        setText(title, headline(run.header));
        for (const line of said) {
          setText(line, verdict[line.className] ?? "");
          line.hidden = !line.textContent;
        }
        keyed(figures, tiles(run), ([name]) => name,
          ([name]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}), h("dd", {})),
          (tile, [, value, more]) => { setText(tile.children[1], value); setText(tile.children[2], more); });
      },
    };
  };

  cos2p.further = () => {
    const frame = panel({ id: "further", title: "Further figures", why: "What else was counted, each figure with what it means." });
    const list = h("dl", { class: "facts" });
    replace(frame.body, list);
    const rows = ({ header }) => [
      ["Clients' own models", percent(header.clients), joined("each device's submodel on its own test samples", against("always its most frequent class", header.client_majority))],
      ["Use of the fleet (RU)", percent(header.ru), "how long devices worked in a round, as a share of the busiest one's time"],
      ["Coverage (N*)", number(header.n_star ?? NaN), header.n_star === 0 ? "in some round a head or unit was in no update and stood still" : "every head and every unit was in at least so many updates of each round"],
      ["Updates refused", number(header.refused), "they did not pass the server's checks"],
      ["Tasks failed", number(header.failed), "the training came to nothing, or the device went away"],
      ["On this machine", duration(header.wall), "seconds of a real clock"],
      ["Ended by", header.ending || "–", "rounds, updates and time are set in the recipe's schedule"],
    ];
    return {
      id: "further", short: "Figures", el: frame.el,
      shown: (view, run) => Boolean(run?.model || run?.devices.length),
      update(view, run) {
        keyed(list, rows(run), ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd", {}), h("dd", { class: "meaning" })),
          (fact, [, value, meaning]) => { setText(fact.children[1], value); setText(fact.children[2], meaning); });
      },
    };
  };

  /** Which classes the model gets wrong, the worst first. */
  cos2p.classes = () => {
    const frame = panel({ id: "classes", title: "Errors by class", why: "Of each class: how many of its test samples the server's model named right, and how much of what it named so is right; the worst class first." });
    const columns = [{ title: "class" }, { title: "test samples", right: true }, { title: "named right" }, { title: "right where named" }];
    return {
      id: "classes", short: "Classes", el: frame.el,
      shown: (view, run) => Boolean(run?.by_class?.length),
      update(view, run) {
        const share = (part, all) => cos2p.meter(part, all, all ? percent(part / all) : "–");
        const worst = run.by_class.filter(([, samples, , named]) => samples || named).sort((a, b) => a[2] / (a[1] || 1) - b[2] / (b[1] || 1));
        cos2p.keepPlace(frame.body, () => replace(frame.body, cos2p.table("Errors by class", columns,
          worst.map(([name, samples, right, named]) => [name, number(samples), share(right, samples), share(right, named)]))));
      },
    };
  };
})();
