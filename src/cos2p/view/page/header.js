// The header that stays in sight: which run, its state, where it is; and the choice of theme.
(() => {
  "use strict";
  const { h, replace, setText, keyed } = cos2p.dom;
  const { number, duration, percent } = cos2p.format;
  const STATES = { waiting: "Waiting to start", running: "Running", finished: "Finished", stopped: "Stopped", failed: "Failed", lost: "No connection" };

  function makeHeader(root, chooseRun) {
    const title = h("span", {});
    const sub = h("small", {});
    const pill = h("span", { class: "pill", role: "status" });
    const where = h("span", { class: "where" });
    const picker = h("select", { "aria-label": "Run shown in the panels", onchange: () => chooseRun(Number(picker.value)) });
    const bar = h("i", {});
    const toc = h("nav", { class: "toc", "aria-label": "Panels" });
    const banner = h("div", { class: "banner", role: "alert", hidden: true });
    replace(root, h("div", { class: "top-inner" },
      h("div", { class: "top-row" }, h("span", { class: "brand" }, "cos2p"), h("h1", { class: "title" }, title, sub), picker, pill,
        h("span", { class: "space" }), where, themeButton()),
      toc, h("div", { class: "bar" }, bar)));
    root.after(banner);

    /** `lost` is empty, or why there is no connection. */
    function update(view, at, lost) {
      const header = view.runs[at]?.header;
      keyed(picker, view.runs.map((run, index) => ({ index, name: run.header.name })), (one) => one.index,
        (one) => h("option", { value: one.index }), (option, one) => setText(option, one.name));
      picker.hidden = view.runs.length < 2;
      picker.value = String(at);
      setText(title, header ? header.title || header.recipe || header.name : view.studies[0]?.title || "Report");
      setText(sub, header ? [header.recipe, header.seed !== null ? `seed ${header.seed}` : "", view.runs.length < 2 ? header.name : ""]
        .filter((text, place, all) => text && text !== title.textContent && all.indexOf(text) === place).join(" · ") : "");
      const state = lost ? "lost" : header?.status ?? "finished";
      pill.dataset.state = state === "failed" ? "stopped" : state;
      setText(pill, header || lost ? STATES[state] ?? state : view.studies.length ? "Study" : "");
      setText(where, header ? whereWords(header) : "");
      bar.style.width = header && header.status !== "finished" ? `${100 * header.share}%` : "0";
      document.title = `${header ? `${STATES[header.status]} · ${header.name}` : view.studies[0]?.title ?? "report"} · cos2p`;
      const news = lost || (header ? ended(header, view.live) : "");
      banner.hidden = !news;
      banner.classList.toggle("good", !lost && header?.status === "finished");
      setText(banner, news);
    }

    function contents(panels) {
      keyed(toc, panels, (panel) => panel.id, (panel) => h("a", { href: `#${panel.id}` }, panel.short));
    }

    return { update, contents };
  }

  /** What is to be said of a run that goes on no more: by a live page always, by a frozen one if it was not as planned. */
  function ended(header, live) {
    const begun = header.round || header.updates || header.t;
    if (header.status === "finished") return live ? `The run has ended after ${number(header.round)} rounds and ${number(header.updates)} updates. This is its final state.` : "";
    if (header.status === "failed") return `${begun ? "The run has failed" : "The run did not start"}: ${sentence(header.ending || "see the log")}`;
    if (header.status === "stopped") return `Nobody is at work on this run${header.ending ? `: ${sentence(header.ending)}` : "; it ended without a word, as a killed process does."} Go on with it by cos2p run --resume --out ${header.name}.`;
    return header.status === "waiting" ? "Nothing has happened yet: the run has not begun, or is still loading its data." : "";
  }

  const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

  function whereWords(header) {
    const parts = [header.rounds ? `round ${number(header.round)} of ${number(header.rounds)}` : `round ${number(header.round)}`];
    if (header.kind === "simulation") parts.push(`virtual time ${duration(header.t)}`);
    else parts.push(duration(header.t));
    if (header.status === "running") {
      parts.push(percent(header.share, 0), header.wall_left !== null ? `about ${duration(header.wall_left)} left` : "");
    }
    return parts.filter(Boolean).join(" · ");
  }

  function themeButton() {
    const button = h("button", { type: "button", class: "icon", onclick: () => set(cos2p.color.theme() === "dark" ? "light" : "dark", true) });
    const system = matchMedia("(prefers-color-scheme: dark)");
    function set(theme, keep) {
      document.documentElement.dataset.theme = theme;
      button.textContent = theme === "dark" ? "☀" : "☾";
      button.setAttribute("aria-label", theme === "dark" ? "Light theme" : "Dark theme");
      button.title = theme === "dark" ? "Light theme" : "Dark theme";
      if (keep) remember(theme);
      cos2p.color.themeChanged();
    }
    system.addEventListener("change", () => { if (!remembered()) set(system.matches ? "dark" : "light", false); });
    set(remembered() ?? (system.matches ? "dark" : "light"), false);
    return button;
  }

  // A file opened from disk may have no storage; the choice then lasts as long as the page.
  function remember(theme) {
    try { localStorage.setItem("cos2p-theme", theme); } catch { /* no storage */ }
  }
  function remembered() {
    try {
      const theme = localStorage.getItem("cos2p-theme");
      return theme === "dark" || theme === "light" ? theme : null;
    } catch { return null; }
  }

  cos2p.makeHeader = makeHeader;
})();
