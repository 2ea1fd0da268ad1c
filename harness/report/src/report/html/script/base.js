"use strict";
// The runs of the file, the one that is open, and the small vocabulary in which
// the page is built. Text only ever enters it as text: nothing from a report is
// parsed as markup.

const parseElement = (element) => JSON.parse(element.textContent);
const index = parseElement(document.querySelector("script.index"));
const runs = document.querySelectorAll("script.run");
const SIDES = ["subject", "reference"];

// Of the run that is open; `load` sets them.
let data, report, verdict, stages, stageOf, names, layers, findings, tokens;

// Takes run `i` out of the file; until it is asked for it stays text.
function load(i) {
  data = parseElement(runs[i]);
  report = data.report;
  verdict = report.verdict;
  verdict.findings.forEach((finding, i) => { finding.standing = data.standing[i]; });
  stages = verdict.stages.map((s) => Object.assign({ inputs: [] }, s, parse(s.stage)));
  stageOf = new Map(stages.map((s) => [s.stage, s]));
  names = [...new Set(stages.map((s) => s.name))];
  layers = [...new Set(stages.map((s) => s.layer))].sort((a, b) => a - b);
  findings = new Map(verdict.findings.map((f) => [f.stage, f]));
  tokens = report.run.tokens.concat(report.run.decoded);
}

const byId = (id) => document.getElementById(id);

// el("td", {class: "n"}, "text", otherElement)
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

// Replaces what `id` shows.
function put(id, ...children) {
  byId(id).replaceChildren(...children.filter((c) => c !== null && c !== undefined));
}

// A number as the report writes it: JSON has no NaN and no infinity.
const num = (x) => (x === null || x === undefined ? NaN : Number(x));

// Two digits; what the screen shows.
function short(x) {
  const v = num(x);
  if (v === 0) return "0";
  if (!Number.isFinite(v)) return Number.isNaN(v) ? "NaN" : v > 0 ? "inf" : "-inf";
  const size = Math.abs(v);
  return size >= 0.01 && size < 1000 ? v.toFixed(2) : v.toExponential(1);
}

const percent = (x) => (num(x) <= 10 ? Math.ceil(num(x) * 100) + " %" : "over 1000 %");

// Where a value is NaN or infinite no share says how far off it is.
const used = (local) => (local.non_finite ? "not finite" : percent(local.used));
const shareOf = (local) => (local.non_finite ? Infinity : num(local.used));

// `L07.q_rope` -> {layer: 7, name: "q_rope"}; stages outside the layers have -1.
function parse(stage) {
  const dot = stage.indexOf(".");
  return dot < 0
    ? { layer: -1, name: stage }
    : { layer: Number(stage.slice(1, dot)), name: stage.slice(dot + 1) };
}

const layerName = (layer) => (layer < 0 ? "–" : "L" + String(layer).padStart(2, "0"));

const spell = (id) => (report.run.text[id] === undefined ? "id " + id : JSON.stringify(report.run.text[id]));

// A position with its token's text.
const at = (p) => `p${p}` + (tokens[p] === undefined ? "" : " " + spell(tokens[p]));

function place(p) {
  if (!p) return "";
  return "p" + p.position + (p.head === null || p.head === undefined ? "" : " h" + p.head) + (p.step ? " step" + p.step : "");
}

// A table: head is a list of [text, isNumber]; a row a list of cells. Each cell repeats its heading, for a phone stacks cells.
function table(head, rows, caption) {
  const cell = (c, i) => el("td", { class: head[i][1] ? "n" : undefined, "data-label": head[i][0] }, c);
  return el(
    "table",
    { class: "plain", "aria-label": caption },
    el("thead", {}, el("tr", {}, ...head.map(([t, n]) => el("th", { scope: "col", class: n ? "n" : undefined }, t)))),
    el("tbody", {}, ...rows.map((row) => el("tr", row.attributes || {}, ...(row.cells || row).map(cell)))),
  );
}

function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
}

// Buttons of which one is pressed.
function choice(values, chosen, pick) {
  return values.map(([value, text]) => el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => pick(value) }, text));
}

// A command, and a button that puts it on the clipboard.
function command(text, id) {
  const pre = el("pre", { id }, text);
  const button = el("button", { type: "button", class: "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // No clipboard for this page: selected, it is one key away.
      getSelection().selectAllChildren(pre);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  } }, "Copy");
  return el("div", { class: "command" }, pre, button);
}

// Where the reader is, as the address says it: `#run/2/stage/L00.q_rope`, `#at/glossary`.
// The slash keeps an address apart from every id of an element.
function address() {
  const parts = location.hash.slice(1).split("/");
  const said = { run: undefined, stage: undefined, at: undefined };
  for (let i = 0; i + 1 < parts.length; i += 2) {
    if (!(parts[i] in said)) continue;
    try {
      said[parts[i]] = decodeURIComponent(parts[i + 1]);
    } catch {
      // No address of this page.
    }
  }
  return said;
}
