// Parallel coordinates: an axis for each parameter and one for the objective, a line for each trial.

const AXES = { height: 330, top: 34, bottom: 16, left: 70, right: 70 };
const GRIP = 26; // pixels around an axis where a range is selected
const FAR_APART = 10; // an objective that varies by more than this factor gets a logarithmic axis
const FEW_VALUES = 12; // a range of fewer integers is drawn like choices
const SPREAD = 0.5; // of the place of a choice, for the lines through it

function axisOf(parameter, trials) {
  const { key, choices, low, high, log, whole } = parameter;
  const value = (trial) => trial.parameters[key];
  const few = whole && high - low < FEW_VALUES;
  const values = few ? Array.from({ length: high - low + 1 }, (_, i) => low + i) : choices;
  if (!values.length) {
    const scale = numbers(low, high, log);
    return { key, share: (trial) => scale.share(value(trial)), marks: scale.marks };
  }
  // The lines of one value run beside each other, the best one lowest, so that each can be followed.
  const alike = new Map(values.map((x) => [x, trials.filter((trial) => value(trial) === x).sort((a, b) => a.rank - b.rank)]));
  const offset = (trial) => {
    const others = alike.get(value(trial));
    return others.length > 1 ? SPREAD * (others.indexOf(trial) / (others.length - 1) - 0.5) : 0;
  };
  return {
    key,
    share: (trial) => (values.indexOf(value(trial)) + 0.5 + offset(trial)) / values.length,
    marks: values.map((x, i) => [(i + 0.5) / values.length, String(x)]),
  };
}

function objectiveAxis(metric, trials) {
  const values = trials.map((trial) => trial.value);
  const low = Math.min(...values), high = Math.max(...values);
  const scale = numbers(low, high, low > 0 && high > FAR_APART * low);
  return { key: metric, share: (trial) => scale.share(trial.value), marks: scale.marks };
}

function numbers(low, high, log) {
  if (low === high) { low -= Math.abs(low) / 2 || 1; high += Math.abs(high) / 2 || 1; }
  const at = log ? Math.log : (x) => x;
  const share = (x) => (at(x) - at(low)) / (at(high) - at(low));
  return { share, marks: (log ? logTicks(low, high) : ticks(low, high, 5)).map((x) => [share(x), formatTick(x)]) };
}

class ParallelAxes {
  constructor(sweep, page) {
    Object.assign(this, { sweep, page, ranges: new Map() });
    this.canvas = svg("svg", { height: AXES.height, role: "img", "aria-label": "parallel coordinates of the trials" });
    this.node = el("div", { class: "card chart", "data-parallel": sweep.metric }, this.canvas);
    this.trials = page.ranked;
    this.axes = [...sweep.parameters.map((x) => axisOf(x, this.trials)), objectiveAxis(sweep.metric, this.trials)];
  }

  x(i) { return AXES.left + (i * (this.width - AXES.left - AXES.right)) / (this.axes.length - 1); }

  y(share) { return AXES.height - AXES.bottom - share * (AXES.height - AXES.bottom - AXES.top); }

  draw() {
    this.width = this.canvas.clientWidth || 720;
    this.canvas.replaceChildren();
    // The best lines are drawn last, over the others.
    for (const trial of [...this.trials].sort((a, b) => b.rank - a.rank)) {
      const points = this.axes.map((axis, i) => [this.x(i), this.y(axis.share(trial))]);
      const path = points.map(([x, y], i) => {
        if (i === 0) return `M${x},${y}`;
        const [x0, y0] = points[i - 1], half = (x + x0) / 2;
        return `C${half},${y0} ${half},${y} ${x},${y}`;
      }).join("");
      const line = svg("path", { class: `curve ${trial.state}`, d: path, stroke: trial.colour, "data-trial": trial.number });
      const wide = svg("path", { class: "hit", d: path });
      wide.addEventListener("pointerenter", () => this.page.highlight(trial.number));
      wide.addEventListener("pointerleave", () => this.page.highlight(null));
      this.canvas.append(line, wide);
    }
    this.axes.forEach((axis, i) => this.drawAxis(axis, i));
  }

  drawAxis(axis, i) {
    const x = this.x(i), last = i === this.axes.length - 1;
    const name = svg("text", { class: "name", x, y: 16, "text-anchor": "middle" }, axis.key);
    this.canvas.append(name, svg("line", { class: "axis", x1: x, x2: x, y1: this.y(0), y2: this.y(1) }));
    for (const [share, words] of axis.marks) {
      const y = this.y(share);
      this.canvas.append(
        svg("line", { class: "axis", x1: x - 4, x2: x + 4, y1: y, y2: y }),
        svg("text", { class: "value", x: last ? x + 9 : x - 9, y: y + 4, "text-anchor": last ? "start" : "end" }, words),
      );
    }
    const range = svg("rect", { class: "range", x: x - 8, width: 16, y: 0, height: 0 });
    const grip = svg("rect", { class: "grip", x: x - GRIP / 2, width: GRIP, y: AXES.top - 8, height: AXES.height - AXES.top - AXES.bottom + 16, "data-axis": axis.key });
    this.canvas.append(range, grip);
    this.drawRange(range, this.ranges.get(axis));
    this.selectOn(grip, axis, range);
  }

  drawRange(range, shares) {
    if (!shares) { range.setAttribute("height", 0); return; }
    range.setAttribute("y", this.y(shares[1]));
    range.setAttribute("height", this.y(shares[0]) - this.y(shares[1]));
  }

  // Drag along an axis to select a range; click it to select everything again.
  selectOn(grip, axis, range) {
    const shareAt = (event) => {
      const y = event.clientY - this.canvas.getBoundingClientRect().top;
      return Math.min(1.02, Math.max(-0.02, (this.y(0) - y) / (this.y(0) - this.y(1))));
    };
    let from = null;
    grip.addEventListener("pointerdown", (event) => {
      from = shareAt(event);
      if (event.isTrusted) grip.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    grip.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = shareAt(event);
      if (Math.abs(to - from) > 0.01) this.ranges.set(axis, [Math.min(from, to), Math.max(from, to)]);
      this.drawRange(range, this.ranges.get(axis));
      this.page.select(this.selected());
    });
    grip.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(shareAt(event) - from) <= 0.01) this.ranges.delete(axis);
      from = null;
      this.drawRange(range, this.ranges.get(axis));
      this.page.select(this.selected());
    });
  }

  // The numbers of the trials in all ranges; null if there is no range.
  selected() {
    if (!this.ranges.size) return null;
    const within = (trial) => [...this.ranges].every(([axis, [low, high]]) => {
      const share = axis.share(trial);
      return share >= low && share <= high;
    });
    return new Set(this.trials.filter(within).map((trial) => trial.number));
  }
}
