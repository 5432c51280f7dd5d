// A chart of lines: raw values faint, the smoothed ones over them, and a crosshair for all charts.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#4f7df0", "#f0883e", "#2fae7b", "#e0568f", "#a371e0", "#c9a227", "#21a5b8", "#8c6d4f", "#7d8794", "#d4574e"];
const MARGIN = { left: 46, right: 12, top: 8, bottom: 22 };
const HEIGHT = 190;

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

class Chart {
  // lines: [{label, run, colour, exact, step, epoch, epochs, value}]
  constructor(title, lines, page) {
    Object.assign(this, { title, lines, page });
    this.legend = el("div", { class: "legend" });
    this.canvas = svg("svg", { height: this.height, role: "img", "aria-label": `curve of ${title}` });
    this.tip = el("div", { class: "tip", hidden: true });
    this.node = el("div", { class: "card chart", "data-chart": title }, el("h3", {}, title), this.legend, this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => page.hover(null, null));
  }

  get height() { return HEIGHT; }

  visible() {
    return this.lines.filter((line) => !this.page.hidden.has(line.run));
  }

  draw() {
    const { smoothing, axis, log } = this.page.settings;
    this.width = this.canvas.clientWidth || 360;
    this.canvas.replaceChildren();
    this.shown = this.visible().map((line) => {
      const weight = line.exact ? 0 : weightFor(smoothing, line.value.length, this.page.longest);
      return { ...line, weight, x: axis === "epoch" ? line.epochs : line.step, y: smoothed(line.value, weight) };
    });
    this.drawLegend();
    const xs = this.shown.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    let ys = this.shown.flatMap((line) => line.value).filter((v) => v !== null);
    this.logarithmic = log && ys.some((v) => v > 0);
    if (this.logarithmic) ys = ys.filter((v) => v > 0);
    if (!ys.length) {
      this.scaleX = null;
      this.canvas.append(svg("text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle" }, "no finite value"));
      return;
    }
    this.setScales(Math.min(...xs), Math.max(...xs), ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b)));
    this.drawAxes();
    for (const line of this.shown) this.drawLine(line);
    this.front = svg("g");
    this.canvas.append(this.front);
  }

  setScales(x0, x1, y0, y1) {
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    const right = this.width - MARGIN.right, bottom = this.height - MARGIN.bottom;
    this.scaleX = (x) => MARGIN.left + ((x - x0) / (x1 - x0)) * (right - MARGIN.left);
    if (this.logarithmic) {
      if (y0 === y1) { y0 /= 2; y1 *= 2; }
      const low = Math.log(y0), high = Math.log(y1);
      this.scaleY = (y) => (y > 0 ? bottom - ((Math.log(y) - low) / (high - low)) * (bottom - MARGIN.top) : null);
    } else {
      const space = (y1 - y0) * 0.05 || Math.abs(y1) * 0.1 || 1;
      y0 = y0 >= 0 && y0 - space < 0 ? 0 : y0 - space; // no negative axis for values that are never negative
      y1 += space;
      this.scaleY = (y) => bottom - ((y - y0) / (y1 - y0)) * (bottom - MARGIN.top);
    }
    this.range = { x0, x1, y0, y1 };
  }

  drawAxes() {
    const { x0, x1, y0, y1 } = this.range;
    const bottom = this.height - MARGIN.bottom;
    for (const y of this.logarithmic ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
      const at = this.scaleY(y);
      this.canvas.append(
        svg("line", { class: "gridline", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: at, y2: at }),
        svg("text", { x: MARGIN.left - 7, y: at + 4, "text-anchor": "end" }, formatTick(y)),
      );
    }
    this.canvas.append(svg("line", { class: "axis", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: bottom, y2: bottom }));
    for (const x of ticks(x0, x1, this.width / 72).filter((x) => Number.isInteger(x))) {
      this.canvas.append(svg("text", { x: this.scaleX(x), y: this.height - 5, "text-anchor": "middle" }, formatTick(x)));
    }
  }

  drawLine(line) {
    const path = (values) => {
      let text = "", pen = "M";
      values.forEach((value, i) => {
        const y = value === null ? null : this.scaleY(value);
        if (y === null) { pen = "M"; return; }
        text += `${pen}${this.scaleX(line.x[i]).toFixed(1)},${y.toFixed(1)}`;
        pen = "L";
      });
      return text;
    };
    if (line.weight > 0) this.canvas.append(svg("path", { class: "raw", d: path(line.value), stroke: line.colour }));
    this.canvas.append(svg("path", { class: "curve", d: path(line.y), stroke: line.colour }));
    if (line.x.length === 1 && line.y[0] !== null) {
      this.canvas.append(svg("circle", { cx: this.scaleX(line.x[0]), cy: this.scaleY(line.y[0]), r: 3.5, fill: line.colour }));
    }
  }

  drawLegend() {
    this.legend.replaceChildren(...this.shown.map((line) => {
      const last = [...line.value].reverse().find((value) => value !== null);
      const swatch = el("i", { class: "swatch", style: `border-color:${line.colour}` });
      return el("span", {}, swatch, this.shown.length === 1 && line.label === this.title ? "last" : line.label, el("b", {}, formatNumber(last)));
    }));
  }

  // All charts get the position of the pointer.
  point(event) {
    if (!this.scaleX) return;
    const box = this.canvas.getBoundingClientRect();
    const { x0, x1 } = this.range;
    const share = (event.clientX - box.left - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
    this.page.hover(x0 + Math.min(1, Math.max(0, share)) * (x1 - x0), this);
  }

  showHover(x, source) {
    this.tip.hidden = true;
    if (!this.scaleX || !this.front) return;
    this.front.replaceChildren();
    if (x === null || x < this.range.x0 || x > this.range.x1) return;
    const found = this.shown.map((line) => ({ line, i: nearest(line.x, x) })).filter(({ line, i }) => line.y[i] !== null);
    if (!found.length) return;
    const closest = found.reduce((a, b) => (Math.abs(a.line.x[a.i] - x) <= Math.abs(b.line.x[b.i] - x) ? a : b));
    const at = this.scaleX(closest.line.x[closest.i]);
    this.front.append(svg("line", { class: "cross", x1: at, x2: at, y1: MARGIN.top, y2: this.height - MARGIN.bottom }));
    for (const { line, i } of found) {
      const y = this.scaleY(line.y[i]);
      if (y !== null) this.front.append(svg("circle", { class: "mark", cx: this.scaleX(line.x[i]), cy: y, r: 4.5, fill: line.colour }));
    }
    if (source !== this) return;
    const { line, i } = closest;
    this.tip.replaceChildren(
      el("div", { class: "head" }, `step ${line.step[i].toLocaleString("en")} · epoch ${line.epoch[i]}`),
      ...found.map((item) => el("div", { class: "item" },
        el("i", { class: "dot", style: `background:${item.line.colour}` }), item.line.label,
        el("b", {}, formatNumber(item.line.y[item.i])))),
    );
    placeTip(this.tip, this.canvas, at, this.width);
  }
}

// Beside the pointer, on the side with enough space.
function placeTip(tip, canvas, at, width) {
  tip.hidden = false;
  tip.style.top = `${canvas.getBoundingClientRect().top - tip.parentNode.getBoundingClientRect().top + 8}px`;
  const left = canvas.getBoundingClientRect().left - tip.parentNode.getBoundingClientRect().left + at;
  tip.style.left = at < width / 2 ? `${left + 14}px` : `${Math.max(0, left - 14 - tip.offsetWidth)}px`;
}

function nearest(sorted, x) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) low = middle; else high = middle;
  }
  return x - sorted[low] <= sorted[high] - x ? low : high;
}
