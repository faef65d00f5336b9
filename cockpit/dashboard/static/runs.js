// The list of runs: choose one, or lay several over each other.

import { $, age, count, h, show } from "./dom.js";
import { change, record, state } from "./state.js";

const MANY = 8;
const MOST = 7; // as many as there are colours

export function choose(name) {
  change({ chosen: [name], window: null, mark: null, layers: null });
  document.body.classList.remove("side-open");
}

function toggle(name) {
  const others = state.chosen.filter((one) => one !== name);
  if (others.length < state.chosen.length) {
    if (others.length) change({ chosen: others });
    else {
      drawnAs = ""; // the last one stays chosen, and its box ticked
      drawRuns();
    }
  } else {
    change({ chosen: [...state.chosen, name].slice(-MOST), layers: null, mark: null });
  }
}

const STATUS = {
  live: "training",
  closed: "closed",
  stopped: "stopped without being closed",
  damaged: "cannot be read",
};

let drawnAs = "";

/** Lists the runs: live ones first, then the newest, an order in which they stay while they train. */
export function drawRuns() {
  const wanted = $("run-search").value.trim().toLowerCase();
  show($("run-search"), state.runs.length > MANY);
  $("run-count").textContent = state.runs.length || "";
  const runs = state.runs
    .filter((run) => run.name.toLowerCase().includes(wanted))
    .sort((a, b) => (b.status === "live") - (a.status === "live") || b.created - a.created);
  // What is there stays there while only numbers change: nobody's click or focus gets lost.
  const shape = JSON.stringify([state.runs.length === 0, runs.map((run) => [run.name, run.status]), state.chosen, state.colors]);
  if (shape !== drawnAs) {
    drawnAs = shape;
    const focused = document.activeElement?.dataset?.run;
    $("runs").replaceChildren(...(runs.length ? runs.map(item) : [empty()]));
    if (focused !== undefined) {
      for (const element of $("runs").querySelectorAll("[data-run]")) {
        if (element.dataset.run === focused) element.focus({ preventScroll: true });
      }
    }
  }
  const facts = $("runs").querySelectorAll(".run-text");
  runs.forEach((run, place) => {
    facts[place].textContent = run.error
      ? STATUS.damaged
      : `${run.status} · ${count(run.steps, "step")} · ${age(run.updated)}`;
  });
}

function empty() {
  const text = state.runs.length
    ? "No run of that name."
    : "No runs here yet. They appear by themselves once a training writes into this folder.";
  return h("li", { className: "muted empty" }, text);
}

function item(run) {
  const chosen = state.chosen.includes(run.name);
  const slash = run.name.lastIndexOf("/");
  const file = run.name.slice(slash + 1).replace(/\.(db|json)$/, "");
  const box = h("input", {
    type: "checkbox",
    checked: chosen,
    title: "Compare: lay this run over the others",
    "aria-label": `Compare ${run.name}`,
    data: { run: `compare ${run.name}` },
    onchange: () => toggle(run.name),
  });
  const button = h(
    "button",
    {
      className: "run",
      title: run.name,
      data: { run: `show ${run.name}` },
      onclick: () => choose(run.name),
    },
    h(
      "span",
      { className: "run-name" },
      slash > 0 ? h("span", { className: "muted" }, `${run.name.slice(0, slash)}/`) : null,
      file,
    ),
    h(
      "span",
      { className: "run-facts muted" },
      h("span", { className: `dot ${run.status}`, title: STATUS[run.status] }),
      h("span", { className: "run-text" }),
    ),
  );
  const color = state.chosen.length > 1 && chosen ? state.colors[run.name] : undefined;
  return h(
    "li",
    { className: chosen ? "chosen" : "", data: color ? { color } : {} },
    box,
    button,
  );
}

/** The heading of the page: which run, whether it trains, how far it is. */
export function drawHeading() {
  const runs = state.chosen.map(record).filter(Boolean);
  if (runs.length > 1) {
    $("title").textContent = `${runs.length} runs`;
    $("subtitle").replaceChildren(
      ...runs.map((run) =>
        h(
          "span",
          { className: "run-legend", data: { color: state.colors[run.name] ?? "blue" } },
          state.labels[run.name] ?? run.name,
        ),
      ),
    );
    document.title = `${runs.length} runs · Cockpit`;
    return;
  }
  const [run] = runs;
  document.title = run ? `${run.name} · Cockpit` : "Cockpit";
  $("title").textContent = run ? run.name.replace(/\.(db|json)$/, "") : "Cockpit";
  if (!run) {
    $("subtitle").textContent = state.runs.length ? "Choose a run." : "";
    return;
  }
  const facts = [
    run.model,
    run.steps
      ? `${count(run.steps, "tracked step")}, up to step ${run.last.toLocaleString("en")}`
      : run.status === "live"
        ? "no steps yet"
        : "no steps",
    `changed ${age(run.updated)} ago`,
  ];
  $("subtitle").replaceChildren(
    h("span", { className: `status ${run.status}` }, h("span", { className: `dot ${run.status}` }), run.status),
    ` ${facts.filter(Boolean).join(" · ")}`,
  );
}
