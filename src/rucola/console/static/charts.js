// Draws the tables of a page's charts, again after each refresh; times are in the reader's zone.
"use strict";

const plots = new Map();
const language = document.documentElement.lang;
const INCREMENTS = [60, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 1209600, 2592000];
const STEPS = {
  seconds: [0.1, 0.5, 1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000],
  size: Array.from({ length: 50 }, (_, power) => 2 ** power),
};
const compact = new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 });
const UNITS = {
  rate: (value) => compact.format(value),
  number: (value) => compact.format(value),
  percent: (value) => `${Math.round(value * 100)}%`,
  seconds: (value) => scaled(value, [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]),
  size: (value) => scaled(value, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]),
};

function scaled(value, units) {
  const [name, size] = units.find(([, least]) => value >= least) || units.at(-1);
  return `${compact.format(value / size)} ${name}`;
}

function data(table, numbers, period) {
  const columns = [[], ...numbers.map(() => [])];
  for (const row of table.tBodies[0].rows) {
    const at = Date.parse(row.querySelector("time").dateTime) / 1000;
    // What was not measured in a period is spanned; several periods without anything are a gap.
    if (columns[0].length && at - columns[0].at(-1) > period * 3.5) columns.forEach((one, n) => one.push(n ? null : at - period));
    columns[0].push(at);
    numbers.forEach((number, n) => columns[n + 1].push(parsed(row.cells[number + 1].dataset.v)));
  }
  return columns;
}

const parsed = (text) => (text === undefined ? undefined : Number(text));

function draw(box) {
  const table = box.closest("section").querySelector("details table");
  const numbers = box.dataset.columns.split(" ").map(Number);
  const values = data(table, numbers, Number(box.dataset.period));
  const known = plots.get(box);
  if (known && known.series.length === values.length) return known.setData(values);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const unit = UNITS[box.dataset.unit];
  const span = values[0].at(-1) - values[0][0];
  const day = { month: "short", day: "numeric" };
  const minute = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const time = new Intl.DateTimeFormat(language, span > 3 * 86400 ? day : span > 86400 ? { ...day, ...minute } : minute);
  const full = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const heads = table.tHead.rows[0].cells;
  const names = numbers.map((number) => heads[number + 1].textContent);
  const plot = new uPlot(
    {
      width: box.clientWidth,
      height: 180,
      padding: [8, 24, 0, 0],
      scales: { y: { range: (_, __, most) => [0, box.dataset.unit === "percent" ? 1 : most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 30, space: span > 86400 ? 110 : 70, incrs: INCREMENTS, values: (_, splits) => splits.map((at) => time.format(new Date(at * 1000))) },
        { ...axis, size: 62, incrs: STEPS[box.dataset.unit], values: (_, splits) => splits.map(unit) },
      ],
      series: [
        { label: heads[0].textContent, value: (_, at) => (at == null ? "–" : full.format(new Date(at * 1000))) },
        ...names.map((label, n) => ({
          label,
          stroke: color(`--series-${(n % 4) + 1}`),
          fill: n ? undefined : color("--series-fill"),
          width: 2,
          points: { show: values[0].length < 3 },
          value: (_, value) => (value == null ? "–" : unit(value)),
        })),
      ],
    },
    values,
    box,
  );
  plots.set(box, plot);
}

function drawAll() {
  for (const [box, plot] of plots) {
    if (box.isConnected) continue;
    plot.destroy();
    plots.delete(box);
  }
  document.querySelectorAll(".chart").forEach(draw);
}

function again() {
  plots.forEach((plot) => plot.destroy());
  plots.clear();
  drawAll();
}

document.addEventListener("htmx:after:swap", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  again();
});
drawAll();
