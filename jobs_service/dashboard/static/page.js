// What a page does beyond its links and forms: it stays up to date without moving what somebody is about to click,
// writes times in the browser's zone, has a search over all pages, and keys. Everything works without it.
"use strict";
(() => {
  const root = document.documentElement, body = document.body;
  const byId = (id) => document.getElementById(id);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const main = byId("main"), live = byId("live"), says = byId("live-says");
  const stream = body.dataset.live;
  const POLL = 5000, REST = 700, LEAST = 1000;
  const kept = {
    get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* cookies are off: it is not remembered */ } },
  };

  // Times

  const form = (options) => new Intl.DateTimeFormat(undefined, options);
  const day = { year: "numeric", month: "2-digit", day: "2-digit" }, minute = { hour: "2-digit", minute: "2-digit" };
  const full = form({ ...day, ...minute, second: "2-digit", timeZoneName: "short" });
  const short = { clock: form({ ...minute, second: "2-digit" }), minute: form(minute), date: form({ month: "2-digit", day: "2-digit" }), time: full };
  const writeTimes = (within) => {
    if (root.dataset.zone !== "local") return;
    for (const time of all("time[datetime]", within)) {
      const at = new Date(time.dateTime);
      for (const [name, each] of Object.entries(short)) if (name in time.dataset) time.textContent = each.format(at);
      time.title = full.format(at);
    }
  };

  // Controls that only work with this script, in the whole page and in what replaces a part of it

  const button = (text, className) => Object.assign(document.createElement("button"), { type: "button", textContent: text, className });
  const enhance = (within) => {
    writeTimes(within);
    for (const place of all("[data-copy]", within)) {
      const copy = button("Copy", "button small quiet");
      copy.addEventListener("click", async () => {
        const text = byId(place.dataset.copy);
        try {
          await navigator.clipboard.writeText(text.textContent);
          copy.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(text);
          copy.textContent = "Selected: press Ctrl+C";
        }
      });
      place.replaceChildren(copy);
    }
    for (const box of all("[data-all]", within)) {
      box.parentElement.hidden = false;
      box.addEventListener("change", () => { for (const each of picks()) each.checked = box.checked; });
    }
    for (const each of all("[data-on-change]", within)) {
      for (const select of all("select", each)) select.addEventListener("change", () => each.submit());
      for (const apply of all(".button", each)) apply.hidden = true;
    }
  };
  const picks = () => all("[name=pick]");
  enhance(document);
  document.addEventListener("click", (event) => {
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // The search over the page, and the list of keys

  const palette = byId("palette"), keys = byId("keys");
  let chosen = 0, asked = 0;
  const found = () => all(".results a, .results button", palette);
  const choose = (at) => {
    const items = found();
    if (!items.length) return;
    chosen = (at + items.length) % items.length;
    items.forEach((each, place) => each.classList.toggle("chosen", place === chosen));
    items[chosen].scrollIntoView({ block: "nearest" });
  };
  const open = (dialog) => {
    if (!dialog || dialog.open) return;
    dialog.showModal();
    const field = dialog.querySelector("input:not([type])");
    if (field) { field.select(); look(); }
  };
  const look = async () => {
    const number = ++asked, field = palette.querySelector("input"), where = new URL(body.dataset.search, location.href);
    where.searchParams.set("q", field.value);
    try {
      const answer = await fetch(where, { headers: { Accept: "text/html", "X-Live": "1" }, cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("results");
      if (number !== asked || !page) return;
      palette.querySelector(".results").replaceChildren(...[...page.childNodes].map((each) => document.importNode(each, true)));
      writeTimes(palette);
      choose(0);
    } catch { /* the server cannot be reached: the last results stay */ }
  };
  if (palette) {
    let typed = 0;
    palette.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(look, 120); });
    palette.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        choose(chosen + (event.key === "ArrowDown" ? 1 : -1));
      } else if (event.key === "Enter" && event.target.matches("input") && found()[chosen]) {
        event.preventDefault();
        found()[chosen].click();
      }
    });
    byId("find").addEventListener("click", (event) => { event.preventDefault(); open(palette); });
    byId("keys-button").hidden = false;
    byId("keys-button").addEventListener("click", () => open(keys));
    for (const each of all("[data-close]")) each.addEventListener("click", () => each.closest("dialog").close());
    for (const each of [palette, keys]) each.addEventListener("click", (event) => { if (event.target === each) each.close(); });
    byId("keys-on").checked = kept.get("keys") !== "off";
    byId("keys-on").addEventListener("change", (event) => kept.set("keys", event.target.checked ? "on" : "off"));
  }

  // Keys

  const go = (selector) => { const link = document.querySelector(selector); if (link) link.click(); return !!link; };
  const rows = () => all("main tbody .go, main .group > summary, main .alerts .go");
  const step = (by) => {
    const links = rows(), at = links.indexOf(document.activeElement);
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1)];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  };
  const pickOf = () => document.activeElement.closest("tr")?.querySelector("[name=pick]");
  const act = (action) => {
    const pickable = document.querySelector("form.pickable"), job = document.querySelector("[data-job]");
    if (pickable && !picks().some((each) => each.checked) && pickOf()) pickOf().checked = true;
    const form = pickable || job;
    const names = action === "resubmit" ? ["resubmit", "now"] : ["cancel", "remove"];
    const button = form && names.map((name) => form.querySelector(`button[value=${name}]`)).find(Boolean);
    if (!button || (pickable && !picks().some((each) => each.checked))) return;
    if (pickable) button.click();
    else button.focus();  // one more Enter: nothing is changed by a single key
  };
  const PAGES = { o: 0, f: 1, p: 2, s: 3 };
  let gone = -Infinity;  // not 0, when the page was opened: f would be g f in its first moments
  const single = {
    "/": () => open(palette),
    "?": () => open(keys),
    g: () => { gone = performance.now(); },
    j: () => step(1),
    k: () => step(-1),
    x: () => { const box = pickOf(); if (box) box.checked = !box.checked; },
    a: () => { const boxes = picks(), on = !boxes.every((each) => each.checked); for (const each of boxes) each.checked = on; },
    f: () => { byId("f-find")?.focus(); byId("q")?.focus(); },
    n: () => go("main a[rel=next]"),
    p: () => go("main a[rel=prev]"),
    r: () => act("resubmit"),
    c: () => act("cancel"),
    u: () => go("main [data-up]"),
    ".": () => live && !live.hidden && live.click(),
  };
  for (const number of [1, 2, 3, 4]) single[number] = () => go(`main nav.switch[aria-label="Time span"] a:nth-child(${number})`);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && palette) {
      event.preventDefault();
      open(palette);
      return;
    }
    const typing = event.target.closest("input:not([type=checkbox]), textarea, select, dialog");
    if (event.key === "Escape" && !typing) {
      const menu = all("details.menu[open]").pop();
      if (menu) menu.open = false;
      else if (picks().some((each) => each.checked)) for (const each of picks()) each.checked = false;
      else document.activeElement.blur();
      return;
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || kept.get("keys") === "off") return;
    const isPage = performance.now() - gone < 1500 && event.key in PAGES;
    const does = isPage ? () => { gone = -Infinity; all(".nav a")[PAGES[event.key]]?.click(); } : Object.hasOwn(single, event.key) && single[event.key];
    if (does) { event.preventDefault(); does(); }
  });

  if (!stream) return;

  // What keeps the page as it is: a pointer on something that can be clicked or on its way there, the keyboard's focus,
  // a selection, a check box, a menu that is open.

  const CLICKABLE = "a, button, input, select, textarea, summary, label";
  let pointed = null, movedAt = 0, touched = 0;
  document.addEventListener("pointermove", (event) => {
    pointed = event.pointerType === "touch" ? null : event.target;
    movedAt = performance.now();
  }, { passive: true });
  document.addEventListener("pointerdown", () => { touched = performance.now(); }, { passive: true });
  document.addEventListener("pointerleave", () => { pointed = null; });
  document.addEventListener("scroll", () => { touched = performance.now(); }, { passive: true });
  const isHeld = () => {
    const now = performance.now();
    if (now - movedAt < REST || now - touched < REST || document.querySelector("dialog[open]")) return true;
    if (pointed && main.contains(pointed) && pointed.closest(CLICKABLE)) return true;
    const focused = document.activeElement;
    if (focused && focused !== main && main.contains(focused)) return true;
    const selection = getSelection();
    return !selection.isCollapsed && main.contains(selection.anchorNode);
  };
  const isInUse = (part) => part.querySelector(":checked:not(option), .menu[open], form details[open], #edit[open]");

  // Showing what is new

  let paused = false, lost = false, fetching = false, isOld = false, waiting = false, lastAsked = 0;
  try { paused = sessionStorage.getItem("paused") === "1"; } catch { /* see above */ }
  const say = () => {
    root.dataset.liveState = paused ? "paused" : lost ? "lost" : "on";
    const text = paused ? "Paused" : waiting ? "Newer figures wait" : lost ? "No connection" : "Live";
    if (says.textContent !== text) says.textContent = text;
    live.setAttribute("aria-pressed", String(paused));
  };
  let fresh = null;

  const put = () => {
    if (!fresh) return;
    if (isHeld()) { waiting = true; say(); return; }
    const named = all("[data-part]", fresh).map((each) => each.dataset.part);
    for (const part of all("[data-part]", main)) {
      const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
      if (!other || isInUse(part)) continue;
      enhance(other);
      // What was unfolded stays unfolded.
      const folds = all("details", part).map((each) => each.open);
      all("details", other).forEach((each, at) => { if (at in folds) each.open = folds[at]; });
      if (part.outerHTML !== other.outerHTML) { part.replaceWith(document.adoptNode(other)); }
    }
    const shown = new Set(all("[data-part]", main).map((each) => each.dataset.part));
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
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Live": "1" }, cache: "no-store" });
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
    else if (isOld || main.querySelector("[data-again]")) ask();
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
  live.addEventListener("click", () => {
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

  live.hidden = false;
  say();
  if (!paused && !document.hidden) listen();
})();
