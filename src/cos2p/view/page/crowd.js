// A fleet too large to be shown one by one: its groups, a sample spread over them, and a search. One choice for all panels.
(() => {
  "use strict";
  const { h, keyed, setText } = cos2p.dom;
  const { number, plural } = cos2p.format;
  const FEW = 100; // devices that are all shown
  const SAMPLE = 48; // of more
  const FOUND = 400; // devices that a search or a group may bring at once
  const wish = { text: "", group: "" };

  /** The groups of a run: [{name, devices: [index, …]}], in the order of their first device. */
  function groupsOf(run) {
    const found = new Map();
    run.devices.forEach((device, at) => {
      const name = device.group || device.name;
      if (!found.has(name)) found.set(name, { name, devices: [] });
      found.get(name).devices.push(at);
    });
    return [...found.values()];
  }

  const groups = (run) => cos2p.runData.once(run, "groups", groupsOf);
  const crowded = (run) => run.devices.length > FEW;

  /** `count` of `items`, evenly spread, the first one among them. */
  const spread = (items, count) => (items.length <= count ? items : Array.from({ length: count }, (_, at) => items[Math.floor((at * items.length) / count)]));

  /** The indices of the devices that the panels show: of a small fleet all, of a large one group by group. */
  function chosen(run) {
    return cos2p.runData.once(run, `chosen ${wish.text} ${wish.group}`, () => {
      if (!crowded(run)) return run.devices.map((_, at) => at);
      const parts = groups(run).filter((group) => !wish.group || group.name === wish.group);
      const text = wish.text.toLowerCase();
      if (text) return parts.flatMap((group) => group.devices).filter((at) => run.devices[at].name.toLowerCase().includes(text)).slice(0, FOUND);
      const each = Math.max(1, Math.floor(SAMPLE / Math.max(1, parts.length)));
      const busiest = (devices) => { const some = devices.filter((at) => run.devices[at].tasks > 0); return some.length ? some : devices; };
      return spread(parts.flatMap((group) => spread(busiest(group.devices), each)), FOUND);
    });
  }

  cos2p.crowdPanel = (changed) => {
    let run = null;
    const search = h("input", { type: "search", placeholder: "Search a device", "aria-label": "Search a device", oninput: () => choose({ text: search.value.trim() }) });
    const select = h("select", { "aria-label": "Group of devices", onchange: () => choose({ group: select.value }) });
    const said = h("p", { role: "status" });
    const el = h("div", { id: "crowd", class: "crowd", role: "search", "aria-label": "Which devices are shown" }, search, select, said);
    function choose(next) {
      Object.assign(wish, next);
      notify();
      changed();
    }
    function notify() {
      const shown = chosen(run).length;
      const how = wish.text ? `with “${wish.text}” in their names` : `a sample${wish.group ? ` of ${wish.group}` : ` spread over ${plural(groups(run).length, "group")}`}, of those that had a task`;
      setText(said, `${number(shown)} of ${number(run.devices.length)} devices are shown below: ${how}. Figures of the whole run are of all.`);
    }
    return {
      id: "crowd", short: "Devices shown", el,
      shown: (view, one) => Boolean(one && crowded(one)),
      update(view, one, fresh) {
        run = one;
        if (fresh) { Object.assign(wish, { text: "", group: "" }); search.value = ""; }
        keyed(select, [{ name: "", devices: [] }, ...groups(run)], (group) => group.name, (group) => h("option", { value: group.name }),
          (option, group) => setText(option, group.name ? `${group.name} (${number(group.devices.length)})` : "all groups"));
        select.value = wish.group;
        notify();
      },
    };
  };

  cos2p.crowd = { groups, chosen, crowded };
})();
