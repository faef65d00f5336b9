// The pictures: a card each, in groups, fetched and drawn as they come into sight.

import { api } from "./api.js";
import { $, h, show, tip } from "./dom.js";
import { isShown, layerOf, setLayers, setQuantities } from "./filters.js";
import { draw, forget } from "./picture.js";
import { change, GROUPS, record, state } from "./state.js";

const BATCH = 24;
const FAILED = "NOT DRAWN";
const NARROWEST = 21; // rem: a card of the style sheet
const PADDING = 1.7; // rem: what of its width is not picture
const sections = new Map(); // group -> { element, grid }
const cards = new Map(); // id of a picture -> card
let instruments = []; // names, in their order
let quantitiesOf = new Map();
let rows = new Set();
let parameters = new Set();
let stale = new Set(); // instruments whose pictures are not those of the state
let coarse = new Set(); // instruments whose pictures are previews, while the server still reads
let generation = 0;
let busy = false;
let findings = [];
let largeId = null;
let onTrouble = () => {};

const inSight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const card = cards.get(entry.target.dataset.id);
    if (card) card.seen = entry.isIntersecting;
  }
  refresh();
});

const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const card = cards.get(entry.target.dataset.id);
      if (!card) continue;
      card.near = entry.isIntersecting;
      if (card.near) paint(card);
    }
    refresh();
  },
  { rootMargin: "300px 0px" },
);

export function startBoard(trouble) {
  onTrouble = trouble;
  $("board").replaceChildren(
    ...[...GROUPS, FAILED].map((group) => {
      const grid = h("div", { className: "grid" });
      const element = h("section", { className: "group", data: { group }, hidden: true }, h("h2", {}, group), grid);
      sections.set(group, { element, grid });
      return element;
    }),
    h("p", { id: "nothing", className: "muted nothing", hidden: true }),
  );
  $("large-close").addEventListener("click", () => $("large").close());
  $("large").addEventListener("close", () => {
    largeId = null;
    forget($("large-plot"));
  });
  $("large").addEventListener("click", (event) => {
    if (event.target === $("large")) $("large").close();
  });
  addEventListener("resize", debounce(() => change({ resized: true }), 400));
}

function debounce(call, wait) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, wait);
  };
}

/** Asks anew which pictures there are of the chosen runs. */
export async function loadBoard() {
  const chosen = state.chosen;
  if (!chosen.length) return;
  const answer = await api.board(chosen);
  if (chosen !== state.chosen) return;
  const names = answer.instruments.map((one) => one.name);
  const added = names.filter((name) => !instruments.includes(name));
  instruments = names;
  quantitiesOf = new Map(answer.instruments.map((one) => [one.name, one.quantities]));
  parameters = new Set(answer.parameters);
  for (const parameter of parameters) rows.add(parameter);
  setQuantities(new Set(answer.instruments.flatMap((one) => one.quantities)));
  listLayers();
  change({ labels: answer.labels, colors: answer.colors });
  for (const name of added) stale.add(name);
  for (const card of [...cards.values()]) if (!instruments.includes(card.instrument)) remove(card);
  describeNothing();
  refresh();
}

/** Everything on the board is of other runs now. */
export function emptyBoard() {
  generation += 1;
  for (const card of [...cards.values()]) remove(card);
  instruments = [];
  stale = new Set();
  coarse = new Set();
  rows = new Set();
  setLayers([]);
  applyFilters(); // the headings go, too
}

/** What is shown has changed: fetch what is in sight again, and the rest when it comes into sight. */
export function touch() {
  generation += 1;
  for (const name of instruments) stale.add(name);
  refresh();
}

/** New values were written; what is shown stays valid until its successor is there. */
export function renew() {
  for (const name of instruments) stale.add(name);
  refresh();
}

/** Previews are asked for again, until the server has read all values. */
export function refine() {
  for (const name of coarse) stale.add(name);
  refresh();
}

export function setFindings(found) {
  findings = found;
  repaint();
}

export function repaint() {
  for (const card of cards.values()) card.painted = false;
  for (const card of cards.values()) if (card.near) paint(card);
}

export function applyFilters() {
  for (const card of cards.values()) show(card.element, isShown(card.picture));
  for (const { element, grid } of sections.values()) {
    show(element, [...grid.children].some((child) => !child.hidden));
  }
  describeNothing();
}

function describeNothing() {
  const visible = [...sections.values()].some(({ element }) => !element.hidden);
  const text = cards.size
    ? "Nothing passes the filters."
    : instruments.length
      ? "Drawing …"
      : state.chosen.length
        ? nothingRecorded()
        : "Choose a run.";
  $("nothing").textContent = text;
  show($("nothing"), !visible);
}

/** A run that is not written any more will not get what it has not recorded. */
function nothingRecorded() {
  return state.chosen.some((name) => record(name)?.status === "live")
    ? "Nothing has been recorded yet. Pictures appear with the first tracked step."
    : "Nothing was recorded.";
}

/** An instrument is wanted when one of its pictures is in sight, or when it has none yet. */
function wanted(name) {
  if ((quantitiesOf.get(name) ?? []).every((one) => state.hiddenQuantities.has(one))) return false;
  const own = [...cards.values()].filter((card) => card.instrument === name);
  return own.length === 0 || own.some((card) => card.seen && !card.element.hidden) || own.some((card) => card.id === largeId);
}

async function refresh() {
  if (busy) return;
  busy = true;
  try {
    for (;;) {
      const names = instruments.filter((name) => stale.has(name) && wanted(name)).slice(0, BATCH);
      if (!names.length || state.tab !== "board") break;
      await fetchPictures(names);
      onTrouble(null);
    }
  } catch (error) {
    onTrouble(error);
  } finally {
    busy = false;
  }
}

async function fetchPictures(names) {
  const own = generation;
  const known = {};
  for (const card of cards.values()) {
    if (card.generation === own && names.includes(card.instrument)) known[card.id] = card.picture.tag;
  }
  for (const name of names) stale.delete(name);
  const query = {
    runs: state.chosen,
    instruments: names,
    window: state.window,
    width: plotWidth(),
    density: Math.min(devicePixelRatio, 2),
    style: state.theme,
    layers: state.layers === null ? null : [...state.layers],
    known,
  };
  let answer;
  try {
    answer = await api.panels(query);
  } catch (error) {
    for (const name of names) stale.add(name);
    throw error;
  }
  if (own !== generation) {
    for (const name of names) if (instruments.includes(name)) stale.add(name);
    return;
  }
  for (const name of answer.rest) stale.add(name);
  for (const entry of answer.panels) take(entry, own);
  listLayers();
  applyFilters();
}

/** Width of a picture in pixels, also before there is one: the grid has as many columns as fit. */
function plotWidth() {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const all = $("board").clientWidth;
  const columns = Math.max(1, Math.floor((all + rem) / (NARROWEST * rem + rem)));
  const card = (all - (columns - 1) * rem) / columns;
  return Math.round(Math.min(4000, Math.max(200, card - PADDING * rem)));
}

/** Takes over what the server says of one instrument. */
function take(entry, own) {
  for (const row of entry.rows ?? []) rows.add(row);
  const before = [...cards.values()].filter((card) => card.instrument === entry.name);
  const pictures = entry.error
    ? [{ ...failed(entry), ...before[0]?.picture, error: entry.error, figure: undefined }]
    : entry.pictures;
  if (entry.coarse) coarse.add(entry.name);
  else coarse.delete(entry.name);
  for (const picture of pictures) picture.quantities = quantitiesOf.get(entry.name) ?? [];
  for (const card of before) if (!pictures.some((one) => one.id === card.id)) remove(card);
  for (const picture of pictures) {
    let card = cards.get(picture.id);
    if (card && !picture.figure && !picture.error) {
      card.generation = own;
      card.element.classList.toggle("coarse", Boolean(entry.coarse));
      continue; // the one that is there is still right
    }
    if (!card) card = add(entry.name, picture);
    card.element.classList.toggle("coarse", Boolean(entry.coarse));
    card.generation = own;
    if (card.picture.group !== picture.group) place(card, picture.group);
    card.picture = picture;
    card.element.classList.toggle("starts-row", picture === pictures[0] && areHeatMaps(pictures));
    card.painted = false;
    describe(card);
    if (card.near) paint(card);
  }
}

/** Heat maps of several runs stand side by side, as they cannot lie over each other. */
function areHeatMaps(pictures) {
  return pictures.length > 1 && Boolean(pictures[0].figure?.data.some((trace) => trace.type === "heatmap"));
}

function failed(entry) {
  return {
    id: entry.name,
    title: entry.name,
    group: FAILED,
    how_to_read: "",
    headline: "",
    over_steps: false,
    tag: "",
  };
}

function listLayers() {
  setLayers([...new Set([...rows].map((row) => layerOf(row, parameters)))]);
}

function add(instrument, picture) {
  const title = h("h3", { tabIndex: 0 });
  const headline = h("span", { className: "headline" });
  const info = h("button", { className: "icon info", "aria-label": "How to read this" }, "?");
  const large = h("button", { className: "icon", title: "Enlarge", "aria-label": "Enlarge" }, "⤢");
  const plot = h("div", { className: "plot" });
  const element = h(
    "article",
    { className: "card", data: { id: picture.id, instrument } },
    h("div", { className: "card-head" }, title, headline, info, large),
    plot,
  );
  const card = { id: picture.id, instrument, picture, element, title, headline, plot, near: false, seen: false, painted: false };
  large.addEventListener("click", () => enlarge(card));
  for (const one of [title, info]) tip(one, () => card.picture.how_to_read);
  cards.set(picture.id, card);
  place(card, picture.group);
  near.observe(element);
  inSight.observe(element);
  return card;
}

/** Puts a card where its instrument stands in the order of all. */
function place(card, group) {
  const { grid } = sections.get(group) ?? sections.get(FAILED);
  const rank = instruments.indexOf(card.instrument);
  const next = [...grid.children].find((child) => instruments.indexOf(child.dataset.instrument) > rank);
  grid.insertBefore(card.element, next ?? null);
}

function remove(card) {
  near.unobserve(card.element);
  inSight.unobserve(card.element);
  forget(card.plot);
  card.element.remove();
  cards.delete(card.id);
}

function describe(card) {
  card.title.textContent = card.picture.title;
  card.headline.textContent = card.picture.headline;
  if (largeId === card.id) describeLarge(card);
}

/** Findings name an instrument; older ones by the title of its picture. */
function shows(card, instrument) {
  return instrument !== null && (card.instrument === instrument || card.picture.title === instrument);
}

function marksOf(card) {
  const own = findings
    .filter((one) => shows(card, one.instrument))
    .map((one) => ({ step: one.step, strong: false }));
  return state.mark ? [...own, { ...state.mark, strong: true }] : own;
}

const ways = {
  zoomed: (from, to) => {
    if (to - from >= 1) change({ window: [from, to] });
  },
  reset: () => change({ window: null, mark: null }),
};

const queue = new Set(); // cards that wait to be drawn

/** Draws a card soon: one after the other, those in sight first, so that the page stays alive. */
function paint(card) {
  if (card.painted) return;
  if (!queue.size) setTimeout(paintNext);
  queue.add(card);
}

async function paintNext() {
  const waiting = [...queue];
  const card = waiting.find((one) => one.seen) ?? waiting[0];
  try {
    if (cards.get(card.id) === card && !card.painted) await paintNow(card);
  } finally {
    queue.delete(card);
    if (queue.size) setTimeout(paintNext);
  }
}

async function paintNow(card) {
  card.painted = true;
  if (card.picture.error) {
    forget(card.plot);
    card.plot.replaceChildren(h("p", { className: "problem" }, card.picture.error));
    return;
  }
  if (!card.plot.classList.contains("js-plotly-plot")) card.plot.replaceChildren();
  await draw(card.plot, card.picture, { marks: marksOf(card), ...ways });
  if (largeId === card.id) drawLarge(card);
}

function enlarge(card) {
  largeId = card.id;
  describeLarge(card);
  $("large").showModal();
  drawLarge(card);
}

function describeLarge(card) {
  $("large-title").textContent = card.picture.title;
  $("large-headline").textContent = card.picture.headline;
  $("large-how").textContent = card.picture.how_to_read;
  const links = state.chosen.flatMap((run) =>
    card.picture.quantities.map((name) => h("a", { href: api.dataAddress(run, "csv", name), download: "" }, state.chosen.length > 1 ? `${name} of ${state.labels[run] ?? run}` : name)),
  );
  $("large-data").replaceChildren(...(links.length ? ["Data as CSV: "] : []), ...links.flatMap((link, place) => (place ? [", ", link] : [link])));
}

function drawLarge(card) {
  if (card.picture.figure) draw($("large-plot"), card.picture, { large: true, marks: marksOf(card), ...ways });
}

/** Scrolls to the picture of an instrument, if there is one, and lets it light up. */
export function jumpTo(instrument) {
  const card = [...cards.values()].find((one) => shows(one, instrument));
  if (!card) return;
  show(card.element, true);
  card.element.scrollIntoView({ block: "center", behavior: "smooth" });
  card.element.classList.remove("lit");
  requestAnimationFrame(() => card.element.classList.add("lit"));
}
