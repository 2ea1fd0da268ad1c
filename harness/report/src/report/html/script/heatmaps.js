// Heatmaps are tables that the keyboard can walk: one cell is in the tab
// order, arrows move it, Enter chooses.

// How a share of what is allowed looks: up to 1 ever more of the calm colour,
// beyond it red, deeper with each power of ten.
function tint(td, share) {
  if (share > 1) {
    td.classList.add("over");
    td.style.setProperty("--u", Math.min(100, 62 + 8 * Math.log10(share)));
  } else if (share >= 0) {
    td.style.setProperty("--u", 4 + 66 * share);
  }
}

const MARKS = { diverged: "●", poisoned: "✕", disputed: "?", inherited: "", covered: "", alone: "", match: "", missing: "", inconclusive: "" };

// Makes `cells`, a matrix with gaps, one tab stop. A cell says by `data-key`
// what it chooses.
function roving(root, cells, choose) {
  const first = cells.flat().find(Boolean);
  if (first) first.setAttribute("tabindex", 0);
  root.dataset.roving = "";
  const focus = (cell) => {
    tabStop(root, cell);
    cell.focus();
  };
  const pick = (cell) => choose(cell.dataset.key, cell.dataset.at === undefined ? undefined : Number(cell.dataset.at));
  root.addEventListener("click", (e) => {
    const cell = e.target.closest("[data-key]");
    if (!cell) return;
    focus(cell);
    pick(cell);
  });
  root.addEventListener("keydown", (e) => {
    const cell = e.target.closest("[data-key]");
    if (!cell) return;
    if (e.key === "Enter" || e.key === " ") {
      e.preventDefault();
      pick(cell);
      return;
    }
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    let r = cells.findIndex((line) => line && line.includes(cell));
    let c = cells[r].indexOf(cell);
    // Past cells that are not there, in a row of its own length.
    const widest = Math.max(...cells.map((line) => (line ? line.length : 0)));
    do {
      r += step[0];
      c += step[1];
      if (r < 0 || c < 0 || r >= cells.length || c >= widest) return;
    } while (!(cells[r] && cells[r][c]));
    focus(cells[r][c]);
  });
  return root;
}

// Puts the tab stop of `root` on `cell`.
function tabStop(root, cell) {
  for (const other of root.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", -1);
  cell.setAttribute("tabindex", 0);
}

// Marks what shows `key`, at position `at` where a cell has one, and lets the
// tab stop begin there.
function mark(key, at) {
  for (const root of document.querySelectorAll("[data-roving]")) {
    const hits = [];
    for (const cell of root.querySelectorAll("[data-key]")) {
      const hit = cell.dataset.key === key && (at === undefined || cell.dataset.at === undefined || Number(cell.dataset.at) === at);
      if (hit) hits.push(cell);
      const name = cell.getAttribute("role") === "gridcell" ? "aria-selected" : "aria-pressed";
      if (cell.getAttribute(name) !== String(hit)) cell.setAttribute(name, String(hit));
    }
    if (hits.length && !hits.some((cell) => cell.getAttribute("tabindex") === "0")) tabStop(root, hits[0]);
  }
}

// rows: [{label, title}], columns: [{label}], cell(r, c) -> {key, at, share, status, label} or null.
function grid(rows, columns, cell, choose, caption) {
  const cells = [];
  const body = rows.map((row, r) => {
    const line = columns.map((_, c) => {
      const it = cell(r, c);
      if (!it) return el("td", {});
      const td = el("td", { "data-key": it.key, "data-at": it.at, role: "gridcell", tabindex: -1, title: it.label, "aria-label": it.label, "aria-selected": "false" }, MARKS[it.status] || "");
      if (it.status) td.classList.add(it.status);
      if (!["missing", "inconclusive", "covered", "disputed"].includes(it.status)) tint(td, it.share);
      (cells[r] = cells[r] || [])[c] = td;
      return td;
    });
    return el("tr", { role: "row" }, el("th", { scope: "row", title: row.title }, row.label), ...line);
  });
  const head = el("tr", { role: "row" }, el("td", {}), ...columns.map((c) => el("th", { scope: "col" }, c.label)));
  const made = el("table", { class: "grid", role: "grid", "aria-label": caption }, el("thead", {}, head), el("tbody", {}, ...body));
  return roving(made, Array.from(cells), choose);
}

const layerLabel = (l) => ({ label: l < 0 ? "–" : String(l) });

// `only` leaves the stages of one status.
function stageGrid(side, only, choose) {
  const shown = stages.filter((s) => !only || s.status === only);
  const of = new Map(shown.map((s) => [s.name + "/" + s.layer, s]));
  const rows = names.filter((n) => shown.some((s) => s.name === n));
  const cell = (r, c) => {
    const s = of.get(rows[r] + "/" + layers[c]);
    if (!s) return null;
    const local = s[side];
    const share = local ? shareOf(local) : NaN;
    const words = !local || !local.rows && !local.extent ? "not judged" : local.non_finite ? used(local) : used(local) + " of allowed";
    // A stage's status is about the subject; the reference only has its share.
    const status = side === "subject" || ["missing", "inconclusive"].includes(s.status) ? s.status : "";
    return { key: s.stage, share, status, label: `${s.stage}: ${s.status}, ${words}` };
  };
  return grid(rows.map((n) => ({ label: n })), layers.map(layerLabel), cell, choose, "Stages by layer");
}

// Positions in at most this many rows; neighbours share one and show the worst.
const MOST_ROWS = 256;

function positionGrid(side, name, choose) {
  const chosen = stages.filter((s) => (name === "" || s.name === name) && s[side]);
  const count = Math.max(0, ...chosen.map((s) => s[side].spread.positions.length));
  const per = Math.max(1, Math.ceil(count / MOST_ROWS));
  const used = layers.filter((l) => chosen.some((s) => s.layer === l));
  const worst = new Map();
  for (const s of chosen) {
    s[side].spread.positions.forEach((share, p) => {
      if (share === null) return;
      const key = Math.floor(p / per) + "/" + s.layer;
      const seen = worst.get(key);
      if (!seen || share > seen.share) worst.set(key, { share, stage: s.stage, position: p });
    });
  }
  const rows = [];
  for (let p = 0; p < count; p += per) {
    // Of positions that were not judged there is nothing to show.
    if (!used.some((layer) => worst.has(p / per + "/" + layer))) continue;
    const last = Math.min(count, p + per) - 1;
    const label = last > p ? `p${p}–p${last}` : at(p);
    rows.push({ label, title: label, group: p / per });
  }
  const cell = (r, c) => {
    const it = worst.get(rows[r].group + "/" + used[c]);
    if (!it) return null;
    return { key: it.stage, at: it.position, share: it.share, status: "", label: `p${it.position} ${it.stage}: ${percent(it.share)} of allowed` };
  };
  return grid(rows, used.map(layerLabel), cell, choose, "Tokens by layer");
}

// What the colours say; only of what is there.
function legend() {
  const sample = (words, status, ...shares) => {
    const cells = (shares.length ? shares : [undefined]).map((share) => {
      const td = el("td", {}, MARKS[status] || "");
      td.classList.add("shade");
      if (status) td.classList.add(status);
      if (share !== undefined) tint(td, share);
      return td;
    });
    return el("li", {}, el("table", { class: "grid", role: "presentation" }, el("tbody", {}, el("tr", {}, ...cells))), words);
  };
  const there = new Set(stages.map((s) => s.status));
  return [
    sample("0, 25, 50, 75 and 100 % of what is allowed", "", 0, 0.25, 0.5, 0.75, 1),
    ...(stages.some((s) => SIDES.some((side) => s[side] && shareOf(s[side]) > 1)) ? [sample("2, 100 and 10,000 times as much", "", 2, 1e2, 1e4)] : []),
    ...[
      ["diverged", "diverged: an origin", 1e3],
      ["poisoned", "poisoned: NaN or infinity", 1e9],
      ["inherited", "inherited: right, on wrong operands", 0.2],
      ["disputed", "disputed"],
      ["covered", "covered: within a later stage's segment"],
      ["missing", "missing: not judged"],
      ["inconclusive", "inconclusive: allowed as much as a fault may be"],
    ].filter(([status]) => there.has(status)).map(([status, words, share]) => sample(words, status, share)),
  ];
}
