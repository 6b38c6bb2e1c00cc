// The live page asks its own server for what is newer, and says clearly when it cannot.
(() => {
  "use strict";
  const EVERY = 1000; // ms between two questions while all is well
  const SLOWEST = 15000;
  const PATIENCE = 10000; // ms for an answer
  const FORBIDDEN = "The server does not accept this page's token. Open the address that cos2p watch printed.";

  /** Where the document is: next to the page, with the page's own token. */
  function address(since) {
    const place = new URL("view.json", location.href);
    place.search = location.search;
    if (since) place.searchParams.set("since", since);
    return place;
  }

  const ask = (since) => fetch(address(since), { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

  /** The first document of a live page, however long the server takes to have one. */
  async function firstDocument(main) {
    for (;;) {
      try {
        const answer = await ask("");
        if (answer.status === 200) {
          main.replaceChildren();
          return await answer.json();
        }
        main.textContent = answer.status === 401 || answer.status === 403 ? FORBIDDEN : `Waiting for the run… (the server answered ${answer.status})`;
      } catch (error) {
        main.textContent = `No connection to cos2p watch; trying again. (${error.message})`;
      }
      await pause(2 * EVERY);
    }
  }

  /** `changed(view)` gets a new document, `lost(reason)` why there is none; an empty reason means all is well again. */
  function follow(view, changed, lost) {
    let version = view.version;
    let wait = EVERY;
    let asked = 0;

    async function look() {
      try {
        const answer = await ask(version);
        asked += 1;
        if (answer.status === 401 || answer.status === 403) {
          return lost(FORBIDDEN);
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
      timer = setTimeout(look, document.hidden ? Math.max(wait, 5000) : wait);
    }
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(timer); look(); } });
    addEventListener("online", () => { clearTimeout(timer); look(); });
    schedule();
    return { asked: () => asked };
  }

  cos2p.follow = follow;
  cos2p.firstDocument = firstDocument;
})();
