// The page. About once a second, it gets the list of models and the new buckets of the chosen model, and shows them.

import { CHARTS, Chart } from "./charts.js";
import * as format from "./format.js";
import { Series } from "./series.js";
import { NeedsToken, Refused, get, token } from "./server.js";

// Milliseconds between requests. Readers who prefer less motion get fewer.
const PERIOD = matchMedia("(prefers-reduced-motion: reduce)").matches ? 5000 : 1000;
const RETRY_PERIOD = 2000;
const TABLE_LINES = 10;

const RATES = { false_alarm: "false alarms", accept: "accepted", fdr: "false discoveries" };
const BUCKETS = { 5: "5 seconds", 60: "minute", 10800: "3 hours" };

const element = (id) => document.getElementById(id);
const create = (tag, properties) => Object.assign(document.createElement(tag), properties);
const series = new Series();
const charts = CHARTS.map((about) => new Chart(about, element("charts")));
let chosen = nameInAddress();
let span = "10 minutes";
let isPaused = false;
let timer;
let round = 0;

/** Get and show the newest state, and schedule the next update. A later call replaces an earlier one. */
async function update() {
  clearTimeout(timer);
  const own = ++round;
  let period = PERIOD;
  try {
    const { models } = await get("live/models");
    if (own !== round) return;
    chosen ??= (models.find(({ problem }) => !problem) ?? models[0])?.name ?? null;
    const model = models.find(({ name }) => name === chosen);
    showModels(models, model);
    if (model === undefined || model.method === null) showMissing(models, model);
    else {
      series.select(`${model.name}, ${span}`);
      const query = new URLSearchParams({ model: model.name, span, since: series.next });
      const answer = await get(`live/history?${query}`);
      if (own !== round) return;
      show(model, answer);
    }
    if (isPaused) setStatus("Paused", "");
    else setStatus("Connected", "good", format.time(Date.now() / 1000, 1));
  } catch (error) {
    if (own !== round) return;
    if (error instanceof NeedsToken) return askForToken();
    setStatus(error instanceof Refused ? error.message : "The server does not answer. Trying again.", "bad");
    period = RETRY_PERIOD;
  }
  if (!isPaused && !document.hidden) timer = setTimeout(update, period);
}

/** Stop updates, including the current one. */
function stop() {
  clearTimeout(timer);
  round += 1;
}

function nameInAddress() {
  return new URLSearchParams(location.search).get("model");
}

function choose(name) {
  chosen = name;
  update();
}

function showModels(models, chosenModel) {
  const list = element("models").firstElementChild;
  const names = models.map(({ name }) => name).join(" ");
  if (list.dataset.names !== names) list.replaceChildren(...models.map(modelItem));
  list.dataset.names = names;
  models.forEach((model, place) => {
    // Change links in place: a replaced link would lose a click.
    const link = list.children[place].firstElementChild;
    if (model === chosenModel) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    const [textContent, className] = summary(model);
    Object.assign(link.lastElementChild, { textContent, className });
  });
  element("models").hidden = models.length === 0 || (models.length === 1 && chosenModel !== undefined);
  list.classList.toggle("scrolls", list.scrollHeight > list.clientHeight + 1); // A border shows that the list goes on.
  element("name").textContent = chosenModel?.name ?? "truing";
  document.title = chosenModel === undefined ? "truing" : `${chosenModel.name} – truing`;
}

function modelItem({ name }) {
  const link = create("a", { href: `?${new URLSearchParams({ model: name })}`, textContent: `${name} ` });
  link.append(create("span", {}));
  const item = create("li", {});
  item.append(link);
  return item;
}

/** Return the most important message about a model, and its CSS class. */
function summary({ problem, is_alarm, errors, refused_share, rows }) {
  if (problem) return ["problem", "bad"];
  if (is_alarm) return ["drift alarm", "bad"];
  if (errors) return [`${format.count(errors)} ${errors === 1 ? "error" : "errors"}`, "bad"];
  return [refused_share === null ? `${format.count(rows ?? 0)} rows` : `${format.share(refused_share)} refused`, "soft"];
}

/** Say why there is no model to show. */
function showMissing(models, model) {
  series.select("");
  reveal("message");
  element("settings").textContent = "";
  const hint = models.length ? "Choose another model above." : "Create a model, and it will appear here.";
  const [title, text] =
    model !== undefined
      ? [model.problem ? "This model cannot be used" : "Loading …", model.problem]
      : [chosen === null ? "This server has no models" : `There is no model named “${chosen}”`, hint];
  element("message-title").textContent = title;
  element("message-text").textContent = text;
}

function show(model, answer) {
  series.add(answer);
  const { current, drift, density, notes, seconds } = answer;
  const view = { current, drift, density, seconds, buckets: series.buckets() };
  reveal("model");
  showSettings(current);
  showAlarm(model, view);
  showTiles(view);
  element("empty").hidden = current.rows > 0;
  if (current.rows === 0) showExample(model, current);
  const isIdle = current.rows === 0 && view.buckets.every(({ requests, rows }) => requests === 0 && rows === 0);
  element("charts-and-numbers").hidden = isIdle;
  if (isIdle) return;
  showSpans(answer.spans);
  for (const chart of charts) chart.show(view);
  showNotes(notes);
  showNumbers(view);
}

/** Show one section of the page and hide the others. */
function reveal(id) {
  for (const section of ["needs-token", "message", "model"]) element(section).hidden = section !== id;
}

function setStatus(text, kind, updated = "") {
  if (element("status").textContent !== text) element("status").textContent = text; // Announce a text once.
  element("status").parentElement.dataset.kind = kind;
  element("updated").textContent = updated;
}

function askForToken() {
  const wasRefused = token.get() !== null;
  token.clear();
  element("token-refused").textContent = wasRefused ? "The server refused this token." : "";
  element("models").hidden = true;
  reveal("needs-token");
  setStatus("Waiting for a token", "bad");
  element("token").focus();
}

function showSettings({ method, base, rate, threshold, reference_rows }) {
  const why = rate.name === "fdr" ? "differs between batches" : reference_rows ? "not computed yet" : "needs a reference";
  const settings = [
    `method ${method}`,
    `base score ${base}`,
    `${RATES[rate.name]} ${format.shortShare(rate.value)}`,
    `threshold ${threshold === null ? why : format.score(threshold)}`,
  ];
  element("settings").replaceChildren(...settings.flatMap((text, place) => [place ? " · " : "", create("span", { textContent: text })]));
}

function showAlarm({ problem }, { current, drift }) {
  const reasons = [
    problem && `This model takes no requests: ${problem}.`,
    current.snapshot_error && `The last snapshot failed: ${current.snapshot_error}.`,
    drift?.is_alarm && "The stream has changed.",
  ].filter(Boolean);
  element("alarm").hidden = reasons.length === 0;
  const text = reasons.join(" ");
  if (element("alarm-reason").textContent !== text) element("alarm-reason").textContent = text; // Announce a text once.
  element("changes").replaceChildren(...(drift?.changes ?? []).map((change) => create("li", { textContent: change })));
}

function showTiles({ current, drift }) {
  const { requests, errors, decided, skipped_rows, reference_rows } = current;
  const lastMinute = requests ? `of ${format.count(requests)} requests in the last minute` : "no requests in the last minute";
  const lastRows = `of the last ${format.count(decided)} rows`;
  const skipped = skipped_rows ? `, ${format.count(skipped_rows)} garbage rows skipped` : "";
  const undecided = reference_rows ? "no rows decided yet" : "needs a reference";
  setTile("errors", requests ? format.count(errors) : "–", lastMinute, errors > 0);
  setTile("latency", format.duration(current.median_seconds), requests ? `median, p99 ${format.duration(current.p99_seconds)}` : lastMinute);
  setTile("rows", format.count(current.rows), `${format.count(reference_rows)} reference rows${skipped}`);
  setTile("refused-share", format.share(current.refused_share), decided ? lastRows : undecided);
  setTile("out-share", format.share(current.out_share), decided ? `${lastRows}, 95% confidence` : undecided);
  if (drift === null) setTile("drift", "Off", current.has_drift_alarm ? "needs a reference" : "no drift alarm");
  else {
    const evidence = `evidence ${format.evidence(drift.evidence)}, alarm at ${format.evidence(drift.alarm_line)}`;
    setTile("drift", drift.is_alarm ? "Alarm" : "No alarm", evidence, drift.is_alarm);
  }
}

function setTile(id, value, more, isBad = false) {
  element(id).textContent = value;
  element(`${id}-more`).textContent = more;
  element(id).parentElement.classList.toggle("bad", isBad);
}

/** Show a command that sends rows to this model. */
function showExample({ name }, { method, classes, features, reference_rows }) {
  const needsReference = method === "contrast" && reference_rows === 0;
  element("needs-reference").hidden = !needsReference;
  element("example").hidden = needsReference;
  const shapes = { features: [300, features], ...(classes === null ? { scores: [300] } : { logits: [300, classes] }) };
  const tensors = Object.entries(shapes).map(([tensor, shape]) => `tensor("${tensor}", ${shape.join(", ")})`);
  const address = new URL(`v2/models/${encodeURIComponent(name)}/infer`, document.baseURI);
  const bearer = token.get() === null ? "" : ' -H "Authorization: Bearer $TOKEN"';
  const command = `python3 -c '
import json, math, random
def tensor(name, *shape):
    data = [random.gauss(0, 1) for _ in range(math.prod(shape))]
    return {"name": name, "datatype": "FP32", "shape": shape, "data": data}
print(json.dumps({"inputs": [${tensors.join(", ")}]}))
' | curl --silent${bearer} -H "Content-Type: application/json" --data-binary @- ${address}`;
  if (element("command").textContent !== command) element("command").textContent = command; // Keep the reader's selection.
}

function showSpans(names) {
  const fieldset = element("spans");
  if (fieldset.querySelector("input") !== null) return;
  for (const name of names) {
    const label = create("label", {});
    const input = create("input", { type: "radio", name: "span", value: name, checked: name === span });
    input.addEventListener("change", () => {
      span = name;
      update();
    });
    label.append(input, ` ${name}`);
    fieldset.append(label);
  }
}

function showNotes(notes) {
  const items = notes.map(({ text, times, last }) => {
    const often = times > 1 ? `${format.count(times)} times, last at` : "at";
    const item = create("li", { textContent: `${text} ` });
    item.append(create("span", { className: "soft", textContent: `(${often} ${format.time(last, 1)})` }));
    return item;
  });
  element("notes").replaceChildren(...(items.length ? items : [create("li", { textContent: "None." })]));
}

function showNumbers({ buckets, seconds }) {
  element("numbers-caption").textContent = `The latest numbers, one line per ${BUCKETS[seconds]}`;
  const lines = buckets.slice(-TABLE_LINES).reverse();
  element("numbers").replaceChildren(...lines.map((bucket) => tableLine(bucket, seconds)));
}

function tableLine(bucket, seconds) {
  const { requests, failed, rows, decided, refused } = bucket;
  const values = [
    format.count(requests),
    format.count(failed),
    format.duration(bucket.median_seconds),
    format.duration(bucket.p99_seconds),
    format.count(rows),
    format.share(decided ? refused / decided : null),
    format.share(decided ? bucket.out_share : null),
    format.evidence(bucket.evidence),
  ];
  const line = create("tr", {});
  line.append(create("th", { scope: "row", textContent: format.time(bucket.times, seconds) }));
  line.append(...values.map((value) => create("td", { textContent: value })));
  return line;
}

element("models").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  choose(nameInAddress());
});
addEventListener("popstate", () => choose(nameInAddress()));

element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(element("token").value);
  element("token").value = "";
  update();
});

element("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  element("pause").setAttribute("aria-pressed", String(isPaused));
  element("pause").textContent = isPaused ? "Resume" : "Pause";
  if (isPaused) {
    stop();
    setStatus("Paused", "");
  } else update();
});

// A page in the background sends no requests.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else if (!isPaused) update();
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.repaint()));

update();
