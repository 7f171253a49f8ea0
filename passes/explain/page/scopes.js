/* The tree of groups: nodes by the parts of their names, by partition, or all in one. */
class Box {
  constructor(kind, name, parent) {
    this.kind = kind;      // "group", "node", "input" or "output"
    this.name = name;
    this.parent = parent;
    this.children = [];
    this.open = false;
    this.nodes = [];       // of a group: numbers of its nodes
    this.first = Infinity; // place of its first node in the graph
    this.links = [];       // of a group: edges between its children, by number
    this.entries = new Map(); // of a group: by leaf outside, the children that read it
    this.exits = new Set(); // of a group: the children that something outside reads
    this.x = this.y = this.w = this.h = 0;
    this.left = this.top = 0;
  }
  get path() {
    const names = [];
    for (let box = this; box.parent; box = box.parent) names.unshift(box.name);
    return names.join("/");
  }
}
const SMALLEST = 2, FEW_BOXES = 10;

function scopeOf(node) {
  const parts = node.label.split("/").filter(Boolean);
  return parts.slice(0, -1);
}
const GROUPINGS = {
  scope: scopeOf,
  partition: (node) => ["p" + node.part + " on " + node.device],
  none: () => [],
};

/* The tree of a model; `edges` are those between its boxes that stand for nodes, inputs and outputs. */
function buildTree(model, grouping) {
  const root = new Box("group", model.model, null), scope = GROUPINGS[grouping];
  const known = new Map([["", root]]);
  const leaves = model.nodes.map((node) => {
    let parent = root, key = "";
    for (const part of scope(node)) {
      key += "/" + part;
      let group = known.get(key);
      if (!group) { group = new Box("group", part, parent); parent.children.push(group); known.set(key, group); }
      parent = group;
    }
    const leaf = new Box("node", node.label.split("/").pop(), parent);
    leaf.node = node.i;
    parent.children.push(leaf);
    return leaf;
  });
  root.children.forEach(simplify);
  root.children = root.children.flatMap(flattened);
  root.children.forEach((child) => { child.parent = root; });
  const ends = (kind, numbers) => numbers.map((v) => {
    const leaf = new Box(kind, model.values[v].name, root);
    leaf.value = v;
    root.children.push(leaf);
    return leaf;
  });
  const inputs = ends("input", model.inputs), outputs = ends("output", model.outputs);
  number(root, model.nodes.length);
  const writer = new Map(model.values.map((v) => [v.i, v.writer < 0 ? null : leaves[v.writer]]));
  inputs.forEach((leaf) => writer.set(leaf.value, leaf));
  const edges = [];
  const connect = (v, to) => { const from = writer.get(v); if (from) edges.push({ from, to, value: v }); };
  model.nodes.forEach((node) => new Set(node.in).forEach((v) => connect(v, leaves[node.i])));
  outputs.forEach((leaf) => connect(leaf.value, leaf));
  edges.forEach(link);
  // Within its group a node needs the rest of its name only.
  const lengths = new Map();
  for (const leaf of leaves) {
    const label = model.nodes[leaf.node].label;
    if (!lengths.has(leaf.parent)) lengths.set(leaf.parent, leaf.parent.path.split("/").filter(Boolean).length);
    const length = grouping === "scope" ? lengths.get(leaf.parent) : 0;
    leaf.name = length ? label.split("/").filter(Boolean).slice(length).join("/") : label;
  }
  root.open = true;
  return { root, leaves, inputs, outputs, edges };
}
/* A group that holds nothing but a group is one with it. */
function simplify(box) {
  while (box.kind === "group" && box.children.length === 1 && box.children[0].kind === "group") {
    const only = box.children[0];
    box.name += "/" + only.name;
    box.children = only.children;
    box.children.forEach((child) => { child.parent = box; });
  }
  box.children.forEach(simplify);
  box.children = box.children.flatMap(flattened);
  box.children.forEach((child) => { child.parent = box; });
}
/* A group of few nodes is not worth a box. */
function flattened(box) {
  return box.kind === "group" && box.children.length < SMALLEST ? box.children : [box];
}
function number(box, count) {
  box.depth = box.parent ? box.parent.depth + 1 : 0;
  if (box.kind === "node") { box.nodes = [box.node]; box.first = box.node; return; }
  if (box.kind === "input") { box.first = -1; return; }
  if (box.kind === "output") { box.first = count; return; }
  for (const child of box.children) {
    number(child, count);
    for (const node of child.nodes) box.nodes.push(node);
    if (child.nodes.length) box.first = Math.min(box.first, child.first);
  }
  box.children.sort((a, b) => a.first - b.first);
  box.children.forEach((child, i) => { child.place = i; });
  box.seen = new Set();
}
/* Enter an edge into the innermost group that holds both ends, as one between two of its children. */
function link(edge) {
  let [from, to] = [edge.from, edge.to];
  while (from.parent !== to.parent) {
    if (to.parent.depth >= from.parent.depth) {
      const entries = to.parent.entries;
      if (!entries.has(edge.from)) entries.set(edge.from, new Set());
      entries.get(edge.from).add(to.place);
      to = to.parent;
    } else {
      from.parent.exits.add(from.place);
      from = from.parent;
    }
  }
  edge.home = to.parent;
  const key = from.place * 1e7 + to.place;
  if (!edge.home.seen.has(key)) { edge.home.seen.add(key); edge.home.links.push([from.place, to.place]); }
}

/* Open groups from the outside in, as long as no more than `most` boxes are seen, or only a few; large ones first. */
function openSome(root, most) {
  let shown = root.children.length;
  const queue = root.children.filter((c) => c.kind === "group");
  while (queue.length) {
    queue.sort((a, b) => b.nodes.length - a.nodes.length);
    const next = queue.shift();
    if (shown - 1 + next.children.length > most && shown > FEW_BOXES) continue;
    next.open = true;
    shown += next.children.length - 1;
    queue.push(...next.children.filter((c) => c.kind === "group"));
  }
}
function eachGroup(box, action) {
  for (const child of box.children) if (child.kind === "group") { action(child); eachGroup(child, action); }
}
/* The box that stands for a leaf: itself, or the outermost closed group around it. */
function standing(leaf) {
  let found = leaf;
  for (let box = leaf.parent; box; box = box.parent) if (!box.open) found = box;
  return found;
}
