// The time of each epoch by its parts, as stacked bars.

const PARTS = [["step", "in the step"], ["data", "waiting for data"], ["exchange", "with other ranks"], ["callbacks", "in callbacks"], ["other", "between steps"]];
const MOST_BARS = 100; // if there are more epochs, several share a bar

// A run of one rank has no exchange.
const partsOf = (run) => PARTS.filter(([name]) => run.times.some((x) => name in x));

function binned(times, parts) {
  const size = Math.ceil(times.length / MOST_BARS);
  const bins = [];
  for (let i = 0; i < times.length; i += size) {
    const part = times.slice(i, i + size);
    const bin = { first: part[0].epoch_num, last: part[part.length - 1].epoch_num, verdict: part[part.length - 1].verdict };
    for (const [name] of [...parts, ["epoch"]]) bin[name] = part.reduce((sum, x) => sum + (x[name] || 0), 0) / part.length;
    bins.push(bin);
  }
  return bins;
}

class TimeBars {
  constructor(run, page) {
    const parts = partsOf(run);
    Object.assign(this, { run, page, parts, bins: binned(run.times, parts) });
    this.canvas = svg("svg", { height: HEIGHT, role: "img", "aria-label": "time of each epoch" });
    this.tip = el("div", { class: "tip", hidden: true });
    const total = (name) => run.times.reduce((sum, x) => sum + (x[name] || 0), 0);
    const all = parts.reduce((sum, [name]) => sum + total(name), 0) || 1;
    const legend = parts.map(([name, words]) => el("span", {},
      el("i", { class: "square", style: `background:var(--${name})` }), words,
      el("b", {}, `${Math.round((100 * total(name)) / all)}%`)));
    const title = page.several ? `${run.name}: seconds per epoch` : "Seconds per epoch";
    this.node = el("div", { class: "card chart", "data-bars": run.name }, el("h3", {}, title), el("div", { class: "legend" }, ...legend), this.canvas, this.tip);
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  draw() {
    const width = this.canvas.clientWidth || 360;
    const bottom = HEIGHT - MARGIN.bottom;
    const highest = Math.max(...this.bins.map((bin) => Math.max(bin.epoch, this.parts.reduce((sum, [name]) => sum + bin[name], 0)))) || 1;
    const scale = (seconds) => (seconds / highest) * (bottom - MARGIN.top);
    const slot = (width - MARGIN.left - MARGIN.right) / this.bins.length;
    const bar = Math.min(46, Math.max(1, slot * (slot > 6 ? 0.76 : 0.95)));
    this.canvas.replaceChildren();
    for (const y of ticks(0, highest, 4)) {
      this.canvas.append(
        svg("line", { class: "gridline", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom - scale(y), y2: bottom - scale(y) }),
        svg("text", { x: MARGIN.left - 7, y: bottom - scale(y) + 4, "text-anchor": "end" }, formatTick(y)),
      );
    }
    const every = Math.ceil(this.bins.length / (width / 46));
    this.bins.forEach((bin, i) => {
      const x = MARGIN.left + slot * i + (slot - bar) / 2;
      let y = bottom;
      for (const [name] of this.parts) {
        const height = scale(bin[name]);
        if (height > 0.2) this.canvas.append(svg("rect", { x, y: y - height, width: bar, height, style: `fill:var(--${name})` }));
        y -= height;
      }
      const area = svg("rect", { x: MARGIN.left + slot * i, y: MARGIN.top, width: slot, height: bottom - MARGIN.top, fill: "transparent" });
      for (const kind of ["pointerenter", "pointerdown"]) area.addEventListener(kind, () => this.show(bin, x + bar / 2, width));
      this.canvas.append(area);
      if (i % every === 0) this.canvas.append(svg("text", { x: x + bar / 2, y: HEIGHT - 5, "text-anchor": "middle" }, String(bin.first)));
    });
  }

  show(bin, at, width) {
    const name = bin.first === bin.last ? `epoch ${bin.first}` : `epochs ${bin.first} to ${bin.last}, on average`;
    this.tip.replaceChildren(
      el("div", { class: "head" }, `${name}: ${formatSeconds(bin.epoch)}`),
      ...this.parts.map(([part, words]) => el("div", { class: "item" },
        el("i", { class: "dot", style: `background:var(--${part})` }), words, el("b", {}, formatSeconds(bin[part])))),
    );
    placeTip(this.tip, this.canvas, at, width);
  }
}
