// Keeps a page as it is now: parts with data-live are read again from the server, at events of a job
// or every data-every seconds; cubemeshLive(address, cursor, onEvent) reads the events of a job, with
// one connection for all tabs. Without this file a reload shows the same.
(() => {
  "use strict";

  const worker = document.currentScript.dataset.worker;
  const SOON_MS = 150;
  const LATER_MS = 2000; // for progress, which is reported several times a second
  let due = 0; // time of the next refresh, 0 without one
  let timer = 0;
  let asked = false; // while the tab was hidden

  function refreshIn(milliseconds) {
    const at = Date.now() + milliseconds;
    if (due && due <= at) return;
    clearTimeout(timer);
    due = at;
    timer = setTimeout(refresh, milliseconds);
  }

  async function refresh() {
    if (document.hidden) {
      due = 0;
      asked = true;
      return;
    }
    due = Date.now() + LATER_MS; // one at a time
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of answer.ok ? document.querySelectorAll("[data-live]") : []) {
        const now = found.querySelector(`[data-live="${part.dataset.live}"]`);
        part.hidden = !now;
        if (!now || part.contains(document.activeElement)) continue;
        if (now.innerHTML !== part.innerHTML) part.innerHTML = now.innerHTML;
      }
      asked = false;
    } catch {
      asked = true; // the server may be back at the next event
    }
    due = 0;
    if (asked) refreshIn(LATER_MS);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && asked) refreshIn(0);
  });
  for (const part of document.querySelectorAll("[data-every]")) {
    setInterval(() => refreshIn(0), 1000 * Number(part.dataset.every));
  }

  window.cubemeshLive = (address, cursor, onEvent) => {
    let last = cursor;
    const receive = (event) => {
      if (event.sequence <= last) return;
      last = event.sequence;
      onEvent(event);
      refreshIn(event.kind === "points" || event.kind === "eta" ? LATER_MS : SOON_MS);
    };
    if (window.SharedWorker && worker) {
      const shared = new SharedWorker(worker);
      shared.port.onmessage = ({ data }) => receive(data);
      shared.port.start();
      shared.port.postMessage({ address, cursor });
      window.addEventListener("pagehide", () => shared.port.postMessage({ leave: address }));
      window.addEventListener("pageshow", (event) => event.persisted && location.reload());
      return;
    }
    const source = new EventSource(`${address}?after=${cursor}`);
    source.onmessage = ({ data }) => receive(JSON.parse(data));
    source.addEventListener("end", () => source.close());
  };
})();
