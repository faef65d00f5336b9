// Small tools for the document. Texts only ever become text nodes: nothing here parses HTML.

export const $ = (id) => document.getElementById(id);

/** Makes an element; `properties` are those of the element, or attributes with a dash in the name. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function show(element, visible) {
  element.hidden = !visible;
}

export function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // storage is switched off: forgotten with the page
  }
}

/** Says how long ago something was, in the coarsest words that still tell. */
export function age(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 60) return `${Math.round(past)} s`;
  if (past < 3600) return `${Math.round(past / 60)} min`;
  if (past < 172800) return `${Math.round(past / 3600)} h`;
  return `${Math.round(past / 86400)} days`;
}

export function count(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** Shows a text beside an element while one points at it, or moves to it by keyboard. */
export function tip(element, text) {
  const box = $("tip");
  const open = () => {
    box.textContent = text();
    box.hidden = false;
    const at = element.getBoundingClientRect();
    const own = box.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const below = at.bottom + 8 + own.height < innerHeight;
    box.style.left = `${left}px`;
    box.style.top = `${below ? at.bottom + 8 : at.top - own.height - 8}px`;
  };
  const close = () => (box.hidden = true);
  element.addEventListener("mouseenter", open);
  element.addEventListener("focus", open);
  element.addEventListener("click", open);
  element.addEventListener("mouseleave", close);
  element.addEventListener("blur", close);
}
