// Lines over the last five minutes, drawn as SVG: colours come from the style sheet, so both themes have them.

import { span } from "./data.js";
import { make, setAttribute, setText } from "./table.js";

const SPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [300, 100];
// Seconds that are shown: few at first, so that a page just opened shows something.
const [LEAST, MOST] = [60, 300];

function draw(tag, attributes) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** The next number that is pleasant as the end of an axis, in steps of `base`. */
function round(max, base) {
  if (!(max > 0)) return 1;
  let scale = 1;
  while (max / scale >= base) scale *= base;
  while (base === 10 && max / scale < 1) scale /= base;
  const steps = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return scale * (steps.find((step) => step * scale >= max) ?? base);
}

/** One chart: `series` are { key, name, read(sample) -> number or null }. */
export class Chart {
  constructor(parent, { title, series, format, base = 10, floor = 0 }) {
    Object.assign(this, { title, series, format, base, floor });
    this.samples = [];
    [this.end, this.seconds] = [0, LEAST];
    this.cursor = null;
    this.values = series.map(() => make("b"));
    const legend = make("ul", { class: "legend" },
      ...series.map((one, i) => make("li", {}, make("i", { class: `dot s${i}`, "aria-hidden": "true" }), `${one.name} `, this.values[i])));
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const y of [0, 0.5, 1]) this.svg.append(draw("line", { class: "grid", x1: 0, x2: WIDTH, y1: y * HEIGHT, y2: y * HEIGHT }));
    this.area = draw("path", { class: "area s0" });
    this.lines = series.map((one, i) => draw("path", { class: `line s${i}` }));
    this.rule = draw("line", { class: "rule", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg.append(this.area, ...this.lines.toReversed(), this.rule);
    this.top = make("span", { class: "axis top" });
    this.then = make("span", { class: "axis then" });
    this.when = make("span", { class: "axis now" }, "now");
    this.plot = make("div", { class: "plot", tabindex: "0", role: "img" }, this.svg, this.top, this.then, this.when);
    this.said = make("span", { class: "unseen", "aria-live": "polite" });
    parent.append(make("figure", {}, make("figcaption", {}, make("h3", {}, title), legend), this.plot, this.said));
    this.#listen();
  }

  #listen() {
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.#point(this.#nearest(this.end - (1 - (event.clientX - box.left) / box.width) * this.seconds * 1000));
    });
    for (const over of ["pointerleave", "blur"]) this.plot.addEventListener(over, () => this.#point(null));
    this.plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!step || this.samples.length === 0) return;
      event.preventDefault();
      const last = this.samples.length - 1;
      const index = this.cursor === null ? last + 1 : this.samples.findIndex((sample) => sample.at >= this.cursor);
      const sample = this.samples[Math.max(0, Math.min(last, index + step))];
      this.#point(sample);
      setText(this.said, `${this.#ago(sample)}: ${this.#words(sample)}`);
    });
  }

  #nearest(time) {
    let best = null;
    for (const sample of this.samples) if (!best || Math.abs(sample.at - time) < Math.abs(best.at - time)) best = sample;
    return best;
  }

  #ago(sample) {
    return this.end - sample.at < 500 ? "now" : `${span(Math.round((this.end - sample.at) / 1000) * 1000)} ago`;
  }

  #words(sample) {
    return this.series.map((one) => `${one.name} ${this.format(one.read(sample))}`).join(", ");
  }

  #point(sample) {
    this.cursor = sample?.at ?? null;
    this.#values();
  }

  #values() {
    const at = this.cursor === null ? null : this.samples.find((sample) => sample.at >= this.cursor);
    const sample = at ?? this.samples.at(-1);
    this.rule.setAttribute("visibility", at ? "visible" : "hidden");
    if (at) {
      const x = this.#x(at);
      setAttribute(this.rule, "x1", x);
      setAttribute(this.rule, "x2", x);
    }
    setText(this.when, at ? this.#ago(at) : "now");
    this.series.forEach((one, i) => setText(this.values[i], sample ? this.format(one.read(sample)) : "–"));
  }

  #x(sample) {
    return (WIDTH * (1 - (this.end - sample.at) / 1000 / this.seconds)).toFixed(1);
  }

  /** Draws these samples, of which the last is now. */
  update(samples) {
    this.samples = samples;
    this.end = samples.at(-1)?.at ?? 0;
    this.seconds = Math.max(LEAST, Math.min(MOST, Math.ceil((this.end - (samples[0]?.at ?? 0)) / 60_000) * 60));
    setText(this.then, `${span(this.seconds * 1000)} ago`);
    const all = this.series.flatMap((one) => samples.map(one.read)).filter((n) => typeof n === "number");
    const max = round(Math.max(this.floor, ...all), this.base);
    setText(this.top, this.format(max));
    this.series.forEach((one, i) => {
      let [path, open, first, last] = ["", false, null, null];
      for (const sample of samples) {
        const n = one.read(sample);
        if (typeof n !== "number") {
          open = false;
          continue;
        }
        const x = this.#x(sample);
        path += `${open && !sample.anew ? "L" : "M"}${x} ${(HEIGHT * (1 - n / max)).toFixed(1)}`;
        open = true;
        first ??= x;
        last = x;
      }
      setAttribute(this.lines[i], "d", path);
      if (i === 0) setAttribute(this.area, "d", path && !path.slice(1).includes("M") ? `${path}L${last} ${HEIGHT}L${first} ${HEIGHT}Z` : "");
    });
    const sample = samples.at(-1);
    setAttribute(this.plot, "aria-label", sample ? `${this.title}: now ${this.#words(sample)}; before that up to ${this.format(Math.max(0, ...all))}` : this.title);
    this.#values();
  }
}
