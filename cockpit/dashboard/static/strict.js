// The page's security policy forbids style attributes, which plotly.js sets on what it draws. The same
// text through the style object of an element is allowed: it can only have come from a script.
"use strict";
(() => {
  const original = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function setAttribute(name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else original.call(this, name, value);
  };
})();
