// What is known of the chosen stage, beside the maps that choose it.

const figures = (stage) => {
  const row = (label, pick) => [label, ...SIDES.map((s) => (stage[s] ? pick(stage[s]) : "-"))];
  return table([["", false], ["subject", true], ["reference", true]], [
    row("local residual", (l) => (l.non_finite ? used(l) : short(l.residual))),
    row("allowed", (l) => (l.non_finite ? "-" : short(l.allowed))),
    row("used, worst", used),
    row("at", (l) => place(l.non_finite ? l.non_finite.place : l.at || l.first_bad)),
    row("rows beyond", (l) => `${l.bad_rows} of ${l.rows}`),
  ], "Figures of the stage");
};

function elements(local) {
  const some = local.spread.worst.length ? local.spread.worst : local.worst ? [local.worst] : [];
  const all = local.non_finite ? [local.non_finite, ...some] : some;
  return el("div", { class: "scroll" }, table(
    [["row", false], ["index", true], ["subject", true], ["f64", true], ["reference", true], ["allowed", true]],
    all.map((e) => [place(e.place), String(e.index), value(e.got), value(e.want), value(e.other), short(e.allowed)]), "Worst elements"));
}

function cause(finding) {
  if (!finding) return null;
  const [c, s] = [finding.cause, finding.solution];
  const words = finding.unread ? "But the engine went on from the right values: this is wrong in the capture alone."
    : finding.kept ? "But the stages that read it in this step had the right values: the cache is wrong, or only the capture of it." : null;
  const unread = words && el("p", {}, words);
  const standing = finding.standing ? el("p", {}, finding.standing.charAt(0).toUpperCase() + finding.standing.slice(1) + ".") : null;
  if (s) return el("div", { class: "cause" }, unread, el("p", {}, el("strong", {}, solved(finding))), standing);
  return el("div", { class: "cause" }, unread, ...(c
    ? [el("p", {}, el("strong", {}, c.story, under(finding)), " (", el("code", {}, c.name), ")"),
       standing, el("p", {}, el("strong", {}, "Remedy: "), c.remedy)]
    : [el("p", {}, el("strong", {}, "No known cause. "), finding.shape)]));
}

function closer(stage) {
  const layer = stage.layer < 0 ? "" : ` --layers ${stage.layer}`;
  return `${report.run.command} --stages '${stage.name}'${layer} --full`;
}

// One line that says most; all that a closed panel shows on a phone.
function gist(stage, position) {
  const local = stage.subject;
  if (!local) return stage.status === "covered" ? "Not captured; judged within the segment of a later stage." : "Not judged: it was not captured, or its operands were not.";
  if (stage.status === "inconclusive") return `${local.rows} rows judged, ${local.inconclusive} inconclusive: their allowed error is as large as a fault may be.`;
  const share = position === undefined ? undefined : local.spread.positions[position];
  if (share !== undefined && share !== null) return `${at(position)}: ${percent(share)} of what is allowed.`;
  if (local.extent) return "Its shape does not fit its operands.";
  if (local.non_finite) return `NaN or infinity, first at ${place(local.non_finite.place)} [${local.non_finite.index}].`;
  return `${used(local)} of what is allowed, at ${place(local.at || local.first_bad)}.`;
}

// The panel for nobody's choice.
const unchosen = () => el("div", { class: "gist" }, el("h3", {}, "No stage is chosen"), el("p", { class: "note" },
  verdict.findings.length ? "Choose a cell to see its figures." : "No stage is an origin. Choose a cell to see how far a stage is from f64."));

function details(stage, position) {
  const local = stage.subject;
  const shares = local ? local.spread.positions : [];
  const global = stage.global ? `Subject against reference: ${short(stage.global.error)} at ${place(stage.global.at)}.` : null;
  return [
    el("div", { class: "gist" },
      el("h3", {}, stage.stage, " ", el("span", { class: "status " + stage.status }, stage.status)),
      el("p", { class: "note" }, gist(stage, position))),
    cause(findings.get(stage.stage)),
    local && local.segment ? el("p", { class: "note" }, "Judged together with the stages before it that were not captured: ", local.segment.join(", ")) : null,
    local && local.extent ? el("p", { class: "cause" }, local.extent) : null,
    figures(stage),
    global ? el("p", { class: "note" }, global) : null,
    ...(local ? [
      el("h4", {}, "Share of what is allowed, by position (subject)"),
      bars(shares.map((s) => (s === null ? null : num(s))), { limit: 1, floor: 1e-2, label: "Share by position", chosen: position,
        title: (i) => `${at(i)}: ${percent(shares[i])} of allowed`, mark: (i) => String(i), choose: (i) => choose(stage.stage, i) }),
      el("h4", {}, "Elements by share of what is allowed"),
      histogram(stage),
      el("div", { class: "key" }, ...SIDES.map((s) => el("span", {}, el("i", { class: s }), s))),
      el("h4", {}, "Worst elements"),
      elements(local),
    ] : []),
    stage.inputs.length ? el("p", { class: "note" }, "Reads ", ...stage.inputs.flatMap((id, i) => [i ? ", " : "",
      stageOf.has(id) ? el("button", { type: "button", class: "link", onclick: () => choose(id) }, id) : el("code", {}, id)])) : null,
    el("h4", {}, "To look closer"),
    command(closer(stage)),
  ];
}
