// The small card that follows the pointer or the keyboard's cursor. One for the whole page.
(() => {
  "use strict";
  const { h, replace } = cos2p.dom;
  let card = null;

  /** Show `lines` at a place of the window. A line is a text, or [mark, label, value]: a colour, a name, a figure. */
  function show(title, lines, x, y) {
    card = card ?? document.body.appendChild(h("div", { class: "tip", "aria-hidden": "true" }));
    replace(card, title ? h("strong", {}, title) : null, lines.map(line));
    card.hidden = false;
    const box = card.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth - 8 ? x - box.width - 16 : x + 16;
    card.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
    card.style.top = `${Math.max(8, Math.min(y - box.height / 2, innerHeight - box.height - 8))}px`;
  }

  function line(content) {
    if (!Array.isArray(content)) return h("div", {}, content);
    const [mark, label, value] = content;
    const swatch = h("i", {});
    if (mark) swatch.style.background = mark;
    return h("div", { class: "tip-row" }, swatch, h("span", {}, label), h("b", {}, value));
  }

  function hide() {
    if (card) card.hidden = true;
  }

  addEventListener("scroll", hide, { passive: true });

  cos2p.tip = { show, hide };
})();
