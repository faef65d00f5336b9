// What the page shows, in one object; whoever depends on it is told when it changes.

export const GROUPS = [
  "STEP SIZE",
  "GRADIENTS",
  "CURVATURE",
  "ACTIVATIONS",
  "PERFORMANCE",
  "HYPERPARAMETERS",
];

export const state = {
  runs: [], // what the list says of each run
  chosen: [], // names of the runs that are shown, in the order of their colours
  labels: {}, // what they are called in legends
  colors: {}, // names of their colours
  tab: "board",
  theme: document.documentElement.dataset.theme,
  search: "",
  hiddenGroups: new Set(),
  hiddenQuantities: new Set(),
  layers: null, // the layers that are shown: all of them if null
  window: null, // the first and the last step that are shown: all of them if null
  mark: null, // a step that is pointed at: { step, text }
};

const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

/** Changes the state and tells everybody what has changed. */
export function change(part) {
  Object.assign(state, part);
  if (part.chosen || part.tab) writeAddress();
  const changed = new Set(Object.keys(part));
  for (const listener of listeners) listener(changed);
}

export function record(name) {
  return state.runs.find((run) => run.name === name);
}

/** What is shown stands in the fragment of the address, which stays in the browser. */
function writeAddress() {
  const parts = new URLSearchParams();
  for (const name of state.chosen) parts.append("run", name);
  if (state.tab !== "board") parts.set("tab", state.tab);
  history.replaceState(null, "", `#${parts}`);
}

export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const tab = parts.get("tab");
  return {
    chosen: parts.getAll("run"),
    tab: ["board", "findings", "settings"].includes(tab) ? tab : "board",
  };
}
