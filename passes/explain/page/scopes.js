/* The tree of groups: nodes by the parts of their names, by partition, or all in one. */
class Box {
  constructor(kind, name, parent) {
    this.kind = kind;      // "group", "node", "input" or "output"
    this.name = name;
    this.parent = parent;
    this.children = [];
    this.open = false;
    this.nodes = [];       // of a group: numbers of its nodes
    this.rank = 0;         // place in the graph: of a group the mean of its nodes'
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
const SMALLEST = 2, HOPS = 2, FEW_BOXES = 10;

/* The module that the exporter names, else the parts of the name before the last. */
function ownScope(node) {
  if (node.module === null && !node.label.includes("/")) return null;
  return node.module === null ? node.label.split("/").filter(Boolean).slice(0, -1) : node.module.split("/").filter(Boolean);
}
/* The scopes of a model's nodes. One that has none, as steps of an exporter or the import add them, is with its reader. */
function scopesOf(model) {
  if (model.scopes) return model.scopes;
  const found = repeated(model.nodes.map(ownScope));
  for (let i = found.length - 1; i >= 0; i--) {
    if (found[i]) continue;
    const reader = model.after(model.nodes[i]).find((r) => r > i && found[r]);
    found[i] = reader === undefined ? null : found[reader];
  }
  model.scopes = found.map((scope) => scope || []);
  for (let i = found.length - 1; i >= 0; i--) model.scopes[i] = between(model, i) || model.scopes[i];
  return model.scopes;
}
/* PyTorch's exporter to TorchScript numbers the calls of a module that is called several times, and calls what is inside of
   the third one /layer_2/Add, but /layer/attention_2/Add: a group of such names would be before and after itself. */
function repeated(scopes) {
  const known = new Set(scopes.flatMap((scope) => (scope || []).map((_, i) => scope.slice(0, i + 1).join("/"))));
  const belongs = (scope, i) => {
    const [, name, call] = /^(.*)_(\d+)$/.exec(scope[i]) || [];
    if (!call) return null;
    const outer = scope.slice(0, i).join("/"), own = outer + "_" + call;
    return known.has(outer + "/" + name) && known.has(own) && !known.has(own + "/" + name) ? [...own.split("/"), name, ...scope.slice(i + 1)] : null;
  };
  return scopes.map((scope) => {
    for (let i = scope ? scope.length - 1 : 0; i > 0; i--) scope = belongs(scope, i) || scope;
    return scope;
  });
}
function common(a, b) {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length += 1;
  return a.slice(0, length);
}
/* The inner group that a node of an outer one stands in: all of its readers are there, and what it reads comes from there,
   such as a Concat between the blocks of a decoder. Drawn outside, it would be before and after the group. */
function between(model, i) {
  const own = model.scopes[i], readers = model.after(model.nodes[i]).map((r) => model.scopes[r]);
  if (!readers.length) return null;
  const shared = readers.reduce(common);
  if (common(own, shared).length < own.length) return null;
  for (let length = shared.length; length > own.length; length--) {
    const within = (scope) => scope.length >= length && common(scope, shared).length >= length;
    const comes = (n, hops) => model.before(model.nodes[n]).some((w) => within(model.scopes[w]) || (hops > 0 && comes(w, hops - 1)));
    if (comes(i, HOPS)) return shared.slice(0, length);
  }
  return null;
}
const GROUPINGS = {
  scope: (node, model) => scopesOf(model)[node.i],
  partition: (node) => ["p" + node.part + " on " + node.device],
  none: () => [],
};

/* The tree of a model; `edges` are those between its boxes that stand for nodes, inputs and outputs. */
function buildTree(model, grouping) {
  const root = new Box("group", model.model, null), scope = GROUPINGS[grouping];
  const known = new Map([["", root]]);
  const leaves = model.nodes.map((node) => {
    let parent = root, key = "";
    for (const part of scope(node, model)) {
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
  const paths = new Map();
  for (const leaf of leaves) {
    const { label } = model.nodes[leaf.node], parts = label.split("/").filter(Boolean);
    if (!paths.has(leaf.parent)) paths.set(leaf.parent, leaf.parent.path.split("/").filter(Boolean));
    const path = paths.get(leaf.parent);
    leaf.name = grouping === "scope" && path.length && path.every((part, k) => part === parts[k]) ? parts.slice(path.length).join("/") : label;
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
  if (box.kind === "node") { box.nodes = [box.node]; box.rank = box.node; return; }
  if (box.kind === "input") { box.rank = -1; return; }
  if (box.kind === "output") { box.rank = count; return; }
  for (const child of box.children) {
    number(child, count);
    for (const node of child.nodes) box.nodes.push(node);
  }
  // A group may have some nodes before what most of its nodes follow, so its first node says little.
  box.rank = box.nodes.reduce((sum, node) => sum + node, 0) / Math.max(1, box.nodes.length);
  box.children.sort((a, b) => a.rank - b.rank);
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

/* Open groups from the outside in, as long as no more than `most` boxes are seen, or only a few; large ones first. The
   number of those that were opened. */
function openSome(root, most) {
  let shown = root.children.length, opened = 0;
  const queue = root.children.filter((c) => c.kind === "group");
  while (queue.length) {
    queue.sort((a, b) => b.nodes.length - a.nodes.length);
    const next = queue.shift();
    if (shown - 1 + next.children.length > most && shown > FEW_BOXES) continue;
    next.open = true;
    opened += 1;
    shown += next.children.length - 1;
    queue.push(...next.children.filter((c) => c.kind === "group"));
  }
  return opened;
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
