// Plain tables: the alternative to every chart, and tables in their own right.
(() => {
  "use strict";
  const { h } = cos2p.dom;
  const { number } = cos2p.format;

  const MOST = 500; // rows; more would take longer to lay out than anybody would read

  /** `columns`: [{title, right}], `rows`: arrays of texts or elements. The first column names the row. */
  function table(caption, columns, rows) {
    const shown = rows.slice(0, MOST);
    const grid = h("table", { class: "data" },
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column) =>
        h("th", { scope: "col", class: column.right ? "right" : null }, column.title)))),
      h("tbody", {}, shown.map((row) => h("tr", {}, row.map((cell, at) =>
        at === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: columns[at]?.right ? "right" : null, "data-column": columns[at]?.title }, cell))))));
    const rest = rows.length - shown.length;
    return h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": caption }, grid,
      rest > 0 ? h("p", { class: "note" }, `The first ${number(MOST)} of ${number(rows.length)} rows.`) : null);
  }

  /** Build the content of `box` anew; its tables stay scrolled as they were, and the focus where it was. */
  function keepPlace(box, rebuild) {
    const before = [...box.querySelectorAll(".scroller")].map((one) => [one.scrollTop, one.scrollLeft, one === document.activeElement]);
    rebuild();
    box.querySelectorAll(".scroller").forEach((one, at) => {
      const [top, left, focused] = before[at] ?? [0, 0, false];
      [one.scrollTop, one.scrollLeft] = [top, left];
      if (focused) one.focus({ preventScroll: true });
    });
  }

  const ROOM = 28; // characters of a name in a table

  /** A device's name with its middle left out where it is long; the whole of it on request. */
  const nameCell = (name) => (name.length > ROOM ? h("span", { title: name }, cos2p.format.shorten(name, ROOM)) : name);

  cos2p.nameCell = nameCell;
  cos2p.table = table;
  cos2p.keepPlace = keepPlace;
})();
