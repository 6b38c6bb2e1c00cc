// Building elements. Text from a run is hostile: it only ever becomes a text node or an attribute's value.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  /** An element: `h("p", {class: "note", onclick: f}, "text", child)`. Children that are null are left out. */
  function h(tag, props, ...children) {
    return fill(document.createElement(tag), props, children);
  }

  /** The same for SVG. */
  function s(tag, props, ...children) {
    return fill(document.createElementNS(SVG, tag), props, children);
  }

  function fill(element, props, children) {
    for (const [name, value] of Object.entries(props ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : String(value));
    }
    append(element, children);
    return element;
  }

  function append(element, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }

  /** Put new children in place of the old ones. */
  function replace(element, ...children) {
    element.replaceChildren();
    append(element, children);
    return element;
  }

  /** Set text only where it changed, so that a reader's selection and a screen reader are left in peace. */
  function setText(element, text) {
    if (element.textContent !== String(text)) element.textContent = text;
  }

  /** Bring a list of keyed children up to date in place: kept ones are updated, so focus stays where it was. */
  function keyed(parent, items, key, create, update) {
    const known = parent.cos2pChildren ?? (parent.cos2pChildren = new Map());
    const wanted = new Set(items.map(key));
    for (const [name, element] of known) {
      if (!wanted.has(name)) { element.remove(); known.delete(name); }
    }
    items.forEach((item, position) => {
      const name = key(item);
      let element = known.get(name);
      if (!element) { element = create(item); known.set(name, element); }
      if (parent.children[position] !== element) parent.insertBefore(element, parent.children[position] ?? null);
      update?.(element, item, position);
    });
  }

  /** Call `draw` now and whenever the element's width changes. */
  function onResize(element, draw) {
    let last = -1;
    new ResizeObserver(() => {
      const width = Math.round(element.clientWidth);
      if (width && width !== last) { last = width; draw(); }
    }).observe(element);
  }

  /** Call `work` at most once per frame, however often asked. */
  function perFrame(work) {
    let asked = false;
    return () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => { asked = false; work(); });
    };
  }

  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  window.cos2p = window.cos2p ?? {};
  cos2p.dom = { h, s, replace, setText, keyed, onResize, perFrame, calm };
})();
