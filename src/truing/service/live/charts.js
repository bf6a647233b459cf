// The charts: what each one draws, and how. uPlot comes by a script of its own.

import * as words from "./words.js";
import { withGaps } from "./series.js";

const HEIGHT = 190;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ratio = (part, whole) => (whole > 0 ? part / whole : null);
const column = (spans, value) => spans.map((span) => value(span) ?? null);

const LINE = { width: 2, points: { show: false } };

/** A chart over time: `value` says what a span adds to each line. */
function overTime(lines) {
  return {
    lines,
    data: ({ spans, seconds }) => {
      const drawn = withGaps(spans, seconds);
      return [drawn.map((span) => span.times), ...lines.map((line) => column(drawn, (span) => line.value(span)))];
    },
    isOverTime: true,
  };
}

export const CHARTS = [
  {
    id: "refused",
    title: "Share of rows refused",
    unit: words.roundShare,
    range: [0, null],
    ...overTime([{ label: "refused", ink: "--out", spanGaps: true, value: (span) => ratio(span.refused, span.decided) }]),
    mark: ({ told }) => ({ at: told.standing.refused_in, label: "if none were out", ink: "--soft" }),
    latest: ({ told }) => words.share(told.standing.refused_share),
    meaning: ({ told }) => `of the last ${words.count(told.standing.decided)} rows decided`,
    none: ({ told }) => (told.standing.reference_rows ? null : "Rows are refused once the server has a reference."),
  },
  {
    id: "scores",
    title: "Scores now, beside the reference’s",
    unit: words.rate,
    range: [0, null],
    isOverTime: false,
    lines: [
      { label: "last rows", ink: "--in", fill: true, isStepped: true },
      { label: "reference", ink: "--ink", isStepped: true },
    ],
    data: ({ told }) => densities(told.density),
    latest: () => "",
    meaning: () => "(higher: more in-distribution)",
  },
  {
    id: "out-share",
    title: "Out-of-distribution, at least",
    unit: words.roundShare,
    range: [0, null],
    ...overTime([{ label: "at least", ink: "--out", fill: true, spanGaps: true, value: (span) => span.out_share }]),
    latest: ({ told }) => words.share(told.standing.out_share),
    meaning: () => "by the last rows’ p-values, 95% confidence",
    none: ({ told }) => (told.standing.reference_rows ? null : "Known once the server has a reference."),
  },
  {
    id: "evidence",
    title: "Has the stream changed?",
    unit: words.evidence,
    range: [null, null],
    ...overTime([{ label: "evidence of change", ink: "--in", spanGaps: true, value: (span) => span.evidence }]),
    mark: ({ told }) => ({ at: told.drift?.alarm_line, label: "alarm", ink: "--bad" }),
    ceiling: (mark) => 2 * mark, // Evidence soon has hundreds of digits; what matters lies about the line.
    latest: ({ told }) => (told.drift === null ? "" : words.evidence(told.drift.evidence)),
    meaning: ({ told }) => (told.drift === null ? "" : `alarm from ${words.evidence(told.drift.alarm_line)} on`),
    none: ({ told }) => (told.drift === null ? "No alarm was set for this server." : null),
  },
  {
    id: "movement",
    title: "How far the coefficients moved",
    unit: words.roundShare,
    range: [0, null],
    ...overTime([{ label: "moved", ink: "--in", spanGaps: true, value: (span) => span.movement }]),
    latest: ({ told }) => words.share(told.standing.movement),
    meaning: () => "in ten minutes, as a share of their length",
  },
  {
    id: "throughput",
    title: "Rows per second",
    unit: words.rate,
    range: [0, null],
    ...overTime([{ label: "rows per second", ink: "--in", fill: true, value: (span) => ratio(span.rows, span.lasted) }]),
    latest: ({ spans }) => words.rate(ratio(spans.at(-1)?.rows, spans.at(-1)?.lasted)),
    meaning: ({ spans }) => `${words.rate(ratio(spans.at(-1)?.requests, spans.at(-1)?.lasted))} requests per second`,
  },
];

function densities(density) {
  if (density === null) return [[], [], []];
  // A bar reaches from its edge to the next, so that the last one is told twice.
  const bars = (heights) => (heights === null ? density.edges.map(() => null) : [...heights, heights.at(-1)]);
  return [density.edges, bars(density.rows), bars(density.reference)];
}

/** One chart in a figure of its own, with its latest value in words. */
export class Chart {
  constructor(about, parent) {
    this.about = about;
    this.figure = document.createElement("figure");
    this.figure.id = about.id;
    this.figure.innerHTML = `<figcaption><h3></h3>
      <p><strong class="latest"></strong> <span class="keys"></span> <span class="meaning"></span></p></figcaption>
      <div class="plot" role="img"></div>`;
    this.part("h3").textContent = about.title;
    if (about.lines.length > 1) this.part(".keys").append(...about.lines.flatMap(key));
    parent.append(this.figure);
    new ResizeObserver(() => this.resize()).observe(this.part(".plot"));
  }

  part(selector) {
    return this.figure.querySelector(selector);
  }

  /** Draw what is known now. */
  show(known) {
    const none = this.about.none?.(known) ?? null;
    const latest = none === null ? this.about.latest(known) : "";
    const meaning = none ?? this.about.meaning(known);
    this.part(".latest").textContent = latest;
    this.part(".meaning").textContent = meaning;
    this.part(".plot").setAttribute("aria-label", `${this.about.title}: ${latest} ${meaning}`);
    this.part(".plot").hidden = none !== null;
    this.mark = this.about.mark?.(known) ?? {};
    const data = this.about.data(known);
    if (this.plot === undefined) this.plot = new uPlot(this.options(), data, this.part(".plot"));
    else this.plot.setData(data);
  }

  /** Draw anew, in the colours of now. */
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
    const { about } = this;
    const axis = { stroke: colour("--soft"), font: "12px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: this.part(".plot").clientWidth || 300,
      height: HEIGHT,
      scales: { x: { time: about.isOverTime }, y: { range: (_, low, high) => this.heights(low, high) } },
      axes: [
        { ...axis, space: 70, size: 30, values: (_plot, places, _axis, _space, step) => places.map((place) => this.tick(place, step)) },
        { ...axis, size: 58, values: (_, places) => places.map((place) => about.unit(place)) },
      ],
      series: [{ label: about.isOverTime ? "time" : "score" }, ...about.lines.map((line) => drawnAs(line, about.unit))],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      hooks: { draw: [(plot) => this.drawMark(plot)] },
    };
  }

  tick(place, step) {
    return this.about.isOverTime ? words.tick(place, step) : words.rate(place);
  }

  /** Return the ends of the upright scale: the data's and the mark's, with room above, up to the ceiling if any. */
  heights(low, high) {
    const [least, most] = this.about.range;
    const places = [least ?? low, most ?? high, this.mark.at].filter((place) => Number.isFinite(place));
    const bottom = Math.min(...places, least ?? 0);
    const top = Math.min(Math.max(...places, least ?? 0), this.about.ceiling?.(this.mark.at) ?? Infinity);
    const room = 0.08 * (top - bottom) || 0.01;
    return [least ?? bottom - room, top + room];
  }

  /** Draw a dashed line with its name, such as where an alarm is raised. */
  drawMark(plot) {
    const { at, label, ink } = this.mark;
    if (!Number.isFinite(at)) return;
    const height = plot.valToPos(at, "y", true);
    const { ctx, bbox } = plot;
    const pixels = (length) => length * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = colour(ink);
    ctx.lineWidth = pixels(1.5);
    ctx.setLineDash([pixels(6), pixels(4)]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, height);
    ctx.lineTo(bbox.left + bbox.width, height);
    ctx.stroke();
    ctx.font = `${pixels(12)}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    const [left, bottom, tall] = [bbox.left + pixels(6), height - pixels(3), pixels(14)];
    ctx.fillStyle = `${colour("--panel")}d0`;
    ctx.fillRect(left - pixels(2), bottom - tall, ctx.measureText(label).width + pixels(4), tall);
    ctx.fillStyle = colour(ink);
    ctx.fillText(label, left, bottom);
    ctx.restore();
  }
}

/** Return what tells a line's name by its colour. */
function key(line) {
  const patch = Object.assign(document.createElement("span"), { className: `key ${line.ink.slice(2)}` });
  const named = Object.assign(document.createElement("span"), { className: "named" });
  named.append(patch, ` ${line.label}`);
  return [named, " "];
}

function drawnAs(line, unit) {
  return {
    ...LINE,
    label: line.label,
    stroke: colour(line.ink),
    fill: line.fill ? `${colour(line.ink)}33` : undefined,
    spanGaps: line.spanGaps ?? false,
    paths: line.isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    value: (_, value) => unit(value),
  };
}
