/* The places of all visible boxes and edges of a tree. */
const NODE_SIZE = [184, 44], END_SIZE = [150, 32], CLOSED_SIZE = [196, 54], HEAD = 28, PAD = 16;

/* Lay out the open groups that changed, from the inside out, and return what is visible, groups before their members. */
function arrange(tree) {
  sized(tree.root);
  const boxes = [];
  put(tree.root, 0, 0, boxes);
  boxes.shift(); // the root is the canvas itself
  return { boxes, edges: visibleEdges(tree), width: tree.root.w, height: tree.root.h };
}
function sized(box) {
  if (box.kind === "node") { [box.w, box.h] = NODE_SIZE; return; }
  if (box.kind !== "group") { [box.w, box.h] = END_SIZE; return; }
  if (!box.open) { [box.w, box.h] = CLOSED_SIZE; return; }
  if (box.arranged) { [box.w, box.h] = box.arranged.size; return; }
  box.children.forEach(sized);
  const found = layered(box.children.map((c) => [c.w, c.h]), box.links, [...box.entries.values()].map((places) => [...places]), [...box.exits]);
  const size = [Math.max(found.width + 2 * PAD, CLOSED_SIZE[0]), found.height + HEAD + 2 * PAD];
  box.arranged = { ...found, size, left: (size[0] - found.width) / 2 };
  [box.w, box.h] = size;
}
/* A group that opened or closed changes those around it. */
function changed(box) { for (let above = box; above; above = above.parent) above.arranged = null; }

function put(box, left, top, boxes) {
  [box.left, box.top] = [left, top];
  [box.x, box.y] = [left + box.w / 2, top + box.h / 2];
  boxes.push(box);
  if (box.kind !== "group" || !box.open) return;
  const { places, left: inside } = box.arranged;
  box.children.forEach((child, i) => {
    const [x, above] = places[i];
    put(child, left + inside + x - child.w / 2, top + HEAD + PAD + above, boxes);
  });
}
/* The edges between visible boxes: one for all values that go from one to the other. */
function visibleEdges(tree) {
  const known = new Map();
  let id = 0;
  const ids = new Map();
  const idOf = (box) => { let found = ids.get(box); if (found === undefined) { found = id++; ids.set(box, found); } return found; };
  for (const edge of tree.edges) {
    const from = standing(edge.from), to = standing(edge.to);
    if (from === to) continue; // both within one closed group
    const key = idOf(from) * 1e7 + idOf(to);
    const seen = known.get(key);
    if (seen) { seen.values.add(edge.value); continue; }
    known.set(key, { from, to, values: new Set([edge.value]), points: pointsOf(edge, from, to) });
  }
  return [...known.values()].map(bounded);
}
/* The points of an edge: down out of the groups around its start, through their common group, and down to its end. */
function pointsOf(edge, from, to) {
  const home = edge.home, points = [[from.x, from.top + from.h]], above = [];
  let start = from, end = to;
  below(points, start);
  for (; start.parent !== home; start = start.parent) {
    pass(points, start.parent, start.parent.arranged.routes.exits.get(start.place));
    below(points, start.parent);
  }
  for (; end.parent !== home; end = end.parent) above.unshift(end);
  const [a, b] = [start.place, end.place];
  pass(points, home, home.arranged.routes.links.get(Math.min(a, b) * 1e7 + Math.max(a, b)), a > b);
  for (const box of above) {
    const number = [...box.parent.entries.keys()].indexOf(edge.from);
    pass(points, box.parent, box.parent.arranged.routes.entries.get(number * 1e7 + box.place));
  }
  points.push([to.x, to.top]);
  return points;
}
/* Straight down beside a box of the same layer that is higher. */
function below(points, box) {
  const [x, y] = points[points.length - 1], group = box.parent, bottom = group.top + HEAD + PAD + group.arranged.places[box.place][2];
  if (bottom > Math.max(y, box.top + box.h) + 1) points.push([x, bottom]);
}
/* Straight beside the boxes of a layer, so that an edge bends between layers only. */
function pass(points, group, route, backwards) {
  const left = group.left + group.arranged.left, top = group.top + HEAD + PAD;
  for (const [x, above, below] of backwards ? [...route || []].reverse() : route || []) {
    const ends = [[left + x, top + above], [left + x, top + below]];
    points.push(...(backwards ? ends.reverse() : ends));
  }
}
function bounded(edge) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of edge.points) {
    left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
  }
  return Object.assign(edge, { left, top, right, bottom });
}
