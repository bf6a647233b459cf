// The page: asks the server about once a second what is new, and shows it.

import { CHARTS, Chart } from "./charts.js";
import { NeedsToken, ask, token } from "./server.js";
import { Series } from "./series.js";
import * as words from "./words.js";

// Milliseconds between two questions; longer for readers who would rather see less move, and while the server is gone.
const STEADY = matchMedia("(prefers-reduced-motion: reduce)").matches ? 5000 : 1000;
const GONE = 2000;
const NUMBERS = 10; // Lines of the table.

const element = (id) => document.getElementById(id);
const made = (tag, about) => Object.assign(document.createElement(tag), about);
const series = new Series();
const charts = CHARTS.map((about) => new Chart(about, element("charts")));
let span = "10 minutes";
let isPaused = false;
let timer;

async function update() {
  clearTimeout(timer);
  let wait = STEADY;
  try {
    const asked = span;
    const told = await ask(`live/history?span=${encodeURIComponent(asked)}&since=${series.next}`);
    if (asked === span) show(told);
  } catch (error) {
    if (error instanceof NeedsToken) return askForToken();
    say("The server does not answer. This page asks again until it does.", "bad");
    wait = GONE;
  }
  clearTimeout(timer); // Of another that asked meanwhile.
  if (!isPaused && !document.hidden) timer = setTimeout(update, wait);
}

function show(told) {
  series.take(told);
  const known = { told, spans: series.spans(), seconds: told.seconds };
  const isEmpty = told.standing.state_rows === 0;
  reveal(isEmpty ? "empty" : "stream");
  say(`Connected, ${words.time(told.now, 1)}`, "good");
  if (isEmpty) return showExample();
  showSpans(told.spans);
  showStanding(told);
  for (const chart of charts) chart.show(known);
  showNotes(told.notes);
  showNumbers(known);
}

/** Show one part of the page, and hide the others. */
function reveal(id) {
  for (const part of ["needs-token", "empty", "stream"]) element(part).hidden = part !== id;
}

function say(text, kind) {
  const status = element("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.kind = kind;
}

function askForToken() {
  const wasRefused = token.given() !== null;
  token.forget();
  element("token-refused").textContent = wasRefused ? "The server did not take this token." : "";
  reveal("needs-token");
  say("Waiting for a token", "bad");
  element("token").focus();
}

/** Show a command that works here: of the columns that the server says it takes, at the address of this page. */
async function showExample() {
  const code = element("example");
  if (code.textContent !== "") return;
  const { inputs } = await ask("v2/models/truing");
  const width = (name) => inputs.find((input) => input.name === name)?.shape.at(-1);
  const tensors = ["features", "logits"].map((name) => `tensor("${name}", 300, ${width(name)})`).join(", ");
  const address = new URL("v2/models/truing/infer", document.baseURI);
  const bearer = token.given() === null ? "" : ' -H "Authorization: Bearer $TOKEN"';
  code.textContent = `python3 -c '
import json, random
def tensor(name, rows, columns):
    data = [random.gauss(0, 1) for _ in range(rows * columns)]
    return {"name": name, "datatype": "FP32", "shape": [rows, columns], "data": data}
print(json.dumps({"inputs": [${tensors}]}))
' | curl --silent${bearer} -H "Content-Type: application/json" --data-binary @- ${address}`;
}

function showSpans(names) {
  const fieldset = element("spans");
  if (fieldset.querySelector("input") !== null) return;
  for (const name of names) {
    const label = document.createElement("label");
    const choice = made("input", { type: "radio", name: "span", value: name, checked: name === span });
    choice.addEventListener("change", () => {
      span = name;
      series.forget();
      update();
    });
    label.append(choice, ` ${name}`);
    fieldset.append(label);
  }
}

function showStanding({ standing, drift }) {
  const isDecided = standing.decided > 0;
  tell("state-rows", words.count(standing.state_rows), `${words.count(standing.reference_rows)} rows in the reference`);
  tell("refused-share", words.share(standing.refused_share), isDecided ? lastRows(standing) : "nothing decided yet");
  tell("out-share", words.share(standing.out_share), isDecided ? `${lastRows(standing)}, 95% confidence` : "needs a reference");
  if (drift === null) tell("drift", "Not watched", "no alarm was set");
  else tell("drift", drift.is_alarm ? "Yes" : "No sign of it", evidenceAgainstLine(drift));
  element("drift-card").classList.toggle("bad", drift?.is_alarm ?? false);
  showAlarm(standing, drift);
}

const lastRows = (standing) => `of the last ${words.count(standing.decided)} rows`;
const evidenceAgainstLine = (drift) =>
  `evidence ${words.evidence(drift.evidence)}, alarm from ${words.evidence(drift.alarm_line)} on`;

function showAlarm(standing, drift) {
  const reasons = standing.why_not ? [`The server takes no requests: ${standing.why_not}.`] : [];
  if (drift?.is_alarm) reasons.push("The stream has changed.");
  element("alarm").hidden = reasons.length === 0;
  // Said again only when it is something else.
  if (element("alarm-reason").textContent !== reasons.join(" ")) element("alarm-reason").textContent = reasons.join(" ");
  element("changes").replaceChildren(...(drift?.changes ?? []).map((text) => made("li", { textContent: text })));
}

function tell(id, value, more) {
  element(id).textContent = value;
  element(`${id}-more`).textContent = more;
}

function showNotes(notes) {
  const lines = notes.map(({ text, times, last }) => {
    const often = times > 1 ? `${words.count(times)} times, last at` : "at";
    const line = made("li", { textContent: `${text} ` });
    line.append(made("span", { className: "soft", textContent: `(${often} ${words.time(last, 1)})` }));
    return line;
  });
  element("notes").replaceChildren(...(lines.length ? lines : [made("li", { textContent: "None." })]));
}

function showNumbers({ spans, seconds }) {
  element("numbers-caption").textContent = `The latest, ${spanWords(seconds)} a line`;
  const latest = spans.slice(-NUMBERS).reverse();
  element("numbers").replaceChildren(...latest.map((span) => lineOf(span, seconds)));
}

function lineOf(span, seconds) {
  const values = [
    words.count(span.rows),
    words.share(span.decided ? span.refused / span.decided : null),
    words.share(span.out_share),
    words.evidence(span.evidence),
    words.share(span.movement),
    words.rate(span.requests / span.lasted),
    words.rate(span.requests ? (1000 * span.busy_seconds) / span.requests : null),
  ];
  const line = made("tr", {});
  line.append(made("th", { scope: "row", textContent: words.time(span.times, seconds) }));
  line.append(...values.map((value) => made("td", { textContent: value })));
  return line;
}

function spanWords(seconds) {
  if (seconds < 60) return seconds === 1 ? "a second" : `${seconds} seconds`;
  return seconds < 3600 ? (seconds === 60 ? "a minute" : `${seconds / 60} minutes`) : `${seconds / 3600} hours`;
}

element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.keep(element("token").value);
  element("token").value = "";
  update();
});

element("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  element("pause").setAttribute("aria-pressed", String(isPaused));
  element("pause").textContent = isPaused ? "Go on" : "Pause";
  if (isPaused) clearTimeout(timer);
  else update();
});

// A page that nobody sees asks for nothing.
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && !isPaused) update();
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.repaint()));

update();
