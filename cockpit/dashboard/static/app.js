// The page: asks for the list of runs again and again, and lets the parts follow.

import { api } from "./api.js";
import { $, remember, show } from "./dom.js";
import { applyFilters, emptyBoard, loadBoard, refine, renew, repaint, startBoard, touch } from "./board.js";
import { filtersChanged, startFilters } from "./filters.js";
import { loadFindings } from "./findings.js";
import { drawHeading, drawRuns } from "./runs.js";
import { drawDownloads, loadSettings } from "./settings.js";
import { change, onChange, readAddress, record, state } from "./state.js";

const EVERY = 800; // milliseconds between two questions for news
const ASIDE = 3000; // between two questions for what changes rarely: lists, findings, settings
const HIDDEN = 10000; // while nobody looks
let stamps = "";
let asideAt = 0;
let asideDue = false;
let troubled = false;

function trouble(error) {
  const gone = error instanceof TypeError || error?.name === "TimeoutError";
  troubled = Boolean(error);
  show($("banner"), troubled);
  if (error) $("banner").textContent = gone ? "The server does not answer. Trying again …" : error.message;
}

function attempt(work) {
  return work().catch(trouble);
}

/** Reads what the visible tab shows beside pictures. */
async function loadTab() {
  if (!state.chosen.length) return;
  await loadFindings(); // their number stands on the tab, their steps in the pictures
  if (state.tab === "settings") await loadSettings();
}

async function look() {
  const { runs, folder } = await api.runs();
  if (troubled) trouble(null);
  $("folder").textContent = folder;
  const known = new Set(runs.map((run) => run.name));
  state.runs = runs;
  const chosen = state.chosen.filter((name) => known.has(name));
  if (!chosen.length && runs.length) {
    const best = runs.find((run) => run.status === "live") ?? runs.find((run) => !run.error) ?? runs[0];
    change({ runs, chosen: [best.name] });
  } else {
    change(chosen.length === state.chosen.length ? { runs } : { runs, chosen });
  }
  refine();
  const now = state.chosen.map((name) => record(name)?.stamp).join(" ");
  if (now !== stamps) {
    const first = stamps === "";
    stamps = now;
    if (!first) {
      renew();
      asideDue = true;
    }
  }
  if (asideDue && performance.now() - asideAt > ASIDE) {
    asideDue = false;
    asideAt = performance.now();
    await Promise.all([loadBoard(), loadFindings()]);
  }
}

async function forever() {
  const begun = performance.now();
  await attempt(look);
  const took = performance.now() - begun;
  // A slow machine is asked less often: half of its time stays its own.
  setTimeout(forever, document.hidden ? HIDDEN : Math.max(EVERY, took));
}

onChange((changed) => {
  filtersChanged(changed);
  if (changed.has("chosen")) {
    stamps = state.chosen.map((name) => record(name)?.stamp).join(" ");
    emptyBoard();
    attempt(loadBoard);
    attempt(loadTab);
    drawDownloads();
  }
  if (changed.has("chosen") || changed.has("runs") || changed.has("colors")) {
    drawRuns();
    drawHeading();
  }
  if (changed.has("tab")) drawTab();
  if (changed.has("theme")) drawTheme();
  if (["window", "theme", "layers", "resized"].some((part) => changed.has(part)) && !changed.has("chosen")) touch();
  else if (changed.has("mark")) repaint();
  if (["search", "hiddenGroups", "hiddenQuantities"].some((part) => changed.has(part))) {
    applyFilters();
    if (changed.has("hiddenQuantities")) renew();
  }
  if (changed.has("window")) drawWindow();
});

function drawTab() {
  for (const button of document.querySelectorAll("[data-tab]")) {
    const own = button.dataset.tab === state.tab;
    button.setAttribute("aria-selected", String(own));
    show($(button.dataset.tab), own);
  }
  attempt(loadTab);
  if (state.tab === "board") renew();
}

function drawTheme() {
  document.documentElement.dataset.theme = state.theme;
  $("theme").textContent = state.theme === "dark" ? "☀" : "☾";
  $("theme").title = state.theme === "dark" ? "Light" : "Dark";
}

function drawWindow() {
  show($("window"), state.window !== null);
  if (state.window) {
    const [from, to] = state.window.map((step) => Math.round(step).toLocaleString("en"));
    $("window-text").textContent = `steps ${from} – ${to}`;
  }
}

function start() {
  startFilters();
  startBoard(trouble);
  drawTheme();
  $("theme").addEventListener("click", () => {
    const theme = state.theme === "dark" ? "light" : "dark";
    remember("cockpit-theme", theme);
    change({ theme });
  });
  $("reset-zoom").addEventListener("click", () => change({ window: null, mark: null }));
  $("run-search").addEventListener("input", drawRuns);
  for (const button of document.querySelectorAll("[data-tab]")) {
    button.addEventListener("click", () => change({ tab: button.dataset.tab }));
  }
  $("open-side").addEventListener("click", () => document.body.classList.add("side-open"));
  for (const one of [$("close-side"), $("veil")]) {
    one.addEventListener("click", () => document.body.classList.remove("side-open"));
  }
  addEventListener("click", (event) => {
    if (!$("download").contains(event.target)) $("download").open = false;
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input")) {
      event.preventDefault();
      $("search").focus();
    }
    if (event.key === "Escape" && !$("large").open && state.window) change({ window: null, mark: null });
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) attempt(look);
  });
  const wanted = readAddress();
  if (wanted.tab !== "board") change({ tab: wanted.tab });
  else drawTab();
  state.chosen = [];
  attempt(async () => {
    const { runs } = await api.runs();
    const known = new Set(runs.map((run) => run.name));
    const chosen = wanted.chosen.filter((name) => known.has(name));
    if (chosen.length) change({ runs, chosen });
  }).then(forever);
}

start();
