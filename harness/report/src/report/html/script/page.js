// The page: sections filled from a run, what a choice shows, and the way
// between runs.

let opened; // Index of the run; null: the overview.
let side, only, chosen, position;

// Of one run, the page is that run; of several, or where one is absent, an overview stands first.
const several = runs.length !== 1 || index.absent.length > 0;
const path = (...parts) => "#" + [...(several && opened !== null ? ["run", opened] : []), ...parts.map(encodeURIComponent)].join("/");

// The prompt of a run, and its number where several runs have this prompt.
const runName = (row) => row.cells[0] + (index.rows.filter((r) => r.cells[0] === row.cells[0]).length > 1 ? ` (run ${row.run + 1})` : "");

function overview() {
  opened = null;
  byId("run").hidden = true;
  byId("overview").hidden = false;
  const worst = index.rows.length ? index.rows[0].outcome : "incomplete";
  const outcome = worst === "match" && index.absent.length ? "incomplete" : worst;
  put("banner",
    el("p", { class: "what" }, el("span", { class: "badge " + outcome }, outcome.toUpperCase())),
    el("h1", { tabindex: -1 }, index.counts),
    ...index.absent.map((what) => el("p", { class: "absent" }, el("strong", {}, "Absent: "), what)),
    ...index.common.map((cause) => el("p", { class: "common" }, el("strong", {}, "One cause, "), cause.text, ": ",
      ...cause.runs.flatMap((run, i) => [i ? ", " : "", el("a", { href: "#run/" + run }, runName(index.rows.find((r) => r.run === run)))]))));
  const outcomes = [...new Set(index.rows.map((r) => r.outcome))];
  const show = (shown) => {
    const of = (outcome) => index.rows.filter((r) => !outcome || r.outcome === outcome);
    put("outcomes", ...(outcomes.length > 1 ? choice([["", `all ${index.rows.length}`], ...outcomes.map((o) => [o, `${o} ${of(o).length}`])], shown, show) : []));
    put("runs", table(
      [...index.head, "subject", "model"].map((h, i) => [h, index.numbers.includes(i)]),
      of(shown).map((r) => ({ attributes: { class: r.outcome === "diverged" ? "bad" : undefined }, cells: [
        el("a", { href: "#run/" + r.run }, runName(r)), el("span", { class: "status " + r.outcome }, r.cells[1]), ...r.cells.slice(2), r.subject, r.model] })), "Runs"));
  };
  show("");
  put("footer", "");
  document.title = "qdiff: " + index.counts;
}

function banner() {
  const { word, headline, remedies, open, folded, next } = data.summary;
  const list = (lines) => el("dl", {}, ...lines.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)]));
  put("banner",
    el("p", { class: "what" }, el("span", { class: "badge " + report.outcome }, word)),
    el("h1", { tabindex: -1 }, headline),
    ...remedies.map((text) => el("p", { class: "remedy" }, el("strong", {}, "Remedy "), text)),
    list(open),
    verdict.findings.length ? el("div", { class: "next" }, el("p", { class: "note" }, `Next, ${next[1]}`), command(next[0])) : null,
    folded.length ? el("details", {}, el("summary", {}, folded.map(([label]) => label).filter((l, i, all) => all.indexOf(l) === i).join(", ")), list(folded)) : null,
  );
  document.title = data.title;
}

// Links to what is on the page.
function contents() {
  const shown = [...document.querySelectorAll("main section")].filter((s) => s.offsetParent);
  const links = shown.map((s) => el("a", { href: path("at", s.id.slice("at-".length)) }, s.querySelector("h2").textContent));
  put("contents", several && opened !== null ? el("a", { href: "#at/runs", class: "back" }, "← all runs") : null, ...links);
}

function controls() {
  const redraw = () => {
    controls();
    drawStages();
    drawPositions();
  };
  put("side", ...choice(SIDES.map((s) => [s, s]), side, (s) => {
    side = s;
    redraw();
  }));
  const count = (status) => stages.filter((s) => s.status === status).length;
  const there = [...new Set(stages.map((s) => s.status))].sort((a, b) => count(a) - count(b));
  put("filter", ...(there.length > 1 ? choice([["", `all ${stages.length}`], ...there.map((s) => [s, `${s} ${count(s)}`])], only, (s) => {
    only = s;
    redraw();
    drawTable();
  }) : []));
}

function drawStages() {
  put("stages", stageGrid(side, only, choose));
  mark(chosen, position);
}

function drawPositions() {
  put("positions", positionGrid(side, byId("positions-stage").value, choose));
  mark(chosen, position);
}

function drawTable() {
  const t = data.table;
  const rows = t.rows.filter(([name]) => !only || stages.some((s) => s.name === name && s.status === only));
  put("table", table(t.head.map((h, i) => [h, t.numbers.includes(i)]), rows, "Stages"));
}

let drawnLayer = null;
function drawGraph(layer) {
  if (layer === drawnLayer) return;
  drawnLayer = layer;
  byId("graph-layer").value = String(layer);
  put("graph", layerGraph(layer, choose));
}

// Shows a stage, and one position of it where that was chosen.
function show(stage, p) {
  [chosen, position] = [stage.stage, p];
  drawGraph(stage.layer);
  mark(chosen, p);
  put("panel", ...details(stage, p));
  byId("more").hidden = false;
  byId("detail").scrollTop = 0;
}

// The same where the reader chose it, and the address says so.
function choose(key, p) {
  const stage = stageOf.get(key);
  if (!stage) return;
  show(stage, p);
  const here = path("stage", key);
  if (location.hash !== here) history.replaceState(null, "", here);
}

// What was computed instead, where it was solved for.
const solved = (f) => f.solution && (f.solution.when ? `${f.solution.what}, ${f.solution.when}` : f.solution.what);

// Where a cause of the catalogue holds, if other tokens told that it does not everywhere.
const under = (f) => (f.trial && f.trial.outcome === "narrowed" ? `, ${f.trial.when}` : "");

// Origins with one cause share a line; without a cause, those of one stage name
// that look alike.
function origins() {
  const differs = report.tokens && report.tokens.difference;
  const any = verdict.findings.length || report.weights.mismatches.length || differs;
  byId("at-findings").hidden = !any;
  if (!any) return;
  const groups = new Map();
  for (const f of verdict.findings) {
    const key = JSON.stringify([solved(f) || (f.cause ? f.cause.name : parse(f.stage).name), f.shape]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(f);
  }
  const link = (f) => el("button", { type: "button", class: "link", onclick: () => choose(f.stage) }, f.stage);
  const rows = [...groups.values()].map((all) => {
    const f = all[0];
    // The first of each name, and the last of all.
    const firsts = all.filter((o, i) => all.findIndex((x) => parse(x.stage).name === parse(o.stage).name) === i).slice(0, 4);
    const last = all.at(-1);
    const more = all.length > firsts.length ? el("div", {}, `and ${all.length - firsts.length} more, to `, link(last)) : null;
    return { attributes: { class: "bad" }, cells: [
      el("div", {}, ...firsts.flatMap((o, i) => [i ? " " : "", link(o)]), more),
      solved(f) || (f.cause ? el("div", {}, f.cause.story, under(f), " (", el("code", {}, f.cause.name), ")") : (f.evident || f.unwritten ? f.shape : "no known cause. " + f.shape)),
      f.cause ? `${short(f.cause.before)} → ${short(f.cause.after)}` : "",
      (f.unread ? "Wrong in the capture alone: the engine went on from the right values. " : "") + (f.cause ? f.cause.remedy : f.remedy || ""),
    ] };
  });
  const before = report.weights.mismatches.map((m) => ({ attributes: { class: "bad" }, cells: [
    el("code", {}, m.tensor), `${m.rows} rows of the tensor (${m.format}) are read otherwise than by ggml; row ${m.row} [${m.index}] is ${short(m.got)} for ${short(m.want)}`, "", "mend the decoding of this format"] }));
  const token = (t) => (t ? `${t.text} (id ${t.id})` : "nothing");
  if (differs) before.push({ attributes: { class: "bad" }, cells: [
    el("code", {}, "tokens"), `token ${differs.index} at byte ${differs.at} is ${token(differs.subject)} to the engine, ${token(differs.reference)} to llama.cpp`,
    "", `look at the rule that cut it off: ${differs.rule}`] });
  put("origins", table([["stage", false], ["cause", false], ["residual, explained to", true], ["remedy", false]], [...before, ...rows], "Origins"));
}

function maps() {
  const elements = verdict.elements || [];
  byId("at-elements").hidden = !elements.length;
  const show = (i) => {
    const map = elements[i];
    put("elements-stage", ...(elements.length > 1 ? choice(elements.map((m, j) => [j, m.stage]), i, show) : []));
    put("elements", el("h3", {}, `${map.stage}, worst element at ${place(map.at)} [${map.index}]`), elementMap(map));
  };
  if (elements.length) show(0);

  const heads = verdict.attention;
  byId("at-attention").hidden = !heads.length;
  if (!heads.length) return;
  const of = (stage) => heads.filter((m) => m.stage === stage);
  const attention = (map) => {
    const all = [...of(map.stage)].sort((a, b) => a.head - b.head);
    options(byId("attention-layer"), [...new Set(heads.map((m) => m.stage))].map((s) => [s, layerName(parse(s).layer)]), map.stage);
    options(byId("attention-head"), all.map((m) => [String(m.head), `${m.head}${m.flagged ? ", at fault" : m === of(map.stage)[0] ? ", differs most" : ""}`]), String(map.head));
    put("attention", el("h3", {}, `${map.stage} head ${map.head}, ${map.step ? "decode step " + map.step : "prefill"}`), attentionMap(map));
  };
  byId("attention-layer").onchange = (e) => attention(of(e.target.value)[0]);
  byId("attention-head").onchange = (e) => attention(of(byId("attention-layer").value).find((m) => String(m.head) === e.target.value));
  attention(heads[0]);
}

function logits() {
  const rows = verdict.logits;
  byId("at-logits").hidden = !rows.length;
  if (!rows.length) return;
  const differ = (r) => !r.subject[0] || !r.reference[0] || r.subject[0].token !== r.reference[0].token;
  const margin = (list) => (list.length > 1 ? short(num(list[0].logit) - num(list[1].logit)) : "-");
  const best = (list) => (list[0] ? `${spell(list[0].token)} ${(100 * num(list[0].probability)).toFixed(1)} %` : "none");
  const list = (r, name) => el("div", {}, el("h3", {}, name), el("div", { class: "scroll" }, table(
    [["token", false], ["id", true], ["logit", true], ["probability", true]],
    r[name].map((c) => [spell(c.token), String(c.token), num(c.logit).toFixed(3), (100 * num(c.probability)).toFixed(2) + " %"]), name)));
  const pick = (i) => {
    put("choices",
      el("p", {}, `After ${at(rows[i].position)}: KL ${short(rows[i].kl)}, logits differ by up to ${short(rows[i].error)}.`),
      el("div", { class: "pair" }, ...SIDES.map((s) => list(rows[i], s))));
    byId("logits").querySelectorAll("tbody tr").forEach((tr, j) => tr.setAttribute("aria-selected", String(i === j)));
  };
  put("kl", bars(rows.map((r) => num(r.kl)), { width: WIDE, floor: 1e-6, label: "KL divergence by position",
    bad: (i) => differ(rows[i]), title: (i) => `after ${at(rows[i].position)}: KL ${short(rows[i].kl)}`, mark: (i) => String(rows[i].position), choose: pick }));
  put("logits", table(
    [["after", false], ["KL", true], ["differ by", true], ["subject says", false], ["margin", true], ["reference says", false], ["margin", true]],
    rows.map((r, i) => ({ attributes: { class: differ(r) ? "bad" : undefined }, cells: [
      el("button", { type: "button", class: "link", onclick: () => pick(i) }, at(r.position)),
      short(r.kl), short(r.error), best(r.subject), margin(r.subject), best(r.reference), margin(r.reference)] })), "Logits by position"));
  const first = rows.findIndex(differ);
  pick(first < 0 ? rows.length - 1 : first);
}

function repeat() {
  const [next, why] = data.summary.next;
  put("repeat", command(data.summary.repeat, "command"), el("p", {}, `Next, ${why}:`), command(next));
  const m = report.machine;
  put("footer", `qdiff ${report.qdiff}; ${[m.system, m.cpu, m.cores + " cores"].filter(Boolean).join(", ")}; model sha256 ${report.model.sha256}`);
}

function selects() {
  const layered = names.filter((n) => stages.some((s) => s.name === n && s.layer >= 0));
  const first = verdict.findings.length ? parse(verdict.findings[0].stage).name : null;
  const plain = (list) => list.map((n) => [n, n]);
  options(byId("positions-stage"), [["", "all stages"], ...plain(names)], "");
  options(byId("growth-stage"), plain(layered.length ? layered : names), layered.includes(first) ? first : layered[layered.length - 1]);
  options(byId("graph-layer"), layers.map((l) => [String(l), l < 0 ? "outside the layers" : layerName(l)]));
  const grow = () => put("growth", growth(byId("growth-stage").value));
  byId("positions-stage").onchange = drawPositions;
  byId("growth-stage").onchange = grow;
  byId("graph-layer").onchange = (e) => {
    drawGraph(Number(e.target.value));
    mark(chosen, position);
  };
  grow();
}

// Draws run `i`. Where a fault begins, its first stage is chosen; where none
// does, nothing is.
function openRun(i) {
  load(i);
  [opened, side, only, chosen, position, drawnLayer] = [i, "subject", "", null, undefined, null];
  byId("overview").hidden = true;
  byId("run").hidden = false;
  byId("run").dataset.outcome = report.outcome;
  banner();
  controls();
  put("legend", ...legend());
  selects();
  drawStages();
  drawPositions();
  const graph = stages.some((s) => s.inputs.length);
  byId("at-graph").hidden = !graph;
  put("panel", unchosen());
  byId("more").hidden = true;
  const first = verdict.findings.length ? stageOf.get(verdict.findings[0].stage) : null;
  drawGraph(first ? first.layer : layers.find((l) => l >= 0) ?? layers[0]);
  origins();
  maps();
  logits();
  drawTable();
  repeat();
  if (first) show(first);
}

// Goes where the address says.
function go() {
  const { run, stage, at } = address();
  const asked = several ? (run !== undefined && runs[run] ? Number(run) : null) : 0;
  if (asked !== opened) {
    if (asked === null) overview();
    else openRun(asked);
    contents();
    scrollTo(0, 0);
  }
  if (asked !== null && stageOf.has(stage) && stage !== chosen) choose(stage);
  const section = at !== undefined && byId("at-" + at);
  if (section) section.scrollIntoView();
}

go();
addEventListener("hashchange", () => {
  // `#main`, the way past the banner, is the browser's own.
  if (location.hash === "" || location.hash.includes("/")) go();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => opened !== null && maps());
byId("more").addEventListener("click", (e) => {
  const open = byId("detail").classList.toggle("open");
  e.target.setAttribute("aria-expanded", String(open));
  e.target.textContent = open ? "Less" : "More";
});
