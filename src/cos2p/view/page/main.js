// Puts the page together: reads the document, makes the panels, shows those that have something to say.
(() => {
  "use strict";
  const { setText, calm } = cos2p.dom;
  const SCHEMA = 1;
  const SLICE = 30; // ms of work before the browser may paint and listen again

  function start(first) {
    const main = document.getElementById("panels");
    let view = first;
    if (view.schema !== SCHEMA) {
      main.textContent = `This page reads documents of schema ${SCHEMA}, but its data has schema ${view.schema}.`;
      return;
    }
    let lost = "";
    let chosen = chosenAtFirst(view);
    const header = cos2p.makeHeader(document.getElementById("top"), (at) => { chosen = at; render(true); });
    const crowdPanel = () => cos2p.crowdPanel(() => render(false));
    const makers = [cos2p.studies, cos2p.compareRuns, cos2p.overview, cos2p.about, cos2p.curves, cos2p.classes, crowdPanel, cos2p.fleet, cos2p.coverage, cos2p.rolling,
      cos2p.masks, cos2p.weights, cos2p.devices, cos2p.traffic, cos2p.further, cos2p.troubles];
    const panels = makers.map((make) => make());
    for (const panel of panels) main.append(panel.el);

    let waiting = []; // panels to bring up to date, those in sight first
    const late = new Set(); // of them, those that still have to hear of another run

    function render(fresh) {
      const run = view.runs[chosen] ?? null;
      header.update(view, chosen, lost);
      for (const panel of panels) panel.el.hidden = !panel.shown(view, run);
      const shown = panels.filter((panel) => !panel.el.hidden);
      header.contents(shown);
      setText(document.getElementById("foot"), view.generated_by);
      if (fresh) for (const panel of shown) late.add(panel);
      const idle = !waiting.length;
      waiting = shown;
      if (idle) next();
    }

    /** One panel after the other, the page staying responsive between them. */
    function next() {
      const began = performance.now();
      do {
        const inSight = waiting.findIndex((panel) => near(panel.el));
        const [panel] = waiting.splice(Math.max(0, inSight), 1);
        if (panel) panel.update(view, view.runs[chosen] ?? null, late.delete(panel));
      } while (waiting.length && performance.now() - began < SLICE);
      if (waiting.length) return setTimeout(next, 0);
      document.documentElement.dataset.version = view.version;
      document.documentElement.dataset.complete = String(Math.round(performance.now()));
    }

    function near(element) {
      const box = element.getBoundingClientRect();
      return box.bottom > 0 && box.top < innerHeight;
    }

    render(true);
    if (view.live) {
      const following = cos2p.follow(view,
        (next) => {
          const name = view.runs[chosen]?.header.name;
          view = next;
          const again = view.runs.findIndex((run) => run.header.name === name);
          const same = again >= 0 || !name;
          if (again >= 0) chosen = again; else chosen = chosenAtFirst(view);
          render(!same);
        },
        (reason) => { if (reason !== lost) { lost = reason; header.update(view, chosen, lost); } });
      cos2p.asked = following.asked;
    }
    cos2p.page = { view: () => view, panels: Object.fromEntries(panels.map((panel) => [panel.id, panel])), calm };
    requestAnimationFrame(() => requestAnimationFrame(() => {
      cos2p.ready = performance.now();
      document.documentElement.dataset.ready = String(Math.round(cos2p.ready));
    }));
  }

  /** The run that is at work, else the first. */
  function chosenAtFirst(view) {
    return Math.max(0, view.runs.findIndex((run) => run.header.status === "running"));
  }

  /** A frozen page carries its document; a live one asks for it. */
  const carried = JSON.parse(document.getElementById("view").textContent);
  if (carried) start(carried);
  else cos2p.firstDocument(document.getElementById("panels")).then(start);
})();
