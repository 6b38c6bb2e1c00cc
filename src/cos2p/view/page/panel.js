// A panel: a heading, one sentence for a newcomer, a legend, the picture, and its figures as a table on request.
(() => {
  "use strict";
  const { h, replace, setText } = cos2p.dom;

  /**
   * `figures()` gives {caption, columns, rows} for the table; it is asked only while the table is open.
   * The result: {el, body, tools, legend(items), refresh()}.
   */
  function panel({ id, title, why, wide = true, figures = null }) {
    const body = h("div", { class: "body" });
    const tools = h("div", { class: "tools" });
    const legendBox = h("ul", { class: "legend", "aria-label": "Legend" });
    const place = h("div", { id: `${id}-table`, hidden: true });
    const button = figures && h("button", {
      type: "button", class: "quiet", "aria-expanded": "false", "aria-controls": `${id}-table`,
      "aria-label": `Table of ${title}`, onclick: toggle,
    }, "Table");
    const heading = h("h2", { id: `${id}-title` }, title);
    const reason = h("p", { class: "why" }, why);
    const el = h("section", { id, class: wide ? "panel wide" : "panel", "aria-labelledby": `${id}-title` },
      h("div", { class: "panel-head" },
        h("div", {}, heading, reason),
        h("div", { class: "tools-row" }, tools, button)),
      legendBox, body, place);

    function toggle() {
      place.hidden = !place.hidden;
      button.setAttribute("aria-expanded", String(!place.hidden));
      button.textContent = place.hidden ? "Table" : "Hide table";
      fillTable();
    }

    function fillTable() {
      if (place.hidden) return replace(place);
      const { caption, columns, rows } = figures();
      cos2p.keepPlace(place, () => replace(place, cos2p.table(caption ?? title, columns, rows)));
    }

    let legendKey = null;
    /** Items: [mark element, text]. Rebuilt only when `key` changes. */
    function legend(items, key = items.map(([, text]) => text).join("|") + cos2p.color.theme()) {
      if (key === legendKey) return;
      legendKey = key;
      replace(legendBox, items.map(([mark, text]) => h("li", {}, mark, text)));
    }

    /** What the panel is about in this run. */
    function explain(words, because) {
      setText(heading, words);
      setText(reason, because);
    }

    return { el, body, tools, legend, explain, refresh: () => { if (figures) fillTable(); } };
  }

  /** A row of buttons of which one is pressed; `choose(value)` is called with the new value. */
  function choice(label, options, value, choose) {
    const buttons = options.map(([key, text]) => h("button", {
      type: "button", "aria-pressed": String(key === value), onclick: () => set(key, true),
    }, text));
    function set(key, notify = false) {
      buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === key)));
      if (notify) choose(key);
    }
    return { el: h("div", { class: "choice", role: "group", "aria-label": label }, buttons), set };
  }

  /** A little square for a legend; `pattern` draws what makes it more than a colour. */
  function swatch(color, pattern = "") {
    const mark = h("i", { class: `swatch ${pattern}` });
    mark.style.setProperty("--mark", color);
    return mark;
  }

  /** The ramp with its two ends in words. */
  function rampLegend(low, high) {
    const bar = h("i", { class: "ramp" });
    bar.style.background = `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(cos2p.color.ramp).join(",")})`;
    return [h("span", { class: "ramp-box" }, low, bar, high), ""];
  }

  /** What a panel says when there is nothing to draw yet. */
  function nothing(text) {
    return h("p", { class: "nothing" }, text);
  }

  cos2p.panel = { panel, choice, swatch, rampLegend, nothing };
})();
