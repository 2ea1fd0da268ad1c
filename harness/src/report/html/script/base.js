"use strict";
// The report, and the small vocabulary in which the page is built. Text only
// ever enters it as text: nothing from the report is parsed as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const report = data.report;
const verdict = report.verdict;
const SIDES = ["subject", "reference"];

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

// `L07.q_rope` -> {layer: 7, name: "q_rope"}; stages outside the layers have -1.
function parse(stage) {
  const dot = stage.indexOf(".");
  return dot < 0
    ? { layer: -1, name: stage }
    : { layer: Number(stage.slice(1, dot)), name: stage.slice(dot + 1) };
}

const layerName = (layer) => (layer < 0 ? "–" : "L" + String(layer).padStart(2, "0"));

const stages = verdict.stages.map((s) => Object.assign({}, s, parse(s.stage)));
const stageOf = new Map(stages.map((s) => [s.stage, s]));
const names = [...new Set(stages.map((s) => s.name))];
const layers = [...new Set(stages.map((s) => s.layer))].sort((a, b) => a - b);
const findings = new Map(verdict.findings.map((f) => [f.stage, f]));

const tokens = report.run.tokens.concat(report.run.decoded);
const spell = (id) => (report.run.text[id] === undefined ? "id " + id : JSON.stringify(report.run.text[id]));

function place(p) {
  if (!p) return "";
  return "p" + p.position + (p.head === null || p.head === undefined ? "" : " h" + p.head) + (p.step ? " step" + p.step : "");
}

// A table: head is a list of [text, isNumber]; a row a list of cells.
function table(head, rows, caption) {
  const cell = (c, i) => el("td", { class: head[i][1] ? "n" : undefined }, c);
  return el(
    "table",
    { class: "plain", "aria-label": caption },
    el("thead", {}, el("tr", {}, ...head.map(([t, n]) => el("th", { scope: "col", class: n ? "n" : undefined }, t)))),
    el("tbody", {}, ...rows.map((row) => {
      const tr = el("tr", row.attributes || {}, ...(row.cells || row).map(cell));
      return tr;
    })),
  );
}

function options(select, values, chosen) {
  select.replaceChildren(...values.map((v) => el("option", { value: v, selected: v === chosen }, v)));
}
