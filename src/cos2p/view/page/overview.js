// The figures of the whole run at a glance.
(() => {
  "use strict";
  const { h, keyed, setText } = cos2p.dom;
  const { number, percent, duration, bytes, known } = cos2p.format;

  function tiles(run) {
    const header = run.header;
    const simulated = header.kind === "simulation";
    const over = header.status === "finished";
    const server = header.test ?? header.last;
    const last = (name) => (run.evaluations.test[name]?.length ? run.evaluations.test[name] : run.evaluations.validation[name] ?? []).findLast(known);
    const language = known(last("perplexity")) ? [["Server perplexity", number(last("perplexity"), 2), `loss ${number(last("loss"), 3)} per token`]] : [];
    const before = (name) => { const own = (run.evaluations.test[name] ?? []).filter(known); return own.length > 1 ? `before training ${percent(own[0])}` : ""; };
    if (known(last("generated"))) language.push(["Generated answers right", percent(last("generated")), before("generated")]);
    if (known(last("likeliest"))) language.push(["Likeliest choice right", percent(last("likeliest")), before("likeliest")]);
    if (known(last("answers")) && !known(last("generated"))) language.push(["Right answers", percent(last("answers")), "every token of the answer"]);
    const best = header.best !== null ? `best ${percent(header.best)} on ${header.part}, round ${number(header.best_round)}` : "";
    return [
      ...language,
      ["Server top-1", percent(server), [best, against("chance", header.chance)].filter(Boolean).join("; ")],
      header.privacy ? ["Privacy", header.privacy, "what the run discloses of any one device, at most"] : ["Clients top-1", percent(header.clients), ["own submodels, own data", against("most frequent class", header.client_majority)].filter(Boolean).join("; ")],
      ["Round", number(header.round), header.rounds ? `of ${number(header.rounds)}` : ""],
      ["Updates merged", number(header.updates), header.updates_planned ? `of ${number(header.updates_planned)}` : ""],
      [simulated ? "Virtual time" : "Time of the run", duration(header.t), simulated ? "on the simulated fleet" : ""],
      ["Wall time", duration(header.wall), "on this machine"],
      over ? ["Ended by", ending(header.ending), ""] : ["Left, estimated", duration(header.wall_left), `${percent(header.share, 0)} done`],
      ["Fleet used (RU)", percent(header.ru), "of the busiest device's time"],
      ["Coverage N*", known(header.n_star) ? number(header.n_star) : "–", header.n_star === 0 ? "in some round a segment stood still" : "updates held each segment in each round, at least"],
      ["Sent down", bytes(header.bytes_down), "server to devices"],
      ["Sent up", bytes(header.bytes_up), "devices to server"],
      ["Refused · failed", `${number(header.refused)} · ${number(header.failed)}`, "updates · tasks"],
    ];
  }

  const against = (name, share) => (known(share) ? `${name} ${percent(share, share < 0.01 ? 1 : 0)}` : "");
  const ending = (reason) => ({ rounds: "rounds", max_updates: "updates", updates: "updates" })[reason] ?? (reason || "–");

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
    const el = h("dl", { class: "tiles", id: "overview", "aria-label": "Where the run is" });
    return {
      id: "overview", short: "Overview", el,
      shown: (view, run) => Boolean(run?.model || run?.devices.length),
      update(view, run) {
        keyed(el, tiles(run), ([name]) => name,
          ([name]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}), h("dd", {})),
          (tile, [, value, more]) => { setText(tile.children[1], value); setText(tile.children[2], more); });
      },
    };
  };
})();
