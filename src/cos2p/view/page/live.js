// The live page asks its own server for what is newer, and says clearly when it cannot.
(() => {
  "use strict";
  const EVERY = 1000; // ms between two questions while all is well
  const SLOWEST = 15000;
  const PATIENCE = 10000; // ms for an answer

  /** `changed(view)` gets a new document, `lost(reason)` why there is none; an empty reason means all is well again. */
  function follow(view, changed, lost) {
    let version = view.version;
    let wait = EVERY;
    let asked = 0;

    async function ask() {
      try {
        const place = new URL("view.json", location.href);
        place.search = location.search; // the page's own token goes along
        place.searchParams.set("since", version);
        const answer = await fetch(place, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
        asked += 1;
        if (answer.status === 401 || answer.status === 403) {
          return lost("The server does not accept this page's token any more. Open the address that `cos2p watch` printed.");
        }
        if (!answer.ok && answer.status !== 304) throw new Error(`the server answered ${answer.status}`);
        wait = EVERY;
        if (answer.status === 200) {
          const next = await answer.json();
          lost("");
          if (next && next.version !== version && next.runs) {
            version = next.version;
            changed(next);
          }
        } else lost("");
      } catch (error) {
        wait = Math.min(SLOWEST, wait * 1.6);
        lost(`No connection to cos2p watch; trying again. What you see is the last state that came. (${error.message})`);
      }
      schedule();
    }

    // A hidden tab asks less often; it catches up when it is looked at.
    let timer = null;
    function schedule() {
      clearTimeout(timer);
      timer = setTimeout(ask, document.hidden ? Math.max(wait, 5000) : wait);
    }
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(timer); ask(); } });
    addEventListener("online", () => { clearTimeout(timer); ask(); });
    schedule();
    return { asked: () => asked };
  }

  cos2p.follow = follow;
})();
