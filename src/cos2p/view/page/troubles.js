// What went wrong: refused updates, failed tasks, devices that left, each with its reason.
(() => {
  "use strict";
  const { replace } = cos2p.dom;
  const { panel, nothing } = cos2p.panel;
  const { number, duration } = cos2p.format;
  const KINDS = {
    refused: "update refused", dropped: "update dropped", failed: "task failed", lost: "task lost", left: "device left",
    excluded: "device excluded", doubted: "update doubted", lowered: "rate lowered", unfit: "device unfit", unevaluated: "not evaluated",
  };

  cos2p.troubles = () => {
    const frame = panel({
      id: "troubles", title: "Refused updates and other trouble",
      why: "The server checks every update before it touches the model; what it refused, which tasks came to nothing and which devices went away is listed here with the reason.",
    });
    return {
      id: "troubles", short: "Trouble", el: frame.el,
      shown: (view, run) => Boolean(run?.model || run?.troubles.total),
      update(view, run) {
        const { troubles } = run;
        const rows = troubles.t.map((t, at) => [
          duration(t), KINDS[troubles.kind[at]] ?? troubles.kind[at], run.devices[troubles.client[at]]?.name ?? troubles.name[at],
          troubles.task[at], troubles.reason[at],
        ]).reverse();
        const more = troubles.total - rows.length;
        cos2p.keepPlace(frame.body, () => replace(frame.body, rows.length
          ? cos2p.table("Trouble, newest first", [{ title: "at" }, { title: "what" }, { title: "device" }, { title: "task" }, { title: "reason" }], rows)
          : nothing("None so far: every update passed the checks and no task came to nothing."),
        more > 0 ? nothing(`and ${number(more)} earlier ones`) : null));
      },
    };
  };
})();
