// Runs before anything is drawn, so that the page never flashes in the wrong colours.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("cockpit-theme");
  } catch {
    // storage is switched off: the system decides
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme =
    chosen === "light" || chosen === "dark" ? chosen : dark ? "dark" : "light";
})();
