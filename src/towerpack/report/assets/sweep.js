// The page of a sweep: its best trial, parallel coordinates, the curves and a table of all trials.

const GOOD = "#2f6bea", BAD = "#f0883e";
const FAR = 60; // pixels from the pointer to a curve that is still meant

class TrialCurves extends Chart {
  get height() { return 260; }

  drawLegend() {} // the table names the trials

  drawLine(line) {
    const before = this.canvas.childNodes.length;
    super.drawLine(line);
    for (const node of [...this.canvas.childNodes].slice(before)) {
      node.dataset.trial = line.run;
      node.classList.add(line.state);
    }
  }

  // Highlights the curve that is nearest to the pointer.
  point(event) {
    if (!this.scaleX) return;
    const box = this.canvas.getBoundingClientRect();
    const found = this.shown.flatMap((line) => line.x.map((x, i) => ({ line, i, x: this.scaleX(x), y: line.value[i] === null ? null : this.scaleY(line.value[i]) })))
      .filter(({ y }) => y !== null)
      .map((point) => ({ ...point, far: Math.hypot(point.x - (event.clientX - box.left), point.y - (event.clientY - box.top)) }));
    const nearest = found.reduce((a, b) => (a.far <= b.far ? a : b), { far: FAR });
    this.page.highlight(nearest.line ? nearest.line.run : null);
    this.tip.hidden = !nearest.line;
    if (!nearest.line) return;
    this.tip.replaceChildren(
      el("div", { class: "head" }, `${nearest.line.label} · epoch ${nearest.line.epoch[nearest.i]}`),
      el("div", { class: "item" }, el("i", { class: "dot", style: `background:${nearest.line.colour}` }), this.title, el("b", {}, formatNumber(nearest.line.value[nearest.i]))),
      ...Object.entries(nearest.line.parameters).map(([key, value]) => el("div", { class: "item" }, key, el("b", {}, formatValue(value)))),
    );
    placeTip(this.tip, this.canvas, nearest.x, this.width);
  }
}

const formatValue = (value) => (typeof value === "number" ? formatNumber(value) : value);

class SweepPage {
  constructor({ sweep, made, towerpack }) {
    Object.assign(this, { sweep, made, towerpack, chosen: null, pointed: null, hidden: new Set(), longest: 1 });
    this.settings = { smoothing: 0, axis: "epoch", log: false };
    this.rank();
    const known = this.ranked.length > 0;
    this.charts = known ? [new ParallelAxes(sweep, this), this.curves()] : [];
    const section = (title, words, node) => el("section", { "data-section": title }, el("h2", {}, title, el("small", {}, words)), node);
    document.getElementById("page").replaceChildren(...[
      this.header(),
      this.tiles(),
      this.best && el("div", { class: "card verdict" }, el("b", {}, "Best"), el("code", {}, this.best.command)),
      known && section("Parameters", "drag along an axis to select trials, click it to select all", this.charts[0].node),
      known && section("Curves", `${sweep.metric} after each epoch; the dashed trials were pruned`, el("div", {}, this.logBox(), this.charts[1].node)),
      section("Trials", "the best first", this.table()),
      facts("fixed settings", Object.fromEntries(sweep.fixed)),
      el("footer", {}, `towerpack ${towerpack} · ${new Date(made * 1000).toLocaleString("en-GB")}`),
    ].filter(Boolean));
    window.addEventListener("resize", () => this.redraw());
    this.redraw();
  }

  // Sorts the trials, gives each its rank and the colour of that, from the best to the worst.
  rank() {
    const sign = this.sweep.maximize ? -1 : 1;
    this.ranked = this.sweep.trials.filter((trial) => trial.value !== null && trial.state !== "running").sort((a, b) => sign * (a.value - b.value));
    this.ranked.forEach((trial, rank) => {
      const share = this.ranked.length > 1 ? rank / (this.ranked.length - 1) : 0;
      Object.assign(trial, { rank, colour: `color-mix(in oklab, ${GOOD} ${Math.round(100 * (1 - share))}%, ${BAD})` });
    });
    this.best = this.ranked.find((trial) => trial.state === "complete");
  }

  header() {
    const { name, file } = this.sweep;
    return el("header", { class: "row spread" },
      el("div", {}, el("h1", {}, name), el("div", { class: "soft", style: "overflow-wrap:anywhere" }, file)),
      el("button", { "aria-label": "light or dark", onclick: () => toggleTheme() }, "◐"));
  }

  tiles() {
    const { trials, metric, maximize } = this.sweep;
    const count = (state) => trials.filter((trial) => trial.state === state).length;
    const states = ["complete", "pruned", "failed", "running"].filter(count).map((state) => `${count(state)} ${state}`);
    const seconds = trials.reduce((sum, trial) => sum + (trial.seconds || 0), 0);
    const best = this.best && tile(`${maximize ? "largest" : "smallest"} ${metric}`, formatNumber(this.best.value), `trial ${this.best.number}`);
    return el("div", { class: "tiles" }, ...[best, tile("trials", String(trials.length), states.join(" · ")), tile("time of training", formatSeconds(Math.round(seconds)), "of all trials together")].filter(Boolean));
  }

  curves() {
    const lines = this.ranked.map((trial) => ({
      label: `trial ${trial.number}`, run: trial.number, state: trial.state, colour: trial.colour, parameters: trial.parameters,
      exact: true, step: trial.epoch, epoch: trial.epoch, epochs: trial.epoch, value: trial.curve,
    }));
    const chart = new TrialCurves(this.sweep.metric, lines.reverse(), this); // the best one over the others
    chart.canvas.setAttribute("height", chart.height);
    return chart;
  }

  logBox() {
    const change = (event) => { this.settings.log = event.target.checked; this.redraw(); };
    return el("label", { class: "soft row", style: "margin-bottom:8px" }, el("input", { type: "checkbox", id: "log", onchange: change }), "log scale");
  }

  table() {
    const { parameters, metric, trials } = this.sweep;
    const others = trials.filter((trial) => !this.ranked.includes(trial));
    const shown = [...this.ranked, ...others];
    const rows = shown.map((trial) => [
      el("span", { class: "nowrap" }, el("i", { class: "dot", style: `background:${trial.colour || "var(--line)"}` }), " ", el("a", { href: trial.link }, `trial ${trial.number}`), trial === this.best ? el("span", { class: "tag best" }, "best") : null),
      el("span", { class: `pill ${trial.state}` }, trial.state),
      formatNumber(trial.value),
      ...parameters.map(({ key }) => formatValue(trial.parameters[key])),
      String(trial.epoch.length ? trial.epoch[trial.epoch.length - 1] : "–"),
      formatSeconds(trial.seconds),
      ...(trials.some((x) => x.error) ? [el("span", { class: "error" }, trial.error)] : []),
    ]);
    const heads = ["trial", "state", `#${metric}`, ...parameters.map(({ key }) => `#${key}`), "#epochs", "#time", ...(trials.some((x) => x.error) ? ["error"] : [])];
    const made = table(heads, rows);
    [...made.querySelectorAll("tbody tr")].forEach((row, i) => {
      row.dataset.trial = shown[i].number;
      row.addEventListener("pointerenter", () => this.highlight(shown[i].number));
      row.addEventListener("pointerleave", () => this.highlight(null));
    });
    return el("div", { class: "card trials" }, made);
  }

  // A chart calls this with null when the pointer leaves it.
  hover() {
    this.charts[1].tip.hidden = true;
    this.highlight(null);
  }

  highlight(number) { this.pointed = number; this.mark(); }

  select(numbers) { this.chosen = numbers; this.mark(); }

  mark() {
    for (const node of document.querySelectorAll("[data-trial]")) {
      const number = Number(node.dataset.trial);
      const out = this.chosen !== null && !this.chosen.has(number);
      node.classList.toggle("dim", out || (this.pointed !== null && this.pointed !== number && node.tagName !== "TR"));
      node.classList.toggle("bright", this.pointed === number && !out);
    }
  }

  redraw() {
    for (const chart of this.charts) chart.draw();
    this.mark();
  }
}

new SweepPage(JSON.parse(document.getElementById("data").textContent));
document.documentElement.dataset.ready = "yes"; // for tests that wait until the page is drawn
