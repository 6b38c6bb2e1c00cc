// From the columns of the data to what the panels draw: lanes with tasks, the updates of a round, masks as bits.
(() => {
  "use strict";

  /** Lanes: [{name, device, tasks: [{index, start, end, phases, tau, version, outcome, lost}], gone: [[from, to, kind]]}]. */
  function lanes(run) {
    const { tick, phases, outcomes } = run.lanes;
    return run.lanes.lanes.map((lane, device) => {
      const tasks = lane.version.map((version, index) => {
        const outcome = outcomes[lane.outcome[index]];
        return {
          index, version, outcome, tau: lane.tau[index], start: Infinity, end: 0, phases: [],
          lost: outcome !== "merged" && outcome !== "open",
        };
      });
      const gone = [];
      let now = 0;
      lane.length.forEach((length, at) => {
        const from = now * tick;
        now += length;
        const to = now * tick;
        const phase = phases[lane.phase[at]];
        const task = tasks[lane.task[at]];
        if (phase === "dead" || phase === "absent") gone.push([from, to, phase]);
        if (!task || phase === "idle") return;
        task.start = Math.min(task.start, from);
        task.end = Math.max(task.end, to);
        if (phase !== "dead" && phase !== "absent") task.phases.push([phase, from, to]);
      });
      return { name: run.devices[device]?.name ?? `device ${device + 1}`, device, tasks: tasks.filter((task) => task.phases.length), gone };
    });
  }

  /** Where the updates of each round begin in the columns, and where the last one ends. Updates are in order of rounds. */
  function roundStarts(updates) {
    const starts = [];
    updates.round.forEach((round, at) => { while (starts.length <= round) starts.push(at); });
    starts.push(updates.round.length);
    return starts;
  }

  /** The bits of a mask in hex: lowest bit of the first byte first. */
  function bits(hex, count) {
    const found = new Uint8Array(count);
    for (let at = 0; at * 2 + 1 < hex.length; at += 1) {
      const byte = parseInt(hex.slice(at * 2, at * 2 + 2), 16);
      for (let bit = 0; bit < 8 && at * 8 + bit < count; bit += 1) found[at * 8 + bit] = (byte >> bit) & 1;
    }
    return found;
  }

  /** Cut `count` places into at most `most` bins: [[from, to), …]. */
  function bins(count, most) {
    const number = Math.min(count, most);
    return Array.from({ length: number }, (_, at) => [Math.floor((at * count) / number), Math.floor(((at + 1) * count) / number)]);
  }

  /** Pairs for a line chart from two columns. */
  const pairs = (xs, ys) => xs.map((x, at) => [x, ys[at] ?? null]);

  /** Kept with the run, so that several panels share the work; a new document brings new runs. */
  const kept = new WeakMap();
  function once(run, key, make) {
    if (!kept.has(run)) kept.set(run, {});
    const known = kept.get(run);
    return known[key] ?? (known[key] = make(run));
  }

  cos2p.runData = {
    lanes: (run) => once(run, "lanes", lanes),
    roundStarts: (run) => once(run, "rounds", (one) => roundStarts(one.updates)),
    once, bits, bins, pairs,
  };
})();
