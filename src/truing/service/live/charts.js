// The charts, drawn by uPlot, which a script element loads.

import * as format from "./format.js";
import { withGaps } from "./series.js";

const HEIGHT = 190;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ratio = (part, whole) => (whole > 0 ? part / whole : null);

// The share of in-distribution rows that each rate refuses. For fdr it is unknown.
const EXPECTED = { false_alarm: (value) => value, accept: (value) => 1 - value };

/** Return the data of lines over time. `value` returns the height of a line at a bucket, or null for a gap. */
const overTime = (lines) => ({
  lines,
  isOverTime: true,
  data: ({ buckets, seconds }) => {
    const drawn = withGaps(buckets, seconds);
    return [drawn.map((bucket) => bucket.times), ...lines.map((line) => drawn.map((bucket) => line.value(bucket) ?? null))];
  },
});

// `latest` and `meaning` describe a chart in words, `none` says why a chart is missing, and `mark` is a dashed line.
export const CHARTS = [
  {
    id: "shares",
    title: "Share of rows",
    unit: format.shortShare,
    ...overTime([
      { label: "refused", ink: "--out", value: ({ refused, decided }) => ratio(refused, decided) },
      { label: "out, at least", ink: "--ink", value: ({ out_share, decided }) => (decided ? out_share : null) },
    ]),
    mark: ({ current: { rate } }) => ({ y: EXPECTED[rate.name]?.(rate.value), label: "expected without out rows", ink: "--soft" }),
    latest: ({ current }) => format.share(current.refused_share),
    none: ({ current }) => (current.reference_rows ? null : "The model decides rows when it has a reference."),
  },
  {
    id: "scores",
    title: "Scores of the last rows",
    unit: format.rate,
    lines: [
      { label: "last rows", ink: "--in", fill: true, isStepped: true },
      { label: "reference", ink: "--ink", isStepped: true },
    ],
    data: ({ density }) => densities(density),
    mark: ({ current }) => ({ x: current.threshold, label: "threshold", ink: "--soft" }),
    meaning: () => "(higher is more in-distribution)",
  },
  {
    id: "evidence",
    title: "Evidence of drift",
    unit: format.evidence,
    hasNegatives: true,
    ...overTime([{ ink: "--in", value: (bucket) => bucket.evidence }]),
    mark: ({ drift }) => ({ y: drift?.alarm_line, label: `alarm at ${format.evidence(drift?.alarm_line)}`, ink: "--bad" }),
    latest: ({ drift }) => format.evidence(drift?.evidence),
    none: ({ current, drift }) => {
      if (!current.has_drift_alarm) return "This model has no drift alarm.";
      return drift === null ? "The drift alarm needs a reference." : null;
    },
  },
  {
    id: "requests",
    title: "Requests per second",
    unit: format.rate,
    ...overTime([
      { label: "all", ink: "--in", fill: true, value: ({ requests, elapsed }) => ratio(requests, elapsed) },
      { label: "errors", ink: "--bad", value: ({ failed, elapsed }) => (failed ? failed / elapsed : null) },
    ]),
    latest: ({ buckets }) => format.rate(ratio(buckets.at(-1)?.requests, buckets.at(-1)?.elapsed)),
  },
  {
    id: "latencies",
    title: "Latency",
    unit: format.duration,
    ...overTime([
      { label: "median", ink: "--in", value: (bucket) => bucket.median_seconds },
      { label: "p99", ink: "--ink", value: (bucket) => bucket.p99_seconds },
    ]),
    latest: ({ current }) => format.duration(current.median_seconds),
  },
  {
    id: "throughput",
    title: "Rows per second",
    unit: format.rate,
    ...overTime([{ ink: "--in", fill: true, value: ({ rows, elapsed }) => ratio(rows, elapsed) }]),
    latest: ({ buckets }) => format.rate(ratio(buckets.at(-1)?.rows, buckets.at(-1)?.elapsed)),
    meaning: () => "learned or only scored",
  },
];

function densities(density) {
  if (density === null) return [[], [], []];
  // A bar reaches from its edge to the next edge, so the last height is needed twice.
  const bars = (heights) => (heights === null ? density.edges.map(() => null) : [...heights, heights.at(-1)]);
  return [density.edges, bars(density.rows), bars(density.reference)];
}

/** A chart in a figure, with its latest value in words. */
export class Chart {
  constructor(about, parent) {
    this.about = about;
    this.figure = document.createElement("figure");
    this.figure.id = about.id;
    this.figure.innerHTML = `<figcaption><h3></h3>
      <p><strong class="latest"></strong> <span class="keys"></span><span class="key mark"></span> <span class="meaning"></span></p></figcaption>
      <div class="plot" role="img"></div>`;
    this.part("h3").textContent = about.title;
    this.part(".keys").append(...about.lines.flatMap(keyOf));
    parent.append(this.figure);
    new ResizeObserver(() => this.resize()).observe(this.part(".plot"));
  }

  part(selector) {
    return this.figure.querySelector(selector);
  }

  /** Draw a view: the current state, the density, the drift and the buckets of a model. */
  show(view) {
    const none = this.about.none?.(view) ?? null;
    const latest = none === null ? (this.about.latest?.(view) ?? "") : "";
    const meaning = none ?? this.about.meaning?.(view) ?? "";
    this.part(".latest").textContent = latest;
    this.part(".meaning").textContent = meaning;
    this.part(".keys").hidden = none !== null;
    this.part(".plot").setAttribute("aria-label", `${this.about.title}: ${latest} ${meaning}`.trim());
    this.part(".plot").hidden = none !== null;
    this.mark = this.about.mark?.(view) ?? {};
    this.part(".mark").hidden = none !== null || !Number.isFinite(this.mark.x ?? this.mark.y);
    this.part(".mark").className = `key mark ${this.mark.ink?.slice(2)}`;
    this.part(".mark").textContent = this.mark.label;
    const data = this.about.data(view);
    if (this.plot === undefined) this.plot = new uPlot(this.options(), data, this.part(".plot"));
    else this.plot.setData(data);
  }

  /** Draw again, after the colours changed. */
  repaint() {
    if (this.plot === undefined) return;
    const { data } = this.plot;
    this.plot.destroy();
    this.plot = new uPlot(this.options(), data, this.part(".plot"));
  }

  resize() {
    const width = this.part(".plot").clientWidth;
    if (this.plot !== undefined && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  options() {
    const { unit, lines, isOverTime = false } = this.about;
    const axis = { stroke: colour("--soft"), font: "12px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const tick = isOverTime ? format.tick : format.rate;
    return {
      width: this.part(".plot").clientWidth || 300,
      height: HEIGHT,
      padding: [null, 32, null, null], // Room for half a tick label.
      scales: { x: { time: isOverTime }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [
        { ...axis, space: 70, size: 30, values: (_plot, places, _axis, _space, step) => places.map((place) => tick(place, step)) },
        { ...axis, size: 58, values: (_, places) => places.map((place) => unit(place)) },
      ],
      series: [{}, ...lines.map(drawnAs)],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      hooks: { draw: [(plot) => this.drawMark(plot)] },
    };
  }

  /** Return the ends of the y axis, which contain all values, zero and the mark. */
  range(low, high) {
    const places = [low, high, this.mark.y, 0].filter((place) => Number.isFinite(place));
    const [bottom, top] = [Math.min(...places), Math.max(...places)];
    const margin = 0.08 * (top - bottom) || 0.01;
    return [this.about.hasNegatives ? bottom - margin : 0, top + margin];
  }

  /** Draw a dashed line: horizontal at `y`, or vertical at `x`. */
  drawMark({ ctx, bbox, valToPos }) {
    const { x, y, ink } = this.mark;
    const isVertical = Number.isFinite(x);
    if (!isVertical && !Number.isFinite(y)) return;
    const pixels = (length) => length * devicePixelRatio;
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    const [left, top] = isVertical ? [valToPos(x, "x", true), bbox.top] : [bbox.left, valToPos(y, "y", true)];
    if (left < bbox.left || left > right) return;
    ctx.save();
    ctx.strokeStyle = colour(ink);
    ctx.lineWidth = pixels(1.5);
    ctx.setLineDash([pixels(6), pixels(4)]);
    ctx.beginPath();
    ctx.moveTo(left, top);
    ctx.lineTo(isVertical ? left : right, isVertical ? bottom : top);
    ctx.stroke();
    ctx.restore();
  }
}

/** Return the key of a line, if the line has a label. */
function keyOf({ label, ink }) {
  return label ? [Object.assign(document.createElement("span"), { className: `key ${ink.slice(2)}`, textContent: label }), " "] : [];
}

function drawnAs({ label, ink, fill, isStepped }) {
  const stroke = colour(ink);
  return {
    label,
    stroke,
    width: 2,
    fill: fill ? `${stroke}33` : undefined,
    paths: isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: false, filter: isolated, size: 4, fill: stroke, width: 0 },
  };
}

/** Return the places of single values between two gaps. No line reaches these values, so points are drawn. */
function isolated(plot, series) {
  const values = plot.data[series];
  const isGap = (place) => (values[place] ?? null) === null;
  return [...values.keys()].filter((place) => !isGap(place) && isGap(place - 1) && isGap(place + 1));
}
