// Maps of numbers, a cell of the canvas for each, several beside each other
// under one view that zooms: elements of a stage, attention weights.

// Cells of a view at least, each way.
const LEAST = 4;

const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

// panes: [{name, value(cell), full, hue, other}] (`full` takes all of the
// colour `hue`, minus `full` all of `other`); rows: [label]; end: where a row ends;
// levels: [{first, pool, count, cell(row, i)}], the finest last, each of `count`
// cells of `pool` elements from the element `first` on; start: {row, index};
// describe(row, index, cell) -> text; lines: what a row is.
function mapView({ panes, rows, end, levels, start, describe, square, lines = "rows" }) {
  const whole = levels[0];
  const all = { row: 0, rows: rows.length, first: whole.first, count: whole.count * whole.pool };
  let view = { ...all };
  let cursor = { ...start };
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const where = el("span", { class: "note" });
  const covers = (level) => view.first >= level.first && view.first + view.count <= level.first + level.count * level.pool;
  const holds = (level, i) => i >= level.first && i < level.first + level.count * level.pool;
  const cellOf = (level, row, i) => level.cell(row, Math.floor((i - level.first) / level.pool));
  // The finest cells that are there for all of the view.
  const level = () => levels.findLast(covers) || whole;
  const canvases = panes.map((pane) => el("canvas", { role: "img", tabindex: 0, "aria-label": `${pane.name}: ${rows.length} rows; arrows move, plus and minus zoom` }));

  const draw = () => {
    const of = level();
    const from = Math.floor((view.first - of.first) / of.pool);
    const count = Math.max(1, Math.min(of.count - from, Math.ceil(view.count / of.pool)));
    canvases.forEach((canvas, i) => {
      canvas.width = count;
      canvas.height = view.rows;
      if (square) canvas.style.setProperty("--ratio", `${count} / ${Math.max(view.rows, count / 6)}`);
      paint(canvas, panes[i], (q, k) => of.cell(view.row + q, from + k));
      const { row, index } = cursor;
      const [x, y] = [(Math.floor((index - of.first) / of.pool) - from + 0.5) / count, (row - view.row + 0.5) / view.rows];
      const cross = canvas.nextSibling;
      cross.hidden = x < 0 || y < 0 || x > 1 || y > 1;
      cross.style.left = 100 * x + "%";
      cross.style.top = 100 * y + "%";
    });
    const cell = cellOf(levels.findLast((l) => holds(l, cursor.index)), cursor.row, cursor.index);
    readout.textContent = cell ? describe(cursor.row, cell.index, cell) : "";
    const last = Math.min(view.first + view.count, end) - 1;
    where.textContent = `${view.rows} of ${rows.length} ${lines}, ${view.first}–${last}` + (of.pool > 1 ? `; a cell shows the worst of ${of.pool}` : "");
    buttons[0].disabled = view.rows <= LEAST && count <= LEAST;
    buttons[1].disabled = buttons[2].disabled = view.rows === all.rows && view.count === all.count;
  };

  // Half or twice as much around the cursor, in the finest cells that go so far.
  const zoom = (factor) => {
    const sized = (now, most) => clamp(Math.round(now * factor), Math.min(LEAST, most), most);
    const around = (centre, n, most) => clamp(Math.round(centre - n / 2), 0, most - n);
    const [shown, count] = [sized(view.rows, all.rows), sized(view.count, all.count)];
    // Where coarse cells go no further, the fine ones may.
    const fits = (l) => count <= l.count * l.pool || (factor < 1 && count < LEAST * whole.pool);
    const of = levels.findLast((l) => holds(l, cursor.index) && fits(l)) || whole;
    const cells = clamp(Math.ceil(count / of.pool), Math.min(LEAST, of.count), of.count);
    const first = around((cursor.index - of.first) / of.pool, cells, of.count);
    view = { row: around(cursor.row, shown, all.rows), rows: shown, first: of.first + first * of.pool, count: cells * of.pool };
    draw();
  };
  const move = (dr, dc) => {
    const of = level();
    cursor.row = clamp(cursor.row + dr, 0, rows.length - 1);
    cursor.index = clamp(cursor.index + dc * of.pool, all.first, end - 1);
    if (cursor.row < view.row) view.row = cursor.row;
    if (cursor.row >= view.row + view.rows) view.row = cursor.row - view.rows + 1;
    if (cursor.index < view.first) view.first = Math.max(all.first, view.first - of.pool);
    if (cursor.index >= view.first + view.count) view.first += of.pool;
    draw();
  };
  const reset = () => {
    view = { ...all };
    draw();
  };
  const home = () => {
    cursor = { ...start };
    reset();
  };
  const button = (text, label, act) => el("button", { type: "button", "aria-label": label, onclick: act }, text);
  const buttons = [button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("Whole", "Show all of it", reset), button("Worst", "Back to the worst", home)];

  const figures = panes.map((pane, i) => {
    const canvas = canvases[i];
    const cell = (e) => {
      const box = canvas.getBoundingClientRect();
      const of = level();
      const k = clamp(Math.floor(((e.clientX - box.left) / box.width) * canvas.width), 0, canvas.width - 1);
      const q = clamp(Math.floor(((e.clientY - box.top) / box.height) * canvas.height), 0, canvas.height - 1);
      return { row: view.row + q, index: Math.min(end - 1, view.first + k * of.pool) };
    };
    canvas.addEventListener("pointermove", (e) => {
      if (e.pointerType !== "mouse") return;
      const { row, index } = cell(e);
      const under = cellOf(level(), row, index);
      if (under) readout.textContent = describe(row, under.index, under);
    });
    canvas.addEventListener("pointerleave", draw);
    canvas.addEventListener("click", (e) => {
      cursor = cell(e);
      draw();
    });
    canvas.addEventListener("dblclick", () => zoom(0.5));
    canvas.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      if (step) move(...step);
      else if (e.key === "+" || e.key === "=") zoom(0.5);
      else if (e.key === "-") zoom(2);
      else return;
      e.preventDefault();
    });
    return el("figure", {}, el("div", { class: "map" }, canvas, el("i", { class: "cross" })), el("figcaption", {}, pane.name), scale(pane));
  });
  draw();
  return el("div", { "--height": Math.max(60, Math.min(240, 12 * rows.length)), class: square ? "view square" : "view" },
    el("div", { class: "tools", role: "group", "aria-label": "Zoom" }, ...buttons, where), el("div", { class: "maps" }, ...figures), readout);
}

// The colours of a pane, from the least value to the largest.
function scale(pane) {
  const [least, cells] = [pane.other ? -pane.full : 0, 65];
  const canvas = el("canvas", { width: cells, height: 1, role: "img", "aria-label": `colours from ${short(least)} to ${short(pane.full)}` });
  paint(canvas, { ...pane, value: (cell) => cell.value }, (_, k) => ({ value: least + ((pane.full - least) * k) / (cells - 1) }));
  return el("div", { class: "scale" }, short(least), canvas, short(pane.full));
}

function paint(canvas, pane, cell) {
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const hex = styles.getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  };
  const [ground, up, down, wrong] = [colour("--surface"), colour(pane.hue), colour(pane.other || pane.hue), colour("--bad")];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let q = 0; q < canvas.height; q++) {
    for (let k = 0; k < canvas.width; k++) {
      const it = cell(q, k);
      const v = it ? pane.value(it) : undefined;
      // The square root shows small values too; NaN is as loud as can be.
      const t = v === undefined ? 0 : Number.isNaN(v) ? 1 : Math.sqrt(Math.min(1, Math.abs(v) / pane.full));
      const full = Number.isNaN(v) ? wrong : v < 0 ? down : up;
      for (let i = 0; i < 3; i++) image.data[(q * canvas.width + k) * 4 + i] = ground[i] + (full[i] - ground[i]) * t;
      image.data[(q * canvas.width + k) * 4 + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// Seven digits at most.
function value(x) {
  if (x === undefined || x === null) return "-";
  const v = Number(num(x).toPrecision(7));
  if (!Number.isFinite(v)) return short(x);
  return v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential() : String(v);
}

// Cells of a line, where one row is folded into lines.
const FOLD = 64;

// The elements of a stage where a fault begins: subject, f64, reference, difference. The one row of a decode step, which
// would be a strip, is folded into lines.
function elementMap(map) {
  const folded = map.positions.length === 1 && map.whole.f64[0].length > FOLD;
  const levelOf = (part) => ({
    first: part.first,
    pool: part.pool,
    count: Math.max(...part.f64.map((row) => row.length)),
    cell: (r, i) => {
      if (!part.f64[r] || part.f64[r][i] === undefined) return undefined;
      const other = part.reference[r][i];
      return {
        index: part.first + i * part.pool + (part.shown ? part.shown[r][i] : 0),
        subject: num(part.subject[r][i]), f64: num(part.f64[r][i]), reference: other === undefined ? undefined : num(other),
      };
    },
  });
  const long = FOLD * map.whole.pool;
  // Single elements are known around the worst one alone: as far as its line goes.
  const fold = (level) => {
    if (level.pool === map.whole.pool) return { ...level, count: FOLD, cell: (line, i) => level.cell(0, line * FOLD + i) };
    const line = Math.floor(map.index / long);
    const [from, to] = [Math.max(level.first, line * long), Math.min(level.first + level.count, (line + 1) * long)];
    return { first: from - line * long, pool: 1, count: to - from, cell: (at, i) => (at === line ? level.cell(0, from - level.first + i) : undefined) };
  };
  const known = [map.whole, map.near].filter(Boolean);
  const largest = (pick) => {
    const values = known.flatMap((part) => part.f64.flatMap((row, r) => row.map((_, i) => Math.abs(pick(part, r, i)))));
    return values.reduce((m, v) => (Number.isFinite(v) && v > m ? v : m), 0) || 1;
  };
  const should = largest((part, r, i) => num(part.f64[r][i]));
  const off = largest((part, r, i) => num(part.subject[r][i]) - num(part.f64[r][i]));
  const pane = (name, pick, full) => ({ name, value: pick, full, hue: "--plus", other: "--minus" });
  const alone = map.whole.reference.every((row) => !row.length);
  return mapView({
    panes: [
      pane("subject", (c) => c.subject, should),
      pane("f64, on the subject's operands", (c) => c.f64, should),
      alone ? null : pane("reference", (c) => c.reference, should),
      { name: "difference of subject and f64", value: (c) => Math.abs(c.subject - c.f64), full: off, hue: "--bad" },
    ].filter(Boolean),
    ...(folded ? {
      rows: Array.from({ length: Math.ceil(map.whole.f64[0].length / FOLD) }, (_, line) => line),
      lines: `lines of ${long} elements`,
      end: long,
      levels: known.map((part) => fold(levelOf(part))),
      start: { row: Math.floor(map.index / long), index: map.index % long },
    } : {
      rows: map.positions,
      end: map.width,
      levels: known.map(levelOf),
      start: { row: Math.max(0, map.positions.indexOf(map.at.position)), index: map.index },
    }),
    describe: (r, i, c) => `${at(map.positions[folded ? 0 : r])} [${i}]: subject ${value(c.subject)}, f64 ${value(c.f64)}` +
      (c.reference === undefined ? "" : `, reference ${value(c.reference)}`) + `; off by ${short(Math.abs(c.subject - c.f64))}`,
  });
}

// Attention weights of both sides and their difference: rows are queries.
function attentionMap(map) {
  const of = (side, r, i) => num(map[side][r][i]);
  const count = Math.max(0, ...map.subject.map((row) => row.length));
  const cell = (r, i) => (map.subject[r] && i < count ? { index: map.first_key + i, subject: of("subject", r, i), reference: of("reference", r, i) } : undefined);
  const off = (c) => Math.abs(c.subject - c.reference);
  let worst = { row: 0, index: map.first_key };
  map.subject.forEach((row, r) => row.forEach((_, i) => {
    if (off(cell(r, i)) > off(cell(worst.row, worst.index - map.first_key))) worst = { row: r, index: map.first_key + i };
  }));
  return mapView({
    panes: [
      { name: "subject", value: (c) => c.subject, full: 1, hue: "--plus" },
      { name: "reference", value: (c) => c.reference, full: 1, hue: "--plus" },
      { name: "difference", value: off, full: 1, hue: "--bad" },
    ],
    rows: map.queries,
    end: map.first_key + count,
    levels: [{ first: map.first_key, pool: 1, count, cell }],
    start: worst,
    describe: (r, i, c) => `${at(map.queries[r])} on ${at(i)}: subject ${short(c.subject)}, reference ${short(c.reference)}`,
    // The few rows of a decode step would be strips too low to touch.
    square: 4 * map.queries.length > count,
  });
}
