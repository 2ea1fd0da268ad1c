// The stages of one layer as a graph, drawn from what each says it reads: ranks
// from top to bottom, an edge that skips ranks through a gap in each of them.

const BOX = { width: 108, height: 23, gap: 10, rank: 38, thin: 12 };

// The stages of `layer` and what they read: {ranks: [[node]], nodes}. A node is
// {id, own, rank, x, width, above: [node], below: [node]}; one without an id is
// where an edge passes.
function ranked(layer) {
  const nodes = new Map();
  const node = (id) => {
    if (!nodes.has(id)) nodes.set(id, { id, own: false, rank: 0, x: 0, width: BOX.width, above: [], below: [] });
    return nodes.get(id);
  };
  const edges = [];
  // In the order of the graph: what a stage reads has its rank already.
  for (const s of stages.filter((s) => s.layer === layer)) {
    const reads = [...new Set(s.inputs)].map(node);
    const it = node(s.stage);
    it.own = true;
    it.rank = reads.length ? 1 + Math.max(...reads.map((n) => n.rank)) : 0;
    for (const from of reads) edges.push([from, it]);
  }
  // What is read from elsewhere stands right above its first reader.
  for (const n of nodes.values()) {
    const readers = edges.filter(([from]) => from === n).map(([, to]) => to.rank);
    if (!n.own && readers.length) n.rank = Math.min(...readers) - 1;
  }
  const all = [...nodes.values()];
  for (const [from, to] of edges) {
    let last = from;
    for (let rank = from.rank + 1; rank < to.rank; rank++) {
      const pass = { rank, x: 0, width: BOX.thin, above: [last], below: [] };
      last.below.push(pass);
      all.push(pass);
      last = pass;
    }
    last.below.push(to);
    to.above.push(last);
  }
  const ranks = [];
  for (const n of all) (ranks[n.rank] = ranks[n.rank] || []).push(n);
  return { ranks: Array.from(ranks, (r) => r || []), nodes };
}

// Gives every node an x: near those it is joined with, apart from its neighbours.
function arrange(ranks) {
  const mean = (list) => list.reduce((sum, n) => sum + n.x, 0) / list.length;
  const apart = (a, b) => (a.width + b.width) / 2 + BOX.gap;
  const spread = (rank) => {
    for (let i = 1; i < rank.length; i++) rank[i].x = Math.max(rank[i].x, rank[i - 1].x + apart(rank[i - 1], rank[i]));
  };
  for (const rank of ranks) {
    rank.forEach((n, i) => (n.x = i));
    spread(rank);
  }
  for (let round = 0; round < 24; round++) {
    const down = round % 2 === 0;
    for (const rank of down ? ranks : [...ranks].reverse()) {
      for (const n of rank) {
        const joined = round < 20 ? (down ? n.above : n.below) : [...n.above, ...n.below];
        if (joined.length) n.x = mean(joined);
      }
      // Ten rounds may change the order, then it stays.
      if (round < 10) rank.sort((a, b) => a.x - b.x);
      const wanted = rank.map((n) => n.x);
      spread(rank);
      // Pushed to the right only; half of it back.
      const shift = rank.length ? rank.reduce((sum, n, i) => sum + n.x - wanted[i], 0) / rank.length : 0;
      for (const n of rank) n.x -= shift;
    }
  }
}

function layerGraph(layer, choose) {
  const { ranks, nodes } = ranked(layer);
  arrange(ranks);
  const all = ranks.flat();
  const left = Math.min(...all.map((n) => n.x - n.width / 2)) - 4;
  const width = Math.max(...all.map((n) => n.x + n.width / 2)) + 4 - left;
  const y = (n) => 4 + n.rank * BOX.rank;
    const edge = (a, b) => {
    const [x1, y1, x2, y2] = [a.x - left, y(a) + BOX.height, b.x - left, y(b)];
    const bend = (y2 - y1) / 2;
    return svg("path", { class: "edge", d: `M${x1.toFixed(1)} ${y1}C${x1.toFixed(1)} ${y1 + bend} ${x2.toFixed(1)} ${y2 - bend} ${x2.toFixed(1)} ${y2}` });
  };
  const pass = (n) => svg("line", { class: "edge", x1: n.x - left, x2: n.x - left, y1: y(n), y2: y(n) + BOX.height });
  const cells = [];
  const box = (n) => {
    const stage = stageOf.get(n.id);
    const name = n.own ? stage.name : n.id;
    const words = !stage ? "not asked for" : stage.status + (stage.origin ? ", an origin" : "") + (stage.inputs.length ? "; reads " + stage.inputs.join(", ") : "");
    const g = svg("g", stage ? { "data-key": n.id, role: "button", tabindex: -1, "aria-pressed": "false", "aria-label": `${n.id}: ${words}` } : {},
      svg("title", {}, `${n.id}: ${words}`),
      svg("rect", { x: n.x - left - n.width / 2, y: y(n), width: n.width, height: BOX.height, rx: 3 }),
      svg("text", { x: n.x - left, y: y(n) + 15.5, "text-anchor": "middle" }, (stage && stage.origin ? MARKS[stage.status] + " " : "") + name));
    g.classList.add("node", ...(stage ? [stage.status] : []), ...(n.own ? [] : ["outside"]), ...(stage && stage.origin ? ["origin"] : []));
    if (stage) (cells[n.rank] = cells[n.rank] || []).push(g);
    return g;
  };
  const edges = all.flatMap((n) => n.below.map((to) => edge(n, to)));
  const boxes = ranks.flatMap((rank) => rank.filter((n) => n.id).map(box));
  const height = 8 + (ranks.length - 1) * BOX.rank + BOX.height;
  const drawn = svg("svg", { class: "graph", viewBox: `0 0 ${width.toFixed(0)} ${height}`, "--width": width.toFixed(0), role: "group",
    "aria-label": `Graph of ${layer < 0 ? "what stands outside the layers" : "layer " + layer}` },
    ...edges, ...all.filter((n) => !n.id).map(pass), ...boxes);
  return roving(drawn, Array.from(cells, (line) => line || []), choose);
}
