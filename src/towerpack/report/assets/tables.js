// Everything but curves: tiles, stages, checkpoints, pictures, configuration, the theme.

function bestOf(run, name, better) {
  const curve = run.curves[name];
  let found = null;
  curve.value.forEach((value, i) => {
    if (value === null) return;
    if (found === null || (better === "min" ? value < found.value : value > found.value)) found = { value, step: curve.step[i], epoch: curve.epoch[i] };
  });
  return found;
}

function ago(seconds, now) {
  return now - seconds < 5 ? "just now" : `${formatSeconds(Math.round(now - seconds))} ago`;
}

function duration(run) {
  const sessions = run.facts.sessions || [];
  if (!sessions.length) return null;
  return sessions.reduce((sum, x, i) => {
    // A session that was killed ended when the record was last written.
    const end = x.ended || (i === sessions.length - 1 ? run.facts.updated : x.started);
    return sum + Math.max(0, end - x.started);
  }, 0);
}

function tile(label, value, note, extra = null) {
  return el("div", { class: "card tile" }, el("div", { class: "label", title: label }, label), el("div", { class: "value" }, ...[].concat(value)), note ? el("div", { class: "note" }, note) : null, extra);
}

function tiles(run) {
  const facts = run.facts;
  const made = run.headline.map(({ name, better }) => {
    const best = bestOf(run, name, better);
    return best && tile(`best ${name}`, formatNumber(best.value), `epoch ${best.epoch}, step ${best.step.toLocaleString("en")}`);
  }).filter(Boolean);
  if (facts.epoch !== undefined) {
    const known = facts.max_epoch > 0 && facts.max_epoch < 10000;
    const bar = known ? el("div", { class: "progress" }, el("i", { style: `width:${Math.min(100, (100 * facts.epoch) / facts.max_epoch)}%` })) : null;
    made.push(tile("epoch", [String(facts.epoch), known ? el("small", {}, ` of ${facts.max_epoch}`) : ""], `step ${facts.step.toLocaleString("en")}`, bar));
    if (facts.steps_per_second) made.push(tile("speed", [formatNumber(facts.steps_per_second), el("small", {}, " steps/s")], run.devices ? `in the last epoch, on ${run.devices}` : "in the last epoch"));
    const sessions = facts.sessions.length;
    made.push(tile("time", formatSeconds(Math.round(duration(run))), sessions > 1 ? `in ${sessions} sessions` : `since ${new Date(facts.started * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}`));
  }
  return el("div", { class: "tiles" }, ...made);
}

function verdictCard(run, named) {
  const cards = [];
  if (run.overall && run.overall.verdict) {
    const { parts } = run.overall;
    const worst = ["data", "callbacks", "exchange"].filter((part) => parts[part] > 0.15 * parts.epoch).sort((a, b) => parts[b] - parts[a])[0];
    cards.push(el("div", { class: `card verdict ${worst || ""}`, title: "over all epochs but the first" }, el("b", {}, named ? run.name : "Verdict"), el("span", {}, run.overall.verdict)));
  }
  if (run.facts.error) cards.push(el("div", { class: "card verdict error" }, el("b", {}, named ? `${run.name} failed` : "It failed"), el("span", {}, run.facts.error)));
  return cards;
}

function table(heads, rows) {
  const kind = (i) => (heads[i].startsWith("#") ? { class: "number" } : {});
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((head, i) => el("th", kind(i), head.replace("#", ""))))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", kind(i), cell)))))));
}

function comparison(page) {
  const names = [...new Set(page.data.runs.flatMap((run) => run.headline.map((x) => x.name)))];
  const better = Object.fromEntries(page.data.runs.flatMap((run) => run.headline.map((x) => [x.name, x.better])));
  const bests = page.data.runs.map((run) => names.map((name) => run.curves[name] && bestOf(run, name, better[name])));
  const winner = names.map((name, i) => {
    const values = bests.map((row) => row[i]).filter(Boolean).map((x) => x.value);
    return better[name] === "min" ? Math.min(...values) : Math.max(...values);
  });
  const settings = page.data.runs.map((run) => run.settings).filter((x) => Object.keys(x).length);
  const text = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  const differing = [...new Set(settings.flatMap(Object.keys))].filter((key) => settings.some((x) => text(x[key]) !== text(settings[0][key])));
  const rows = page.data.runs.map((run, r) => [
    el("span", { class: "row" }, el("i", { class: "dot", style: `background:${page.colour(run)}` }), el("b", {}, run.name)),
    el("span", { class: `pill ${run.state}` }, run.state),
    ...differing.map((key) => text(run.settings[key])),
    run.facts.epoch === undefined ? "–" : `${run.facts.epoch}${run.facts.max_epoch > 0 && run.facts.max_epoch < 10000 ? ` / ${run.facts.max_epoch}` : ""}`,
    run.facts.steps_per_second ? formatNumber(run.facts.steps_per_second) : "–",
    run.devices || "–",
    formatSeconds(duration(run)),
    ...bests[r].map((best, i) => (best ? el(best.value === winner[i] ? "b" : "span", {}, formatNumber(best.value)) : "–")),
  ]);
  return el("div", { class: "card", style: "margin-top:20px" }, table(["run", "state", ...differing, "#epoch", "#steps/s", "devices", "#time", ...names.map((name) => `#best ${name}`)], rows));
}

function loadBar(share, kind = "", width = share) {
  return el("div", { class: "load" }, el("div", { class: "track" }, el("i", { class: kind, style: `width:${100 * width}%` })), el("b", {}, share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`));
}

function stagesCard(run, named) {
  const stages = run.overall ? run.overall.stages : [];
  if (!stages.length) return null;
  const working = stages.filter((stage) => !stage.parallel);
  const hottest = Math.max(...working.map((stage) => stage.load), 0);
  const rows = stages.map((stage) => {
    const share = Math.min(1, stage.load);
    const load = stage.parallel ? el("span", { class: "soft nowrap" }, `waits ${formatSeconds(stage.seconds)}`)
      : loadBar(share, stage.load === hottest && share > 0.5 ? "hot" : "");
    return [
      el("span", { class: "nowrap", style: `padding-left:${14 * stage.depth}px` }, stage.label),
      load,
      el("span", { class: "nowrap" }, stage.workers ? `${stage.workers} worker${stage.workers > 1 ? "s" : ""}` : "trainer"),
      stage.datapoints.toLocaleString("en"),
      stage.datapoints && !stage.parallel ? formatNumber((1e6 * stage.seconds) / stage.datapoints) : "",
    ];
  });
  return el("div", { class: "card" }, el("h3", {}, named ? `${run.name}: stages` : "Stages of the data flow"), table(["stage, the last first", "load", "runs in", "#datapoints", "#µs each"], rows));
}

// The steps of each rank by their parts; the bars of all ranks have the same scale.
function ranksCard(run, named) {
  const ranks = run.overall ? run.overall.ranks : [];
  if (!ranks.length) return null;
  const parts = [["step", "in the step"], ["data", "waiting for data"], ["exchange", "in exchange"]];
  const longest = Math.max(...ranks.map((x) => parts.reduce((sum, [name]) => sum + x[name], 0))) || 1;
  const rows = ranks.map((x, rank) => [
    el("span", { class: "nowrap" }, `${rank}${rank === 0 ? ", the chief" : ""}`, rank === run.overall.straggler ? el("span", { class: "tag late" }, "slow") : null),
    el("span", { style: "overflow-wrap:anywhere" }, x.host),
    el("div", { class: "load" }, el("div", { class: "track parts" }, ...parts.map(([name]) => el("i", { class: name, style: `width:${(100 * x[name]) / longest}%` })))),
    ...parts.map(([name]) => formatSeconds(x[name] / run.overall.epochs)),
  ]);
  const legend = parts.map(([name, words]) => el("span", {}, el("i", { class: "square", style: `background:var(--${name})` }), words));
  return el("div", { class: "card", "data-ranks": ranks.length }, el("h3", {}, named ? `${run.name}: ranks` : "Ranks"), el("div", { class: "legend" }, ...legend),
    table(["rank", "host", "its steps", ...parts.map(([, words]) => `#${words}`)], rows));
}

function callbacksCard(run, named) {
  const callbacks = run.overall ? run.overall.callbacks : [];
  if (!callbacks.length) return null;
  const rows = callbacks.map(({ name, seconds, share }) => [
    el("span", { style: "overflow-wrap:anywhere" }, name),
    loadBar(share, "callbacks"),
    formatSeconds(seconds / run.overall.epochs),
  ]);
  return el("div", { class: "card" }, el("h3", {}, named ? `${run.name}: callbacks` : "The costliest callbacks"), table(["callback", "share of the time", "#an epoch"], rows));
}

const MOST_CLASSES = 20; // in a table; of more, the rarest are shown

function classesCards(run, named) {
  return Object.entries(run.facts.classes || {}).map(([name, { counts, note }]) => {
    const total = counts.reduce((sum, [, count]) => sum + count, 0) || 1;
    const largest = Math.max(1, ...counts.map(([, count]) => count));
    const rare = new Set([...counts].sort((a, b) => a[1] - b[1]).slice(0, MOST_CLASSES));
    const shown = counts.filter((pair) => rare.has(pair));
    const rows = shown.map(([label, count]) => [
      el("span", { style: "overflow-wrap:anywhere" }, label), loadBar(count / total, "", count / largest), count.toLocaleString("en")]);
    const title = `${named ? `${run.name}: ` : ""}${name} data`;
    return el("div", { class: "card", "data-classes": name }, el("h3", {}, title), table(["class", "share", "#samples"], rows),
      counts.length > shown.length ? el("p", { class: "soft" }, `the rarest ${shown.length} of ${counts.length.toLocaleString("en")} classes`) : null,
      note ? el("p", { class: "soft" }, note) : null);
  });
}

function checkpointsCard(run, named, now) {
  if (!run.checkpoints.length) return null;
  const columns = run.headline.filter(({ name }) => run.checkpoints.some((x) => name in x.values));
  const bests = Object.fromEntries(columns.map(({ name, better }) => {
    const values = run.checkpoints.map((x) => x.values[name]).filter((v) => v !== undefined && v !== null);
    return [name, better === "min" ? Math.min(...values) : Math.max(...values)];
  }));
  const winner = columns.length ? run.checkpoints.find((x) => x.values[columns[0].name] === bests[columns[0].name]) : null;
  const rows = run.checkpoints.map((x) => [
    el("span", { class: "nowrap" }, x.name, x.latest ? el("span", { class: "tag" }, "latest") : null,
      x === winner ? el("span", { class: "tag best" }, "best") : null),
    x.step === null ? "–" : x.step.toLocaleString("en"),
    ...columns.map(({ name }) => el(x.values[name] === bests[name] ? "b" : "span", {}, formatNumber(x.values[name]))),
    formatBytes(x.size),
    ago(x.saved, now),
  ]);
  return el("div", { class: "card" }, named ? el("h3", {}, run.name) : null, table(["checkpoint", "#step", ...columns.map((x) => `#${x.name}`), "#size", "#saved"], rows));
}

function pictureCard(run, image, named) {
  const last = image.items.length - 1;
  // A small picture shows its pixels; a large one is drawn smoothly.
  const picture = el("img", { src: image.items[last].src, alt: image.tag, onload: () => picture.classList.toggle("small", picture.naturalWidth < 150) });
  const words = el("span", { class: "soft" }, ` step ${image.items[last].step.toLocaleString("en")}`);
  const slider = last > 0 ? el("input", { type: "range", min: 0, max: last, value: last, "aria-label": `step of ${image.tag}`, oninput: (event) => {
    const item = image.items[Number(event.target.value)];
    picture.src = item.src;
    words.textContent = ` step ${item.step.toLocaleString("en")}`;
  } }) : null;
  return el("div", { class: "card picture" }, el("h3", {}, named ? `${run.name}: ${image.tag}` : image.tag, words), picture, slider);
}

function facts(title, values, open = false) {
  const pairs = Object.entries(values || {});
  if (!pairs.length) return null;
  const text = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value, null, 1) : String(value));
  return el("details", { class: "card", open }, el("summary", {}, title), el("dl", {}, ...pairs.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, text(value))])));
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}
