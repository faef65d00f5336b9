// What was stored about a run when it began, and its data for other programs.

import { api } from "./api.js";
import { $, count, h } from "./dom.js";
import { state } from "./state.js";

export async function loadSettings() {
  const chosen = state.chosen;
  const answers = await Promise.all(chosen.map(api.settings));
  if (chosen !== state.chosen) return;
  $("settings").replaceChildren(...answers.flatMap((one) => ofRun(one, chosen.length > 1)));
  drawDownloads();
}

function ofRun(about, named) {
  const { run, settings, parameters, quantities, process } = about;
  const elements = parameters.reduce((sum, one) => sum + one.shape.reduce((a, b) => a * b, 1), 0);
  const file = {
    file: run.name,
    status: run.status,
    "tracked steps": run.steps.toLocaleString("en"),
    begun: run.created ? when(run.created) : undefined,
    "last change": when(run.updated),
    size: size(about.bytes),
    process: process.pid ? `${process.pid} on ${process.host}` : undefined,
  };
  return [
    named ? h("h2", { className: "run-heading" }, state.labels[run.name] ?? run.name) : null,
    h(
      "div",
      { className: "columns" },
      sheet("Run", table(file)),
      sheet("Data", downloads(run.name, quantities)),
    ),
    sheet("Settings", Object.keys(settings).length ? table(settings) : h("p", { className: "muted" }, "None were stored.")),
    sheet(
      `Parameters: ${count(parameters.length, "tensor")}, ${count(elements, "element")}`,
      h(
        "div",
        { className: "scroll" },
        h(
          "table",
          {},
          h("thead", {}, h("tr", {}, ...["Name", "Shape", "Type"].map((name) => h("th", { scope: "col" }, name)))),
          h(
            "tbody",
            {},
            ...parameters.map((one) =>
              h("tr", {}, h("td", {}, h("code", {}, one.name)), h("td", {}, one.shape.join(" × ") || "scalar"), h("td", {}, one.dtype)),
            ),
          ),
        ),
      ),
    ),
  ].filter(Boolean);
}

function sheet(title, ...content) {
  return h("section", { className: "sheet" }, h("h3", {}, title), ...content);
}

function table(values) {
  const rows = Object.entries(values)
    .filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, content(value))));
  return h("dl", { className: "pairs" }, ...rows);
}

function content(value) {
  if (Array.isArray(value)) {
    if (value.every((one) => typeof one !== "object" || one === null)) return value.join(", ");
    return h("div", {}, ...value.map((one) => content(one)));
  }
  if (value !== null && typeof value === "object") return table(value);
  return String(value);
}

function when(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB"];
  let unit = 0;
  let number = bytes;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit ? number.toFixed(1) : number} ${units[unit]}`;
}

function link(run, format, quantity, text) {
  return h("a", { href: api.dataAddress(run, format, quantity), download: "" }, text);
}

function downloads(run, quantities) {
  return h(
    "div",
    {},
    h("p", {}, "All numbers: ", link(run, "csv", null, "CSV"), ", ", link(run, "json", null, "JSON")),
    h(
      "ul",
      { className: "data-list" },
      ...quantities.map((one) =>
        h("li", {}, h("span", {}, one.name), h("span", { className: "muted" }, count(one.series, "series").replace("seriess", "series")), link(run, "csv", one.name, "CSV"), link(run, "json", one.name, "JSON")),
      ),
    ),
  );
}

export function drawDownloads() {
  $("download-items").replaceChildren(
    ...state.chosen.flatMap((run) => [
      state.chosen.length > 1 ? h("span", { className: "muted" }, state.labels[run] ?? run) : null,
      link(run, "csv", null, "All numbers as CSV"),
      link(run, "json", null, "All numbers as JSON"),
    ]).filter(Boolean),
  );
}
