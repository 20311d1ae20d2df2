// Keeps a page up to date without moving what somebody is about to click, and writes times in the browser's zone.
// Everything works without it: the page is then as it was when it was asked for.
"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const says = byId("live-says"), box = byId("live"), pauseButton = byId("live-pause");
  const stream = document.body.dataset.live;
  const POLL = 5000, REST = 700, LEAST = 1000;

  // Times

  const full = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });
  const writeTimes = (within) => {
    if (root.dataset.zone !== "local") return;
    for (const time of within.querySelectorAll("time[datetime]")) {
      const text = full.format(new Date(time.dateTime));
      if (time.hasAttribute("data-ago")) time.title = text;
      else time.textContent = text;
    }
  };
  writeTimes(document);

  // Copying

  for (const place of document.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(byId(place.dataset.copy).textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(byId(place.dataset.copy));
        button.textContent = "Selected: press Ctrl+C";
      }
    });
    place.append(button);
  }

  if (!stream) return;

  // What keeps the page as it is: a pointer on something that can be clicked or on its way there, the keyboard's focus,
  // a selection.

  const CLICKABLE = "a, button, input, select, textarea, summary, label";
  let pointed = null, movedAt = 0, touched = 0;
  document.addEventListener("pointermove", (event) => {
    pointed = event.pointerType === "touch" ? null : event.target;
    movedAt = performance.now();
  }, { passive: true });
  document.addEventListener("pointerdown", () => { touched = performance.now(); }, { passive: true });
  document.addEventListener("pointerleave", () => { pointed = null; });
  document.addEventListener("scroll", () => { touched = performance.now(); }, { passive: true });
  const main = byId("main");
  const isHeld = () => {
    const now = performance.now();
    if (now - movedAt < REST || now - touched < REST) return true;
    if (pointed && main.contains(pointed) && pointed.closest(CLICKABLE)) return true;
    const focused = document.activeElement;
    if (focused && focused !== main && main.contains(focused)) return true;
    const selection = getSelection();
    return !selection.isCollapsed && main.contains(selection.anchorNode);
  };

  // Showing what is new

  let paused = false, lost = false, fetching = false, isOld = false, waiting = false, lastAsked = 0;
  try { paused = sessionStorage.getItem("paused") === "1"; } catch { /* cookies are off: it is not remembered */ }
  const say = () => {
    const state = paused ? "paused" : lost ? "lost" : "on";
    root.dataset.liveState = state;
    const text = paused ? "paused" : waiting ? "live, newer figures wait" : lost ? "no connection" : "live";
    if (says.textContent !== text) says.textContent = text;
    pauseButton.textContent = paused ? "Go on" : "Pause updates";
    pauseButton.setAttribute("aria-pressed", String(paused));
  };
  let fresh = null;

  const put = () => {
    if (!fresh) return;
    if (isHeld()) { waiting = true; say(); return; }
    for (const part of main.querySelectorAll("[data-part]")) {
      const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
      if (!other) continue;
      writeTimes(other);
      // What was unfolded stays unfolded.
      const open = [...part.querySelectorAll("details")].map((each) => each.open);
      [...other.querySelectorAll("details")].forEach((each, at) => { if (at in open) each.open = open[at]; });
      if (part.outerHTML !== other.outerHTML) part.replaceWith(document.importNode(other, true));
    }
    const shown = new Set([...main.querySelectorAll("[data-part]")].map((each) => each.dataset.part));
    const named = [...fresh.querySelectorAll("[data-part]")].map((each) => each.dataset.part);
    fresh = null;
    waiting = false;
    // Another kind of page than before, such as that of a job that has failed meanwhile: it is made anew.
    if (named.some((name) => !shown.has(name)) || shown.size > named.length) { location.reload(); return; }
    say();
  };

  const ask = async () => {
    if (paused || fetching || document.hidden) { isOld = true; return; }
    const pause = lastAsked + LEAST - performance.now();
    if (pause > 0) { isOld = true; return; }
    fetching = true;
    isOld = false;
    lastAsked = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.redirected) { location.reload(); return; }
      if (answer.ok || answer.status === 404) fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      lost = false;
    } catch {
      lost = true;
    } finally {
      fetching = false;
    }
    say();
    put();
  };

  setInterval(() => {
    if (paused) return;
    if (fresh) put();
    else if (isOld) ask();
  }, 250);

  // News by server-sent events; where those do not come through, the page asks from time to time.

  let source = null, polling = 0, heard = false;
  const poll = (on) => {
    if (on && !polling) polling = setInterval(ask, POLL);
    if (!on && polling) { clearInterval(polling); polling = 0; }
  };
  const listen = () => {
    if (source || paused) return;
    heard = false;
    source = new EventSource(stream);
    source.addEventListener("open", () => { lost = false; poll(false); if (heard) ask(); heard = true; say(); });
    source.addEventListener("changed", ask);
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) { source.close(); source = null; }
      poll(true);
    });
  };
  const hush = () => {
    if (source) { source.close(); source = null; }
    poll(false);
  };
  pauseButton.addEventListener("click", () => {
    paused = !paused;
    try { sessionStorage.setItem("paused", paused ? "1" : "0"); } catch { /* see above */ }
    if (paused) { hush(); fresh = null; waiting = false; } else { listen(); ask(); }
    say();
  });
  // Browsers open few connections to one host: a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (paused) return;
    if (document.hidden) hush();
    else { listen(); ask(); }
  });
  addEventListener("pagehide", hush);
  addEventListener("pageshow", (event) => { if (event.persisted && !paused) { listen(); ask(); } });

  box.hidden = false;
  pauseButton.hidden = false;
  say();
  if (!paused && !document.hidden) listen();
})();
