// Plots of what a process uses.

import { element, setText, setAttribute } from "./dom.js";

const svg = "http://www.w3.org/2000/svg";
const width = 120, height = 28;
const span = 5 * 60 * 1000; // milliseconds

export class Plot {
  #path;
  #value;
  #picture;
  #name;

  constructor(name) {
    this.#name = name;
    this.#path = document.createElementNS(svg, "path");
    this.#picture = document.createElementNS(svg, "svg");
    this.#picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#picture.setAttribute("preserveAspectRatio", "none");
    this.#picture.setAttribute("role", "img");
    this.#picture.append(this.#path);
    this.#value = element("span", { class: "value" });
    this.element = element("figure", { class: "plot" }, element("figcaption", {}, name + " ", this.#value));
    this.element.append(this.#picture);
  }

  // show draws points {at, value}, of performance.now, and the text of the last one.
  show(points, text) {
    setText(this.#value, text);
    setAttribute(this.#picture, "aria-label", `${this.#name} over the last five minutes, now ${text}`);
    const known = points.filter((point) => point.value != null);
    if (known.length < 2) known.length = 0; // a dot says nothing
    const now = performance.now();
    const most = Math.max(1e-9, ...known.map((point) => point.value));
    const line = known.map((point, i) => {
      const x = width * (1 - Math.min(1, (now - point.at) / span));
      const y = height - 1 - (height - 3) * (point.value / most);
      return (i === 0 ? "M" : "L") + x.toFixed(1) + " " + y.toFixed(1);
    });
    setAttribute(this.#path, "d", line.join(""));
  }
}
