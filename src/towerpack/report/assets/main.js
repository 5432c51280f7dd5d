// The page: it is built from the data, and built again when the data of a run has changed.

const POLL = 3000; // milliseconds between requests while a run is in progress

class Page {
  constructor(data) {
    this.root = document.getElementById("page");
    this.hidden = new Set();
    this.charts = [];
    this.take(data);
    this.settings = { smoothing: this.longest > 80 ? 0.8 : 0, axis: "step", log: false, filter: "" };
    this.build();
    window.addEventListener("resize", () => this.redraw());
  }

  take(data) {
    this.data = data;
    this.longest = Math.max(1, ...data.runs.flatMap((run) => Object.values(run.curves).map((curve) => curve.step.length)));
    const known = new Map();
    for (const run of data.runs) { // two runs of the same name are distinguished by their directories
      known.set(run.name, (known.get(run.name) || 0) + 1);
    }
    for (const run of data.runs) if (known.get(run.name) > 1) run.name = run.directory;
  }

  get several() { return this.data.runs.length > 1; }

  colour(run) { return COLOURS[this.data.runs.indexOf(run) % COLOURS.length]; }

  build() {
    const runs = this.data.runs;
    this.charts = [];
    const parts = [
      this.header(),
      this.several ? comparison(this) : tiles(runs[0]),
      ...runs.flatMap((run) => verdictCard(run, this.several)),
      this.toolbar(),
      this.curves(),
      this.section("Time and data flow", "load: the share of the time that a process spends in a stage", runs.flatMap((run) => [run.times.length ? this.keep(new TimeBars(run, this)) : null, this.stack(ranksCard(run, this.several), stagesCard(run, this.several), callbacksCard(run, this.several))]), "pair"),
      this.section("Classes", "how often each occurs", runs.flatMap((run) => classesCards(run, this.several)), "pair"),
      this.section("Checkpoints", "", runs.map((run) => checkpointsCard(run, this.several, this.data.made))),
      this.section("Pictures", "", runs.flatMap((run) => run.images.map((image) => pictureCard(run, image, this.several))), "pictures"),
      this.section("About", "", runs.flatMap((run) => this.about(run))),
      el("footer", {}, `towerpack ${this.data.towerpack} · ${new Date(this.data.made * 1000).toLocaleString("en-GB")}`),
    ];
    this.root.replaceChildren(...parts.filter(Boolean));
    this.redraw();
  }

  keep(chart) { this.charts.push(chart); return chart.node; }

  stack(...nodes) {
    const there = nodes.filter(Boolean);
    return there.length ? el("div", { class: "stack" }, ...there) : null;
  }

  section(title, words, nodes, kind = "") {
    const there = nodes.filter(Boolean);
    if (!there.length) return null;
    return el("section", { "data-section": title }, el("h2", {}, title, words ? el("small", {}, words) : null), el("div", { class: kind }, ...there));
  }

  header() {
    const run = this.data.runs[0];
    const title = this.several ? `${this.data.runs.length} runs` : run.name;
    const pill = this.several ? null : el("span", { class: `pill ${run.state}` }, run.state);
    const command = this.several ? null : run.facts.command;
    return el("header", { class: "row spread" },
      el("div", {}, el("div", { class: "row" }, el("h1", {}, title), pill), command ? el("div", { class: "soft", style: "overflow-wrap:anywhere" }, command) : null),
      el("button", { "aria-label": "light or dark", onclick: () => toggleTheme() }, "◐"));
  }

  toolbar() {
    const change = (name, value) => { this.settings[name] = value; this.redraw(); };
    const amount = el("span", { style: "min-width:2.2em" }, String(this.settings.smoothing));
    const parts = [
      el("label", {}, "smoothing", el("input", { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, value: this.settings.smoothing,
        oninput: (event) => { amount.textContent = event.target.value; change("smoothing", Number(event.target.value)); } }), amount),
      el("label", {}, "over", this.choice()),
      el("label", {}, el("input", { type: "checkbox", id: "log", checked: this.settings.log, onchange: (event) => change("log", event.target.checked) }), "log scale"),
      el("input", { type: "search", placeholder: "filter curves", "aria-label": "filter curves", value: this.settings.filter,
        oninput: (event) => { this.settings.filter = event.target.value; this.filter(); } }),
    ];
    if (this.several) for (const run of this.data.runs) parts.push(this.chip(run));
    return el("div", { class: "toolbar" }, ...parts);
  }

  choice() {
    const select = el("select", { id: "axis", onchange: (event) => { this.settings.axis = event.target.value; this.redraw(); } },
      ...["step", "epoch"].map((name) => el("option", { value: name }, name === "step" ? "steps" : "epochs")));
    select.value = this.settings.axis;
    return select;
  }

  chip(run) {
    const button = el("button", { class: "chip", "aria-pressed": String(!this.hidden.has(run.directory)), onclick: () => {
      if (!this.hidden.delete(run.directory)) this.hidden.add(run.directory);
      button.setAttribute("aria-pressed", String(!this.hidden.has(run.directory)));
      this.redraw();
    } }, el("i", { class: "dot", style: `background:${this.colour(run)}` }), run.name);
    return button;
  }

  curves() {
    const sections = new Map(); // section -> chart -> lines
    for (const run of this.data.runs) {
      for (const [name, curve] of Object.entries(run.curves)) {
        const section = sectionOf(name);
        if (section === null) continue;
        const charts = sections.get(section) || sections.set(section, new Map()).get(section);
        const key = this.several ? name : chartKey(name);
        (charts.get(key) || charts.set(key, []).get(key)).push({ name, run, curve });
      }
    }
    const found = [...sections.keys()].sort(compareSections);
    // The most important come first, the others by name.
    const headlines = this.data.runs.flatMap((run) => run.headline.map((x) => x.name));
    const place = (lines) => Math.min(...lines.map(({ name }) => (headlines.includes(name) ? headlines.indexOf(name) : headlines.length)));
    const nodes = (title) => [...sections.get(title)].sort(([a, x], [b, y]) => place(x) - place(y) || a.localeCompare(b)).map(([key, lines]) => this.keep(this.chart(key, lines)));
    // A heading for one or two charts would leave most of the width empty, so these are grouped.
    const large = found.filter((title) => title !== "" && sections.get(title).size > 2 && !LAST_SECTIONS.includes(title));
    const together = this.section("Curves", "", found.filter((title) => !large.includes(title)).flatMap(nodes), "grid");
    return el("div", {}, together, ...large.map((title) => this.section(title, "", nodes(title), "grid")));
  }

  chart(key, lines) {
    const names = [...new Set(lines.map((line) => line.name))];
    const made = lines.map(({ name, run, curve }) => ({
      ...curve,
      run: run.directory,
      label: this.several ? run.name : name,
      colour: this.several ? this.colour(run) : COLOURS[names.indexOf(name) % COLOURS.length],
      epochs: epochAxis(curve, run.facts.steps_per_epoch),
      exact: RATE.test(name), // a schedule is not smoothed
    }));
    return new Chart(names.length === 1 ? names[0] : key, made, this);
  }

  about(run) {
    const name = this.several ? `${run.name}: ` : "";
    const { facts: known } = run;
    const { settings, ...configuration } = known.configuration || {}; // settings have their own card
    const sessions = Object.fromEntries((known.sessions || []).map((x, i) => [`session ${i + 1}`, `${x.state}, from epoch ${x.from_epoch}, step ${x.from_step}, ${new Date(x.started * 1000).toLocaleString("en-GB")}`]));
    return [
      facts(`${name}hyperparameters`, known.hyperparameters, !this.several),
      facts(`${name}settings`, run.settings, !this.several),
      facts(`${name}configuration`, configuration, !this.several),
      facts(`${name}environment`, { ...known.environment, ...(known.devices && known.devices.length ? { devices: known.devices.join("\n") } : {}) }),
      facts(`${name}sessions`, { directory: run.directory, command: known.command || "–", ...sessions }),
    ];
  }

  hover(x, source) {
    for (const chart of this.charts) if (chart.showHover) chart.showHover(x, source);
  }

  filter() {
    const wanted = this.settings.filter.toLowerCase();
    for (const chart of this.charts) {
      if (chart instanceof Chart) chart.node.hidden = wanted !== "" && ![chart.title, ...chart.lines.map((line) => line.label)].some((text) => text.toLowerCase().includes(wanted));
    }
  }

  redraw() {
    for (const chart of this.charts) chart.draw();
    this.filter();
  }

  async follow() {
    for (;;) {
      await new Promise((done) => setTimeout(done, POLL));
      try {
        const answer = await fetch(`data?have=${this.data.version}`);
        if (answer.status !== 200) continue; // 204: nothing has changed
        const data = await answer.json();
        const scroll = window.scrollY;
        this.take(data);
        this.build();
        window.scrollTo(0, scroll);
      } catch (error) {
        console.log(`the server does not answer: ${error}`);
      }
    }
  }
}

const received = JSON.parse(document.getElementById("data").textContent);
const page = new Page(received);
if (received.live) page.follow();
document.documentElement.dataset.ready = "yes"; // for tests that wait until the page is drawn
