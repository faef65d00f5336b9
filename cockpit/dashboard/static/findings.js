// What is wrong with a training, and what happened in it.

import { api } from "./api.js";
import { $, count, h, show } from "./dom.js";
import { jumpTo, setFindings } from "./board.js";
import { change, record, state } from "./state.js";

const ORDER = { error: 0, warning: 1, note: 2 };

let drawnAs = "";

export async function loadFindings() {
  const chosen = state.chosen;
  const answers = await Promise.all(chosen.map((run) => api.findings(run).then((found) => ({ run, ...found }))));
  if (chosen !== state.chosen) return;
  const shape = JSON.stringify([answers, state.labels]);
  if (shape === drawnAs) return; // what somebody reads, or is about to click on, stays
  drawnAs = shape;
  const number = answers.reduce((sum, one) => sum + one.findings.length, 0);
  $("finding-count").textContent = number;
  show($("finding-count"), number > 0);
  setFindings(chosen.length === 1 ? answers[0].findings : []);
  $("findings").replaceChildren(...answers.flatMap((one) => ofRun(one, chosen.length > 1)));
}

function ofRun({ run, findings, events, left_out: leftOut }, named) {
  const sorted = [...findings].sort((a, b) => ORDER[a.severity] - ORDER[b.severity] || a.step - b.step);
  return [
    named ? h("h2", { className: "run-heading" }, state.labels[run] ?? run) : null,
    findings.length
      ? h("div", { className: "finding-list" }, ...sorted.map((one) => finding(one, run)))
      : h("p", { className: "sheet muted" }, "No findings: nothing was found to be wrong with this training."),
    h("h2", {}, "Events"),
    events.length
      ? h("div", { className: "sheet scroll" }, eventTable(events, run))
      : h("p", { className: "sheet muted" }, "None: everything that was due was checked."),
    leftOut ? h("p", { className: "muted" }, `${count(leftOut, "further entry")} left out.`) : null,
  ].filter(Boolean);
}

function stepButton(step, text, run, instrument) {
  return h("button", { className: "link", onclick: () => goTo(step, text, run, instrument) }, `step ${step.toLocaleString("en")}`);
}

function finding(one, run) {
  const facts = Object.entries(one.evidence).map(([name, value]) =>
    h("div", {}, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, plain(value))),
  );
  return h(
    "article",
    { className: `finding ${one.severity}`, data: { code: one.code } },
    h(
      "div",
      { className: "finding-head" },
      h("span", { className: `severity ${one.severity}` }, one.severity),
      h("h3", {}, one.title),
      stepButton(one.step, one.code, run, one.instrument),
    ),
    one.subjects.length ? h("p", { className: "subjects" }, ...one.subjects.slice(0, 12).map((name) => h("code", {}, name))) : null,
    h("p", {}, one.why),
    h("p", { className: "action" }, h("strong", {}, "What to do: "), one.action),
    facts.length ? h("dl", { className: "facts" }, ...facts) : null,
    h(
      "p",
      { className: "muted small" },
      `${one.code} ${one.name} · ${Math.round(one.confidence * 100)} % sure${one.source ? ` · ${one.source}` : ""}`,
    ),
  );
}

function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(", ");
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
}

function eventTable(events, run) {
  const body = events.map((one) =>
    h(
      "tr",
      {},
      h("td", {}, one.first === null ? "" : stepButton(one.first, `step ${one.first}`, run, null)),
      h("td", {}, one.kind.replaceAll("-", " ")),
      h("td", {}, one.subject),
      h("td", {}, one.count > 1 ? `${one.message} (${one.count} times)` : one.message),
    ),
  );
  const head = h("tr", {}, ...["Since", "Kind", "What", "Why"].map((name) => h("th", { scope: "col" }, name)));
  return h("table", {}, h("thead", {}, head), h("tbody", {}, ...body));
}

/** Shows the steps around one, marks it, and scrolls to the picture that shows it best. */
function goTo(step, text, run, instrument) {
  const last = record(run)?.last ?? step;
  const around = Math.max(10, Math.round(last * 0.05));
  const window = [Math.max(0, step - around), Math.max(step + around, 1)];
  change({ tab: "board", window, mark: { step, text } });
  if (instrument) jumpTo(instrument);
  else scrollTo({ top: 0, behavior: "smooth" });
}
