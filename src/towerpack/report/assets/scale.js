// Numbers: how they are written, spaced on an axis, smoothed, and grouped into charts.

function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function formatTick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return Number((value / 1e6).toPrecision(4)) + "M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(4)) + "k";
  if (size > 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(6)));
}

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

function formatBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
}

// Round positions for about `count` ticks between two values.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((x) => x * power).find((x) => x >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

// On a logarithmic axis: powers of ten, with 2 and 5 between if there are few.
function logTicks(low, high) {
  const found = [];
  const decades = Math.log10(high / low);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const x of decades < 2.5 ? [1, 2, 5] : [1]) {
      const value = x * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  if (found.length < 2) return [low, high];
  const every = Math.ceil(found.length / 6);
  return found.filter((_, i) => i % every === 0);
}

// A moving average that is correct from the first value on; values that are not numbers are left out.
function smoothed(values, weight) {
  if (weight === 0) return values;
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

// `train-error`, `val_error` and `validation/error` share the chart `error`.
const PHASE = /(^|[/_.\- ])(train|training|val|valid|validation|test|eval|dev)(?=$|[/_.\- ])/i;
const SYSTEM = /queue|throughput|memory|gpu|samples?[_ ]?(per|\/)|steps_per|speed/i;
const RATE = /(^|[/_])(learning_rate|lr|momentum|weight_decay)($|[/_:])/i;

function chartKey(name) {
  const key = name.replace(PHASE, "").replace(/^[/_.\- ]+|[/_.\- ]+$/g, "");
  return key || name;
}

const LAST_SECTIONS = ["schedules", "system"]; // after all others, in this order

function sectionOf(name) {
  if (name.startsWith("time/")) return null; // drawn as bars
  if (RATE.test(name)) return "schedules";
  if (SYSTEM.test(name)) return "system";
  const key = chartKey(name);
  return key.includes("/") ? key.slice(0, key.indexOf("/")) : "";
}

function compareSections(a, b) {
  return LAST_SECTIONS.indexOf(a) - LAST_SECTIONS.indexOf(b) || a.localeCompare(b);
}

// The weight for a curve of `count` points where the longest has `most`: all are averaged over the
// same part of the run, so that a curve with one point per epoch is not flattened.
function weightFor(weight, count, most) {
  const span = (count / Math.max(1, most)) / (1 - weight);
  return span <= 1 ? 0 : 1 - 1 / span;
}

// Epochs as an axis: a step within an epoch lies between two of them, if its epoch is known.
function epochAxis(curve, stepsPerEpoch) {
  const whole = curve.epoch.every((epoch, i) => Math.ceil(curve.step[i] / stepsPerEpoch) === epoch);
  return stepsPerEpoch > 0 && whole ? curve.step.map((step) => step / stepsPerEpoch) : curve.epoch;
}
