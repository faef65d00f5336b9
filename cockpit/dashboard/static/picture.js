// Drawing one figure of the server with plotly.js.

import { state } from "./state.js";

const CONFIG = {
  displayModeBar: false,
  displaylogo: false,
  doubleClick: false,
  responsive: true,
  scrollZoom: false,
  showTips: false,
};

const MANY_TICKS = 12;
const MARK = { light: "#d55e00", dark: "#ff8a3d" };
const BEHIND = { light: "rgba(255,255,255,0.8)", dark: "rgba(21,28,38,0.8)" };

// The largest part of the page by far: everything else is asked for while it comes.
const plotly = new Promise((resolve) => {
  if (window.Plotly) resolve();
  else document.getElementById("plotly").addEventListener("load", resolve);
});

const touch = matchMedia("(pointer: coarse)");

/** Draws a picture into an element; `zoomed` is called with the steps that somebody drags over. */
export async function draw(element, picture, { large = false, marks = [], zoomed, reset }) {
  await plotly;
  const { data, layout } = picture.figure;
  const own = { ...layout, xaxis: { ...layout.xaxis }, yaxis: { ...layout.yaxis } };
  own.shapes = [...layout.shapes];
  own.annotations = [...layout.annotations];
  if (large) {
    const [from, to] = own.xaxis.range ?? [0, Infinity];
    if (!picture.over_steps || to - from > MANY_TICKS) finer(own.xaxis);
    finer(own.yaxis);
  }
  if (picture.over_steps) {
    own.yaxis.fixedrange = true; // dragging chooses steps; the server fits the height to them
    for (const mark of marks) pointAt(own, mark);
  }
  own.dragmode = touch.matches && !large ? false : "zoom"; // a finger on a small one scrolls the page
  own.uirevision = `${picture.id} ${state.window}`;
  const first = !element.classList.contains("js-plotly-plot");
  await window.Plotly.react(element, data, own, CONFIG);
  if (first) {
    element.on("plotly_relayout", (event) => {
      const from = event["xaxis.range[0]"];
      const to = event["xaxis.range[1]"];
      if (element.picture.over_steps && from !== undefined && zoomed) zoomed(Number(from), Number(to));
    });
    element.on("plotly_doubleclick", () => {
      if (element.picture.over_steps) reset();
      else window.Plotly.relayout(element, asItWas(element.picture.figure.layout));
    });
  }
  element.picture = picture;
}

/** There is room for more ticks than the server chose; those of an axis without a type only it can name. */
function finer(axis) {
  axis.nticks = MANY_TICKS;
  if (!axis.type) return;
  for (const part of ["tickmode", "tickvals", "ticktext"]) delete axis[part];
}

function asItWas(layout) {
  const change = {};
  for (const name of ["xaxis", "yaxis"]) {
    if (layout[name].range) change[`${name}.range`] = [...layout[name].range];
    else change[`${name}.autorange`] = true;
  }
  return change;
}

/** Marks a step, in a picture over steps. */
function pointAt(layout, mark) {
  const color = MARK[state.theme];
  layout.shapes.push({
    type: "line",
    xref: "x",
    x0: mark.step,
    x1: mark.step,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color, width: mark.strong ? 1.5 : 1, dash: mark.strong ? "solid" : "2px,3px" },
  });
  if (!mark.strong) return;
  layout.annotations.push({
    x: mark.step,
    xref: "x",
    y: 1,
    yref: "paper",
    yanchor: "top",
    xanchor: "left",
    showarrow: false,
    text: mark.text, // a code of ours or "step n": never a text of a file
    font: { size: 10, color },
    bgcolor: BEHIND[state.theme],
  });
}

export function forget(element) {
  if (element.classList.contains("js-plotly-plot")) window.Plotly.purge(element);
}
