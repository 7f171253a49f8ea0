/* The tables beside the graph and the timeline; each is filled when it is first shown. */
function sumsPanel(model, tree) {
  const known = model.isMeasured;
  const columns = (title) => [
    [title, (r) => r.key],
    ["nodes", (r) => r.nodes.length],
    [known ? "measured" : "estimated", (r) => r.us, (v) => (v === null ? "" : time(v))],
    ["share", (r) => (model.total && r.us !== null ? 100 * r.us / model.total : null), (v) => (v === null ? "" : v.toFixed(1) + " %")],
    ...(known ? [["estimated", (r) => r.estimated, time]] : []),
    ["FLOPs", (r) => r.flops, (v) => (v ? flops(v) : "0")],
    ["FLOP/s", (r) => (r.us && r.flops ? r.flops / r.us * 1e6 : null), (v) => (v === null ? "" : rate(v, "FLOP/s"))],
    ["traffic", (r) => r.bytes, bytes],
    ["weights", (r) => r.weights, bytes],
  ];
  table($("operators"), columns("operator"), sumsBy(model, model.nodes, (n) => n.op), { shares: 3, click: (r) => searchFor("op:" + r.key.split("::").pop()) });
  const level = $("level"), depths = [];
  eachGroup(tree.root, (group) => depths.push(group.depth));
  const deepest = Math.max(0, ...depths);
  clear(level);
  for (let i = 1; i <= deepest; i++) make("option", i, level, { value: i });
  level.value = Math.min(2, deepest);
  level.disabled = !deepest;
  const paint = () => {
    const rows = [];
    eachGroup(tree.root, (group) => {
      // Each node once: groups of the level, and less deep ones that end above it.
      const ends = !group.children.some((c) => c.kind === "group");
      if (group.depth !== Number(level.value) && !(group.depth < Number(level.value) && ends)) return;
      const nodes = group.nodes.map((i) => model.nodes[i]);
      rows.push({ key: group.path, nodes, ...sumOf(model, nodes) });
    });
    rows.sort((a, b) => b.us - a.us);
    table($("modules"), columns("module"), rows, { shares: 3, click: (r) => searchFor('module:"' + r.key + '/"') });
    if (!deepest) { clear($("modules")); make("p", "The names of the nodes have no parts in common.", $("modules"), { className: "dim" }); }
  };
  level.onchange = paint;
  paint();
}
function nodesPanel(model, go, numbers) {
  const rows = numbers ? numbers.map((i) => model.nodes[i]) : model.nodes;
  const output = (n) => model.values[n.out[0]];
  table($("nodes"), [
    ["node", (n) => n.label], ["operator", (n) => n.op], ["device", (n) => n.device], ["partition", (n) => n.part, (v) => "p" + v],
    ...(model.isMeasured ? [["measured", (n) => n.measured, (v) => (v === null ? "" : time(v))]] : []),
    ["estimated", (n) => n.us, time],
    ["share", (n) => (model.total && model.time(n) !== null ? 100 * model.time(n) / model.total : null), (v) => (v === null ? "" : v.toFixed(1) + " %")],
    ["bound by", (n) => n.bound || ""], ["FLOPs", (n) => n.flops, (v) => (v === null ? "" : v ? flops(v) : "0")], ["traffic", (n) => n.bytes, (v) => (v === null ? "" : bytes(v))],
    ["output", (n) => (output(n) ? model.type(output(n)) : "")], ["why", (n) => n.why],
  ], rows, { click: (n) => go(n.i), shares: model.isMeasured ? 6 : 5 });
}
function kernelsPanel(model, go) {
  if (!model.measured) return;
  const own = model.measured.kernels, all = own.reduce((sum, k) => sum + k.us, 0);
  $("kernelnote").textContent = "Means of " + plural(model.measured.runs, "run") + "; a run takes " + time(model.measured.us) + ", of which kernels " + time(all) + ". " + model.measured.note;
  table($("kernels"), [
    ["kernel", (k) => k.symbol], ["operators", (k) => kernelName(model, k)], ["device", (k) => k.device], ["partition", (k) => k.part],
    ["measured", (k) => k.us, time], ["share", (k) => (all ? 100 * k.us / all : null), (v) => (v === null ? "" : v.toFixed(1) + " %")],
    ["calls", (k) => k.calls], ["clock", (k) => k.clock], ["nodes", (k) => k.nodes.length], ["names", (k) => short(k.name, 60)],
  ], own, { click: (k) => { if (k.nodes.length) go(k.nodes[0]); }, shares: 5 });
}
function planPanel(model, go) {
  table($("plans"), [
    ["plan", (p) => p.name + (p.chosen ? " (this plan)" : "")],
    ["nodes", (p) => Object.entries(p.nodes).map(([d, n]) => d + " " + n).join(", ")],
    ["partitions", (p) => (p.why_not === null ? p.partitions : null)], ["transfers", (p) => (p.why_not === null ? p.transfers : null)],
    ["bytes", (p) => (p.why_not === null ? p.transfer_bytes : null), (v) => (v === null ? "" : bytes(v))],
    ["estimated", (p) => p.estimated_us, (v) => (v === null ? "" : time(v))],
    ["measured", (p) => p.measured_us, (v) => (v === null ? "" : time(v))],
    ["not possible", (p) => p.why_not || ""],
  ], model.plans);
  const measured = new Map(model.measured ? model.measured.steps.map((s) => [s.kind + s.name, s.us]) : []);
  const us = (kind, name) => { const found = measured.get(kind + name); return found === undefined ? null : found; };
  table($("partitions"), [
    ["partition", (p) => model.partitions.indexOf(p), (v) => "p" + v], ["device", (p) => p.device], ["nodes", (p) => p.nodes],
    ...(model.measured ? [["measured", (p) => us("partition", "p" + model.partitions.indexOf(p)), (v) => (v === null ? "" : time(v))]] : []),
    ["estimated", (p) => p.us, time], ["bytes in", (p) => p.in, bytes], ["bytes out", (p) => p.out, bytes],
  ], model.partitions, { click: (p) => go(model.nodes.findIndex((n) => n.part === model.partitions.indexOf(p))) });
  table($("transfers"), [
    ["value", (t) => t.value], ["from", (t) => t.from], ["to", (t) => t.to], ["bytes", (t) => t.bytes, bytes],
    ...(model.measured ? [["measured", (t) => us("transfer", t.value), (v) => (v === null ? "none: same memory" : time(v))]] : []),
    ["estimated", (t) => t.us, time], ["why", (t) => t.text],
  ], model.transfers, { click: (t) => go(t.writer) });
}
