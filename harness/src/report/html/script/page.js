// The page: sections filled from the report, and what a choice shows.

let side = "subject";
let chosen = null;

function banner() {
  const lines = data.summary.lines.flat();
  put("banner",
    el("span", { class: "badge " + report.outcome }, data.summary.word),
    el("h1", {}, data.summary.headline),
    el("dl", {}, ...lines.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)])),
  );
}

function sides() {
  const press = (name) => el("button", { type: "button", "aria-pressed": String(name === side), onclick: () => {
    side = name;
    sides();
    drawStages();
    drawPositions();
  } }, name);
  put("side", ...SIDES.map(press));
}

function mark(key) {
  for (const td of document.querySelectorAll("td[data-key]")) td.setAttribute("aria-selected", String(td.dataset.key === key));
}

function drawStages() {
  put("stages", stageGrid(side, choose));
  mark(chosen);
}

function drawPositions() {
  put("positions", positionGrid(side, byId("positions-stage").value, choose));
  mark(chosen);
}

const figures = (stage) => {
  const row = (label, pick) => [label, ...SIDES.map((s) => (stage[s] ? pick(stage[s]) : "-"))];
  return table([["", false], ["subject", true], ["reference", true]], [
    row("local residual", (l) => short(l.residual)),
    row("allowed", (l) => short(l.allowed)),
    row("used, worst", (l) => percent(l.used)),
    row("at", (l) => place(l.at || l.first_bad)),
    row("rows beyond", (l) => `${l.bad_rows} of ${l.rows}`),
  ], "Figures of the stage");
};

function elements(local) {
  const some = local.spread.worst.length ? local.spread.worst : local.worst ? [local.worst] : [];
  const all = local.non_finite ? [local.non_finite, ...some] : some;
  const value = (x) => (x === undefined || x === null ? "-" : Number.isFinite(num(x)) ? num(x).toPrecision(7) : short(x));
  return el("div", { class: "scroll" }, table(
    [["row", false], ["index", true], ["subject", true], ["f64", true], ["reference", true], ["allowed", true]],
    all.map((e) => [place(e.place), String(e.index), value(e.got), value(e.want), value(e.other), short(e.allowed)]), "Worst elements"));
}

function cause(finding) {
  if (!finding) return null;
  const c = finding.cause;
  return el("div", { class: "cause" }, ...(c
    ? [el("p", {}, el("strong", {}, c.story), " (", el("code", {}, c.name), ")"),
       el("p", {}, `Explains the residual ${short(c.before)} → ${short(c.after)}. `, el("strong", {}, "Remedy: "), c.remedy)]
    : [el("p", {}, el("strong", {}, "No known cause. "), finding.shape)]));
}

function command(stage) {
  const layer = stage.layer < 0 ? "" : ` --layers ${stage.layer}`;
  return `${report.run.command} --stages '${stage.name}'${layer} --full`;
}

function choose(key) {
  const stage = stageOf.get(key);
  if (!stage) return;
  chosen = key;
  mark(key);
  const local = stage.subject;
  const shares = local ? local.spread.positions : [];
  const global = stage.global ? `Subject against reference: ${short(stage.global.error)} at ${place(stage.global.at)}.` : null;
  put("detail",
    el("h3", {}, stage.stage, " ", el("span", { class: "status " + stage.status }, stage.status)),
    cause(findings.get(key)),
    local && local.segment ? el("p", { class: "note" }, "Judged together with what was not captured before it: ", local.segment.join(", ")) : null,
    local && local.extent ? el("p", { class: "cause" }, local.extent) : null,
    figures(stage),
    global ? el("p", { class: "note" }, global) : null,
    ...(local ? [
      el("h4", {}, "Share of what is allowed, by position (subject)"),
      bars(shares.map((s) => (s === null ? null : num(s))), { limit: 1, floor: 1e-2, label: "Share by position",
        title: (i) => `p${i} ${tokens[i] === undefined ? "" : spell(tokens[i])}: ${percent(shares[i])} of allowed`, mark: (i) => String(i) }),
      el("h4", {}, "Elements by share of what is allowed"),
      histogram(stage),
      el("div", { class: "key" }, ...SIDES.map((s) => el("span", {}, el("i", { class: s }), s))),
      el("h4", {}, "Worst elements"),
      elements(local),
    ].filter(Boolean) : [el("p", { class: "note" }, stage.status === "covered"
      ? "Not captured; judged within the segment of a later stage."
      : "Not judged: it was not captured, or its operands were not.")]),
    el("h4", {}, "To look closer"),
    el("pre", {}, command(stage)),
  );
  if (location.hash.slice(1) !== key) history.replaceState(null, "", "#" + key);
}

function show(key) {
  choose(key);
  byId("detail").scrollIntoView({ block: "nearest" });
}

// Origins of one stage name with one cause share a line.
function origins() {
  const differs = report.tokens && report.tokens.difference;
  if (!verdict.findings.length && !report.weights.mismatches.length && !differs) return;
  const groups = new Map();
  for (const f of verdict.findings) {
    const key = JSON.stringify([parse(f.stage).name, f.cause && f.cause.name, f.shape]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(f);
  }
  const link = (f) => el("button", { type: "button", class: "link", onclick: () => show(f.stage) }, f.stage);
  const rows = [...groups.values()].map((all) => {
    const f = all[0];
    const more = all.length > 1 ? el("div", {}, `and ${all.length - 1} more, to `, link(all[all.length - 1])) : null;
    return { attributes: { class: "bad" }, cells: [
      el("div", {}, link(f), more),
      f.cause ? el("div", {}, f.cause.story, " (", el("code", {}, f.cause.name), ")") : "no known cause. " + f.shape,
      f.cause ? `${short(f.cause.before)} → ${short(f.cause.after)}` : "",
      f.cause ? f.cause.remedy : "",
    ] };
  });
  const before = report.weights.mismatches.map((m) => ({ attributes: { class: "bad" }, cells: [
    el("code", {}, m.tensor), `${m.rows} rows of the tensor (${m.format}) are read otherwise than by ggml; row ${m.row} [${m.index}] is ${short(m.got)} for ${short(m.want)}`, "", "mend the decoding of this format"] }));
  const token = (t) => (t ? `${t.text} (id ${t.id})` : "nothing");
  if (differs) before.push({ attributes: { class: "bad" }, cells: [
    el("code", {}, "tokens"), `token ${differs.index} at byte ${differs.at} is ${token(differs.subject)} to the engine, ${token(differs.reference)} to llama.cpp`,
    "", `look at the rule that cut it off: ${differs.rule}`] });
  byId("findings").hidden = false;
  put("origins", table([["stage", false], ["cause", false], ["residual, explained to", true], ["remedy", false]], [...before, ...rows], "Origins"));
}

function attention() {
  if (!verdict.attention.length) return;
  byId("attention-section").hidden = false;
  put("attention", ...verdict.attention.map(attentionMap));
}

function logits() {
  const rows = verdict.logits;
  if (!rows.length) return;
  byId("logits-section").hidden = false;
  const differ = (r) => !r.subject[0] || !r.reference[0] || r.subject[0].token !== r.reference[0].token;
  const margin = (list) => (list.length > 1 ? short(num(list[0].logit) - num(list[1].logit)) : "-");
  const best = (list) => (list[0] ? `${spell(list[0].token)} ${(100 * num(list[0].probability)).toFixed(1)} %` : "none");
  const after = (r) => `p${r.position} ${tokens[r.position] === undefined ? "" : spell(tokens[r.position])}`;
  const list = (r, name) => el("div", {}, el("h3", {}, name), el("div", { class: "scroll" }, table(
    [["token", false], ["id", true], ["logit", true], ["probability", true]],
    r[name].map((c) => [spell(c.token), String(c.token), num(c.logit).toFixed(3), (100 * num(c.probability)).toFixed(2) + " %"]), name)));
  const pick = (i) => {
    put("choices",
      el("p", {}, `After ${after(rows[i])}: KL ${short(rows[i].kl)}, logits differ by up to ${short(rows[i].error)}.`),
      el("div", { class: "pair" }, ...SIDES.map((s) => list(rows[i], s))));
    byId("logits").querySelectorAll("tbody tr").forEach((tr, j) => tr.setAttribute("aria-selected", String(i === j)));
  };
  put("kl", bars(rows.map((r) => num(r.kl)), { width: WIDE, floor: 1e-6, label: "KL divergence by position",
    bad: (i) => differ(rows[i]), title: (i) => `after ${after(rows[i])}: KL ${short(rows[i].kl)}`, mark: (i) => String(rows[i].position), choose: pick }));
  put("logits", table(
    [["after", false], ["KL", true], ["differ by", true], ["subject says", false], ["margin", true], ["reference says", false], ["margin", true]],
    rows.map((r, i) => ({ attributes: { class: differ(r) ? "bad" : undefined }, cells: [
      el("button", { type: "button", class: "link", onclick: () => pick(i) }, after(r)),
      short(r.kl), short(r.error), best(r.subject), margin(r.subject), best(r.reference), margin(r.reference)] })), "Logits by position"));
  const first = rows.findIndex(differ);
  pick(first < 0 ? rows.length - 1 : first);
}

function repeat() {
  const [next, why] = data.summary.next;
  put("repeat", el("pre", { id: "command" }, data.summary.repeat), el("p", {}, `Next, ${why}:`), el("pre", {}, next));
  const m = report.machine;
  put("footer", `qdiff ${report.qdiff}; ${[m.system, m.cpu, m.cores + " cores"].filter(Boolean).join(", ")}; model sha256 ${report.model.sha256}`);
}

function start() {
  banner();
  sides();
  put("legend", ...legend());
  const layered = names.filter((n) => stages.some((s) => s.name === n && s.layer >= 0));
  const first = verdict.findings.length ? parse(verdict.findings[0].stage).name : null;
  options(byId("positions-stage"), ["all stages", ...names], "all stages");
  options(byId("growth-stage"), layered.length ? layered : names, layered.includes(first) ? first : layered[layered.length - 1]);
  const grow = () => put("growth", growth(byId("growth-stage").value));
  byId("positions-stage").addEventListener("change", drawPositions);
  byId("growth-stage").addEventListener("change", grow);
  drawStages();
  drawPositions();
  grow();
  origins();
  attention();
  logits();
  const t = data.table;
  put("table", table(t.head.map((h, i) => [h, t.numbers.includes(i)]), t.rows, "Stages"));
  repeat();
  const worst = stages.reduce((a, s) => (s.subject && (!a || num(s.subject.used) > num(a.subject.used)) ? s : a), null);
  const asked = decodeURIComponent(location.hash.slice(1));
  const begin = stageOf.has(asked) ? asked : verdict.findings.length ? verdict.findings[0].stage : worst ? worst.stage : null;
  if (begin) choose(begin);
  window.addEventListener("hashchange", () => choose(decodeURIComponent(location.hash.slice(1))));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", attention);
}

start();
