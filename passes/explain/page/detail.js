/* The panel about what is selected: a node, a group, an input or an output. */
function detail(panel, model, box, actions) {
  clear(panel);
  if (!box) {
    make("p", "Select a box of the graph, a bar of the timeline or a row of a table.", panel, { className: "dim" });
    const list = make("dl", null, panel, { className: "keys" });
    for (const [keys, text] of [["drag, wheel", "move, zoom"], ["↑ ↓", "along edges"], ["← →", "sideways"], ["Enter", "open or close a group"],
      ["Backspace", "close the group around"], ["+ −, f, 0", "zoom, whole graph, start"], ["/", "search"]]) { make("dt", keys, list); make("dd", text, list); }
    return;
  }
  if (box.kind === "node") nodeDetail(panel, model, model.nodes[box.node], actions);
  else if (box.kind === "group") groupDetail(panel, model, box, actions);
  else endDetail(panel, model, box, actions);
}
function facts(panel) {
  const list = make("dl", null, panel);
  return (name, text) => { if (text !== "" && text !== null) { make("dt", name, list); make("dd", text, list); } };
}
function nodeDetail(panel, model, node, actions) {
  make("h3", node.op, panel);
  make("p", node.label, panel, { className: "path" });
  if (node.module) make("p", "module " + node.module, panel, { className: "path" });
  const line = facts(panel), device = model.data.devices.find((d) => d.name === node.device);
  const us = model.time(node), share = percent(us, model.total);
  if (model.isMeasured) {
    const alone = node.kernels.every((k) => model.measured.kernels[k].nodes.length === 1);
    line("Measured", node.measured === null ? "not known: no kernel of its own" : time(node.measured) + " (" + share + ")" + (alone ? "" : ", its share of the kernel"));
  }
  line("Estimated", time(node.us) + (model.isMeasured || !share ? "" : " (" + share + ")"));
  line("Device", node.device + ", partition p" + node.part);
  line("Bound by", node.bound === null ? "unknown: a size is known only at run time" : { compute: "compute", memory: "memory traffic", launch: "the launch" }[node.bound]);
  line("Work", node.flops === null ? "unknown" : flops(node.flops) + ", " + bytes(node.bytes) + (node.bytes ? ", " + (node.flops / node.bytes).toFixed(2) + " FLOP/B" : ""));
  if (us && device && node.bytes !== null) {
    const reached = [];
    if (node.flops) reached.push(rate(node.flops / us * 1e6, "FLOP/s") + " of " + rate(device.flops, "FLOP/s"));
    reached.push(rate(node.bytes / us * 1e6, "B/s") + " of " + rate(device.bandwidth, "B/s"));
    line(model.isMeasured ? "Reached" : "Assumed", reached.join("\n"));
  }
  line("Why there", model.texts[node.text]);
  if (model.measured) for (const k of node.kernels) {
    const kernel = model.measured.kernels[k], others = kernel.nodes.length - 1;
    line("Kernel", kernel.symbol + "\n" + time(kernel.us) + " a run" + (kernel.calls === 1 ? "" : ", " + kernel.calls.toFixed(kernel.calls % 1 ? 1 : 0) + " calls")
      + (others > 0 ? ", with " + plural(others, "other node") : "") + (kernel.clock === "device" ? ", by the device's clock" : ""));
  }
  const attributes = model.attributes[node.attributes];
  if (attributes.length) {
    make("h4", "Attributes", panel);
    const own = facts(panel);
    for (const [name, text] of attributes) own(name, text);
  }
  values(panel, "Inputs", node.in.filter((v) => !model.values[v].constant), model, (v) => (v.writer < 0 ? [] : [v.writer]), actions);
  const weights = model.weights(node);
  if (weights.length) {
    make("h4", "Weights, " + bytes(weights.reduce((sum, w) => sum + w.bytes, 0)), panel);
    for (const w of weights) {
      const item = make("div", null, panel, { className: "value" });
      make("span", w.name, item, { className: "name" });
      make("span", model.type(w) + ", " + bytes(w.bytes) + (w.least === undefined ? "" : ", " + w.least + " to " + w.most), item, { className: "dim" });
    }
  }
  values(panel, "Outputs", node.out, model, (v) => v.readers, actions);
  if (node.others.length) {
    make("h4", "On other devices", panel);
    const own = facts(panel);
    for (const [name, reason, longer] of node.others) {
      const change = longer === null ? "possible" : "a run would take " + time(Math.abs(longer)) + (longer < 0 ? " less" : " more");
      own(name, reason === null ? change : "not possible: " + model.texts[reason]);
    }
  }
}
function values(panel, title, numbers, model, ends, actions) {
  if (!numbers.length) return;
  make("h4", title, panel);
  for (const v of numbers) {
    const value = model.values[v], item = make("div", null, panel, { className: "value" });
    make("span", value.name, item, { className: "name" });
    make("span", model.type(value) + ", " + bytes(value.bytes), item, { className: "dim" });
    for (const i of ends(value).slice(0, 8)) jump(item, model.nodes[i], actions);
    if (ends(value).length > 8) make("span", "and " + (ends(value).length - 8) + " more", item, { className: "dim" });
  }
}
function jump(parent, node, actions) {
  make("button", node.op, parent, { className: "jump", title: node.label, onclick: () => actions.show(node.i) });
}
function groupDetail(panel, model, box, actions) {
  make("h3", box.name, panel);
  if (box.path !== box.name) make("p", box.path, panel, { className: "path" });
  const line = facts(panel), total = sumOf(model, box.nodes.map((i) => model.nodes[i]));
  line("Nodes", box.nodes.length.toLocaleString("en"));
  line(model.isMeasured ? "Measured" : "Estimated", time(total.us) + (model.total ? " (" + percent(total.us, model.total) + ")" : ""));
  line("Work", flops(total.flops));
  line("Weights", bytes(total.weights));
  line("Devices", [...total.devices].map(([name, n]) => name + " " + n).join(", "));
  make("button", box.open ? "Close" : "Open", panel, { onclick: () => actions.toggle(box) });
  make("h4", "Operators", panel);
  const own = facts(panel);
  for (const row of sumsBy(model, box.nodes.map((i) => model.nodes[i]), (n) => n.op).slice(0, 12)) {
    own(row.key, row.nodes.length + ", " + time(row.us) + (total.us ? " (" + percent(row.us, total.us) + ")" : ""));
  }
}
function endDetail(panel, model, box, actions) {
  const value = model.values[box.value];
  make("h3", box.kind === "input" ? "Input" : "Output", panel);
  make("p", value.name, panel, { className: "path" });
  const line = facts(panel);
  line("Type", model.type(value));
  line("Bytes", bytes(value.bytes));
  const ends = box.kind === "input" ? value.readers : [value.writer].filter((i) => i >= 0);
  if (!ends.length) return;
  make("h4", box.kind === "input" ? "Read by" : "Written by", panel);
  const item = make("div", null, panel, { className: "value" });
  for (const i of ends.slice(0, 20)) jump(item, model.nodes[i], actions);
}

/* Sums over nodes. */
function sumOf(model, nodes) {
  const found = { us: 0, known: 0, estimated: 0, measured: 0, flops: 0, bytes: 0, weights: 0, devices: new Map() }, seen = new Set();
  for (const node of nodes) {
    if (model.time(node) !== null) { found.us += model.time(node); found.known += 1; }
    found.estimated += node.us || 0;
    found.measured += node.measured || 0;
    found.flops += node.flops || 0;
    found.bytes += node.bytes || 0;
    found.devices.set(node.device, (found.devices.get(node.device) || 0) + 1);
    for (const v of node.in) if (model.values[v].constant && !seen.has(v)) { seen.add(v); found.weights += model.values[v].bytes; }
  }
  if (nodes.length && !found.known) found.us = null; // such as nodes without a kernel of their own
  return found;
}
function sumsBy(model, nodes, keyOf) {
  const groups = new Map();
  for (const node of nodes) {
    const key = keyOf(node);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(node);
  }
  return [...groups].map(([key, own]) => ({ key, nodes: own, ...sumOf(model, own) })).sort((a, b) => b.us - a.us || b.nodes.length - a.nodes.length);
}
