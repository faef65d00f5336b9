"use strict";
document.getElementById("wrong").hidden = !location.search.includes("wrong");
