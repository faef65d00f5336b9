// Which pictures and layers are shown.

import { $, h, show } from "./dom.js";
import { change, GROUPS, state } from "./state.js";

const LISTED = 500;

let quantities = [];
let layers = [];

export function layerOf(row, parameters) {
  if (!parameters.has(row)) return row; // a module itself
  const dot = row.lastIndexOf(".");
  return dot > 0 ? row.slice(0, dot) : row;
}

export function setQuantities(names) {
  quantities = [...names].sort((a, b) => a.localeCompare(b));
  drawQuantities();
}

export function setLayers(names) {
  if (names.length === layers.length) return;
  layers = names;
  drawLayers();
}

export function isShown(picture) {
  if (state.hiddenGroups.has(picture.group)) return false;
  if (picture.quantities.every((name) => state.hiddenQuantities.has(name))) return false;
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [picture.title, picture.group, picture.id, ...picture.quantities].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function drawGroups() {
  $("groups").replaceChildren(
    ...GROUPS.map((group) =>
      h(
        "button",
        {
          className: "chip",
          data: { group },
          "aria-pressed": String(!state.hiddenGroups.has(group)),
          onclick: () => {
            const hidden = new Set(state.hiddenGroups);
            if (!hidden.delete(group)) hidden.add(group);
            change({ hiddenGroups: hidden });
          },
        },
        group.charAt(0) + group.slice(1).toLowerCase(),
      ),
    ),
  );
}

/** Lists names with a box each; those that are there already stay, and with them the focus. */
function drawChecks(list, names, isChecked, toggle, note) {
  if (JSON.stringify(names) !== list.dataset.names) {
    list.dataset.names = JSON.stringify(names);
    list.replaceChildren(
      ...names.map((name) =>
        h(
          "li",
          {},
          h(
            "label",
            { title: name },
            h("input", { type: "checkbox", onchange: (event) => toggle(name, event.target.checked) }),
            h("span", {}, name),
          ),
        ),
      ),
      ...(note ? [h("li", { className: "muted" }, note)] : []),
    );
  }
  const boxes = list.querySelectorAll("input");
  names.forEach((name, place) => (boxes[place].checked = isChecked(name)));
}

function withOr(set, name, there) {
  const next = new Set(set);
  if (there) next.add(name);
  else next.delete(name);
  return next;
}

function drawQuantities() {
  const hidden = quantities.filter((name) => state.hiddenQuantities.has(name)).length;
  $("quantity-count").textContent = hidden
    ? `${quantities.length - hidden} of ${quantities.length}`
    : quantities.length || "";
  drawChecks(
    $("quantities"),
    quantities,
    (name) => !state.hiddenQuantities.has(name),
    (name, shown) => change({ hiddenQuantities: withOr(state.hiddenQuantities, name, !shown) }),
  );
}

function drawLayers() {
  show($("layer-filter"), layers.length > 0);
  $("layer-count").textContent = state.layers
    ? `${state.layers.size} of ${layers.length}`
    : layers.length || "";
  const wanted = $("layer-search").value.trim().toLowerCase();
  const found = layers.filter((name) => name.toLowerCase().includes(wanted));
  drawChecks(
    $("layers"),
    found.slice(0, LISTED),
    (name) => state.layers === null || state.layers.has(name),
    (name, shown) => {
      const next = withOr(state.layers ?? layers, name, shown);
      change({ layers: next.size === layers.length ? null : next });
    },
    found.length > LISTED ? `and ${found.length - LISTED} more: search for them` : "",
  );
}

function all(kind) {
  if (kind === "quantities") {
    change({ hiddenQuantities: new Set() });
    return;
  }
  // With a word in the search box, "all" means those that it finds.
  const wanted = $("layer-search").value.trim().toLowerCase();
  if (!wanted) {
    change({ layers: null });
    return;
  }
  change({ layers: new Set(layers.filter((name) => name.toLowerCase().includes(wanted))) });
}

function none(kind) {
  if (kind === "quantities") change({ hiddenQuantities: new Set(quantities) });
  else change({ layers: new Set() });
}

export function startFilters() {
  drawGroups();
  drawLayers();
  $("search").addEventListener("input", () => change({ search: $("search").value }));
  $("layer-search").addEventListener("input", drawLayers);
  for (const button of document.querySelectorAll("[data-all]")) {
    button.addEventListener("click", () => all(button.dataset.all));
  }
  for (const button of document.querySelectorAll("[data-none]")) {
    button.addEventListener("click", () => none(button.dataset.none));
  }
}

export function filtersChanged(changed) {
  if (changed.has("hiddenGroups")) drawGroups();
  if (changed.has("hiddenQuantities")) drawQuantities();
  if (changed.has("layers")) drawLayers();
}
