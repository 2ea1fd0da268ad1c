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

const MARKS = { diverged: "●", poisoned: "✕", disputed: "?", inherited: "", covered: "", alone: "", match: "", missing: "" };

// rows: [{label, title}], columns: [{label}], cell(r, c) -> {key, share, status, label} or null.
function grid(rows, columns, cell, choose, caption) {
  const cells = [];
  const body = rows.map((row, r) => {
    const line = columns.map((_, c) => {
      const it = cell(r, c);
      if (!it) return el("td", {});
      const td = el("td", { "data-key": it.key, role: "gridcell", tabindex: -1, title: it.label, "aria-label": it.label, "aria-selected": "false" }, MARKS[it.status] || "");
      if (it.status) td.classList.add(it.status);
      if (!["missing", "covered", "disputed"].includes(it.status)) tint(td, it.share);
      (cells[r] = cells[r] || [])[c] = td;
      return td;
    });
    return el("tr", { role: "row" }, el("th", { scope: "row", title: row.title }, row.label), ...line);
  });
  const head = el("tr", { role: "row" }, el("td", {}), ...columns.map((c) => el("th", { scope: "col" }, c.label)));
  const made = el("table", { class: "grid", role: "grid", "aria-label": caption }, el("thead", {}, head), el("tbody", {}, ...body));

  const all = cells.flat().filter(Boolean);
  if (all.length) all[0].tabIndex = 0;
  const focus = (td) => {
    all.forEach((other) => (other.tabIndex = -1));
    td.tabIndex = 0;
    td.focus();
  };
  made.addEventListener("click", (e) => {
    const td = e.target.closest("td[data-key]");
    if (!td) return;
    focus(td);
    choose(td.dataset.key);
  });
  made.addEventListener("keydown", (e) => {
    const td = e.target.closest("td[data-key]");
    if (!td) return;
    if (e.key === "Enter" || e.key === " ") {
      e.preventDefault();
      choose(td.dataset.key);
      return;
    }
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    let r = cells.findIndex((line) => line && line.includes(td));
    let c = cells[r].indexOf(td);
    // Past cells that are not there.
    do {
      r += step[0];
      c += step[1];
      if (r < 0 || c < 0 || r >= rows.length || c >= columns.length) return;
    } while (!(cells[r] && cells[r][c]));
    focus(cells[r][c]);
  });
  return made;
}

function stageGrid(side, choose) {
  const at = new Map(stages.map((s) => [s.name + "/" + s.layer, s]));
  const cell = (r, c) => {
    const s = at.get(names[r] + "/" + layers[c]);
    if (!s) return null;
    const local = s[side];
    const share = local ? num(local.used) : NaN;
    const words = local ? percent(share) + " of allowed" : "not judged";
    // A stage's status is about the subject; the reference only has its share.
    const status = side === "subject" || s.status === "missing" ? s.status : "";
    return { key: s.stage, share, status, label: `${s.stage}: ${s.status}, ${words}` };
  };
  return grid(names.map((n) => ({ label: n })), layers.map((l) => ({ label: l < 0 ? "–" : String(l) })), cell, choose, "Stages by layer");
}

// Positions in at most this many rows; neighbours share one and show the worst.
const MOST_ROWS = 256;

function positionGrid(side, name, choose) {
  const chosen = stages.filter((s) => (name === "all stages" || s.name === name) && s[side]);
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
    const last = Math.min(count, p + per) - 1;
    const text = per === 1 && tokens[p] !== undefined ? " " + spell(tokens[p]) : "";
    const label = (last > p ? `p${p}–p${last}` : `p${p}`) + text;
    rows.push({ label, title: label });
  }
  const cell = (r, c) => {
    const it = worst.get(r + "/" + used[c]);
    if (!it) return null;
    return { key: it.stage, share: it.share, status: "", label: `p${it.position} ${it.stage}: ${percent(it.share)} of allowed` };
  };
  return grid(rows, used.map((l) => ({ label: l < 0 ? "–" : String(l) })), cell, choose, "Tokens by layer");
}

function legend() {
  const sample = (words, status, share) => {
    const td = el("td", { "data-key": "" }, MARKS[status] || "");
    if (status) td.classList.add(status);
    if (share !== undefined) tint(td, share);
    return el("li", {}, el("table", { class: "grid", role: "presentation" }, el("tbody", {}, el("tr", {}, td))), words);
  };
  return [
    sample("little of what is allowed", "", 0.05),
    sample("all of it", "", 1),
    sample("diverged: an origin", "diverged", 1e3),
    sample("poisoned: NaN or infinity", "poisoned", 1e9),
    sample("inherited: right, on wrong operands", "inherited", 0.2),
    sample("disputed", "disputed"),
    sample("covered: within a later stage's segment", "covered"),
    sample("missing: not judged", "missing"),
  ];
}
