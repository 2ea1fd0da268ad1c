// Small charts in SVG.

const NARROW = 372;
const WIDE = 760;
// Points that a narrow chart has room for.
const FEW = 8;

// A drawing of W by H in a box of its own, which scrolls sideways where the
// screen is too narrow for its text to be read.
function drawing(W, H, label, ...children) {
  const size = W === WIDE ? "wide" : "narrow";
  return el("div", { class: "scroll" }, svg("svg", { class: size, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label }, ...children));
}

// Powers of ten that a log axis from `low` to `high` shows.
function decades(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.max(first + 1, Math.ceil(Math.log10(high)));
  const step = Math.max(1, Math.ceil((last - first) / 6));
  const all = [];
  for (let d = first; d <= last; d += step) all.push(d);
  return { first, last, all };
}

const finite = (xs) => xs.filter((v) => Number.isFinite(v) && v > 0);

// lines: [{class, label, values: [[x, y]]}]; y logarithmic, zeros at the foot.
function lineChart(lines, xs, label) {
  const values = finite(lines.flatMap((l) => l.values.map(([, y]) => y)));
  const [W, H, L, B] = [xs.length > FEW ? WIDE : NARROW, 260, 52, 22];
  const axis = decades(Math.min(...values, 1e-7), Math.max(...values, 1e-6));
  const x = (i) => L + ((W - L - 8) * i) / Math.max(1, xs.length - 1);
  const y = (v) => {
    const t = (Math.log10(Math.max(v, 10 ** axis.first)) - axis.first) / (axis.last - axis.first);
    return H - B - (H - B - 8) * Math.min(1.02, t);
  };
  const ticks = axis.all.flatMap((d) => [
    svg("line", { class: "axis", x1: L, x2: W - 8, y1: y(10 ** d), y2: y(10 ** d) }),
    svg("text", { x: L - 6, y: y(10 ** d) + 4, "text-anchor": "end" }, "1e" + d),
  ]);
  const every = Math.ceil(xs.length / 16);
  const marks = xs.map((t, i) => (i % every ? null : svg("text", { x: x(i), y: H - 5, "text-anchor": "middle" }, t)));
  const drawn = lines.flatMap((line) => {
    const points = line.values.filter(([, v]) => !Number.isNaN(v)).map(([i, v]) => [x(i), y(Number.isFinite(v) ? v : 10 ** axis.last)]);
    const path = svg("polyline", { class: line.class, points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") });
    const dots = points.map(([cx, cy], i) =>
      svg("circle", { class: line.class, cx, cy, r: 2.2 }, svg("title", {}, `${line.label} ${xs[line.values[i][0]]}: ${short(line.values[i][1])}`)));
    return line.class === "allowed" ? [path] : [path, ...dots];
  });
  const key = el("div", { class: "key" }, ...lines.map((l) => el("span", {}, el("i", { class: l.class }), l.label)));
  return el("div", {}, drawing(W, H, label, ...ticks, ...marks, ...drawn), key);
}

function growth(name) {
  const chosen = stages.filter((s) => s.name === name);
  const values = (pick) => chosen.map((s, i) => [i, pick(s)]).filter(([, v]) => !Number.isNaN(v));
  return lineChart(
    [
      { class: "subject", label: "local, subject", values: values((s) => (s.subject ? num(s.subject.residual) : NaN)) },
      { class: "reference", label: "local, reference", values: values((s) => (s.reference ? num(s.reference.residual) : NaN)) },
      { class: "allowed", label: "allowed to the subject", values: values((s) => (s.subject ? num(s.subject.allowed) : NaN)) },
      { class: "global", label: "global, subject against reference", values: values((s) => (s.global ? num(s.global.error) : NaN)) },
    ],
    chosen.map((s) => layerName(s.layer)),
    `Error of ${name} over layers`,
  );
}

// Elements by the share of what they are allowed, in powers of two; both sides.
function histogram(stage) {
  const one = index.bin_of_one;
  const counts = SIDES.map((side) => (stage[side] ? stage[side].spread.elements : []));
  const length = Math.max(...counts.map((c) => c.length), one + 2);
  const first = Math.max(0, Math.min(...counts.map((c) => { const i = c.findIndex((n) => n > 0); return i < 0 ? one - 8 : i; }), one - 8));
  const top = Math.max(1, ...counts.flat());
  const [W, H, B] = [NARROW, 120, 20];
  const width = W / (length - first);
  // Logarithmic, so that one wrong element among millions is seen.
  const y = (n) => ((H - B - 4) * Math.log1p(n)) / Math.log1p(top);
  const bars = SIDES.flatMap((side, s) => counts[s].map((n, i) => {
    if (!n || i < first) return null;
    const over = i >= one ? "bar-over" : "bar-" + side;
    const words = `${side}: ${n} elements use ${i === 0 ? "less than" : "about"} ${short(2 ** (i - one + (i === 0 ? 1 : 0)))} of what is allowed`;
    return svg("rect", { class: s === 0 ? over : "bar-reference", x: (i - first) * width + (s * width) / 2, y: H - B - y(n), width: Math.max(1, width / 2 - 1), height: y(n) }, svg("title", {}, words));
  }));
  const limit = (one - first) * width;
  const ticks = [];
  const every = Math.ceil((length - first) / 8);
  for (let i = first; i < length - every / 2; i += every) ticks.push(svg("text", { x: (i - first) * width, y: H - 5 }, short(2 ** (i - one))));
  return drawing(W, H, "Histogram of elements by share of what is allowed",
    svg("line", { class: "axis", x1: 0, x2: W, y1: H - B, y2: H - B }), ...bars, ...ticks,
    svg("line", { class: "limit", x1: limit, x2: limit, y1: 0, y2: H - B }));
}

// Bars over positions; `limit` draws a line; logarithmic above and below it.
function bars(values, options) {
  const known = finite(values);
  const [W, H, L, B] = [options.width || NARROW, options.height || 104, 46, 18];
  const axis = decades(Math.min(...known, options.limit || Infinity, options.floor || 1e-3), Math.max(...known, options.limit || 0, options.floor || 1e-3));
  const y = (v) => (H - B - 6) * Math.max(0.01, Math.min(1, (Math.log10(v) - axis.first) / (axis.last - axis.first)));
  const width = (W - L) / Math.max(1, values.length);
  const drawn = values.flatMap((v, i) => {
    if (v === null || Number.isNaN(v)) return [];
    const h = v > 0 ? y(v) : 1;
    const over = options.limit !== undefined && v > options.limit;
    const at = { x: L + i * width, width: Math.max(0.6, width - (width > 4 ? 1.5 : 0)) };
    const chosen = options.chosen === i ? " chosen" : "";
    const bar = svg("rect", Object.assign({ class: (over || (options.bad && options.bad(i)) ? "bar-over" : "bar-subject") + chosen, y: H - B - h, height: h }, at));
    const hit = svg("rect", Object.assign({ class: "hit", y: 0, height: H - B, onclick: options.choose ? () => options.choose(i) : undefined }, at), svg("title", {}, options.title(i)));
    return [bar, hit];
  });
  const ticks = axis.all.map((d) => svg("text", { x: L - 6, y: H - B - y(10 ** d) + 4, "text-anchor": "end" }, "1e" + d));
  const every = Math.ceil(values.length / 12);
  const marks = values.map((_, i) => (i % every ? null : svg("text", { x: L + (i + 0.5) * width, y: H - 4, "text-anchor": "middle" }, options.mark(i))));
  const limit = options.limit === undefined ? null : svg("line", { class: "limit", x1: L, x2: W, y1: H - B - y(options.limit), y2: H - B - y(options.limit) });
  return drawing(W, H, options.label,
    svg("line", { class: "axis", x1: L, x2: W, y1: H - B, y2: H - B }), ...ticks, ...marks, ...drawn, limit);
}
