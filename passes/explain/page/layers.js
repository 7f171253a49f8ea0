/* Layered placement of boxes and of the edges between them, from the top down.
   K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system structures" (1981); the
   boxes of a layer have the places of least squared distance from the means of their neighbours (isotonic regression). */
const LAYER_GAP = 38, BOX_GAP = 22, ROUTE_WIDTH = 10, SWEEPS = 6, ROUTES_PER_BOX = 8, ALIKE = 100;

/* Places of `sizes` ([width, height]), which come in an order that most of `links` ([from, to]) follow. `entries` are lists
   of boxes that one thing outside is joined to, `exits` boxes that are joined to something outside. The result has the
   centres of the boxes, the size of the whole, and the points through which links go around boxes: by link, from the
   top to a box by entry and box, and from a box to the bottom. */
function layered(sizes, links, entries, exits) {
  const count = sizes.length, down = sizes.map(() => []), up = sizes.map(() => []);
  for (const [a, b] of links) {
    if (a === b) continue;
    down[Math.min(a, b)].push(Math.max(a, b)); // one against the order is drawn backwards
    up[Math.max(a, b)].push(Math.min(a, b));
  }
  const rank = ranks(count, down, up);
  const grid = withRoutes(count, rank, down, sizes, entries, exits);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const downwards = sweep % 2 === 0, near = downwards ? grid.up : grid.down;
    const layers = downwards ? grid.layers : [...grid.layers].reverse();
    for (const layer of layers) spread(layer, near, grid, true);
  }
  for (const layer of grid.layers) spread(layer, grid.both, grid, false);
  return placed(count, sizes, grid);
}
function ranks(count, down, up) {
  const rank = new Array(count).fill(0);
  for (let i = 0; i < count; i++) for (const b of down[i]) rank[b] = Math.max(rank[b], rank[i] + 1);
  // A box without writers stands just above its first reader, not at the top.
  for (let i = count - 1; i >= 0; i--) {
    if (!up[i].length && down[i].length) rank[i] = down[i].reduce((least, b) => Math.min(least, rank[b]), Infinity) - 1;
  }
  return rank;
}
/* Layers of boxes, and of points of the edges over several layers: those of one writer share a route downwards. */
function withRoutes(count, rank, down, sizes, entries, exits) {
  const layers = [], grid = { count, layers, up: [], down: [], both: [], x: [], width: [], weight: [], route: new Map(), entry: new Map(), exit: new Map() };
  const add = (r, width, weight) => {
    const id = grid.x.length;
    while (layers.length <= r) layers.push([]);
    grid.x.push(layers[r].length * (width + BOX_GAP));
    grid.width.push(width); grid.weight.push(weight);
    grid.up.push([]); grid.down.push([]);
    layers[r].push(id);
    return id;
  };
  const join = (a, b) => { grid.down[a].push(b); grid.up[b].push(a); };
  for (let i = 0; i < count; i++) add(rank[i], sizes[i][0], 1);
  const lowest = layers.length - 1;
  let left = ROUTES_PER_BOX * count + 400;
  // Points from layer `first` to `last`, below `start` if there is one; null if there is no room: it is drawn straight.
  const route = (start, first, last) => {
    if (last - first >= left) return null;
    const found = [];
    for (let r = first; r <= last; r++) {
      const point = add(r, ROUTE_WIDTH, 3);
      if (found.length || start !== null) join(found.length ? found[found.length - 1] : start, point);
      found.push(point);
    }
    left -= found.length;
    return found;
  };
  const lowestOf = (boxes) => boxes.reduce((most, b) => Math.max(most, rank[b]), 0);
  entries.forEach((boxes, e) => {
    const points = route(null, 0, lowestOf(boxes) - 1);
    if (points) for (const b of boxes) if (rank[b]) { join(points[rank[b] - 1], b); grid.entry.set(e * 1e7 + b, points.slice(0, rank[b])); }
  });
  for (const b of exits) grid.exit.set(b, route(b, rank[b] + 1, lowest) || []);
  for (let i = 0; i < count; i++) {
    const points = route(i, rank[i] + 1, lowestOf(down[i]) - 1);
    if (!points) for (const b of down[i]) if (rank[b] === rank[i] + 1) join(i, b);
    if (points) for (const b of down[i]) {
      const steps = rank[b] - rank[i] - 1;
      join(steps ? points[steps - 1] : i, b);
      if (steps) grid.route.set(i * 1e7 + b, points.slice(0, steps));
    }
  }
  grid.both = grid.up.map((above, i) => [...above, ...grid.down[i]]);
  return grid;
}
/* Move the members of a layer to the means of their neighbours, as near as their order and widths allow. */
function spread(layer, near, grid, sorts) {
  const { x, width, weight } = grid, wanted = new Map();
  for (const id of layer) {
    let sum = 0, total = 0;
    for (const other of near[id]) {
      // Boxes stand below boxes, and routes go straight.
      const heavy = (id < grid.count) === (other < grid.count) ? ALIKE : 1;
      sum += heavy * x[other];
      total += heavy;
    }
    wanted.set(id, total ? sum / total : x[id]);
  }
  if (sorts) layer.sort((a, b) => wanted.get(a) - wanted.get(b) || a - b);
  const offsets = [], blocks = []; // of a block: the mean, the weight, the number of members
  let offset = 0;
  layer.forEach((id, k) => {
    if (k) offset += (width[layer[k - 1]] + width[id]) / 2 + BOX_GAP;
    offsets.push(offset);
    let block = [wanted.get(id) - offset, weight[id], 1];
    while (blocks.length && blocks[blocks.length - 1][0] > block[0]) {
      const [mean, heavy, members] = blocks.pop(), total = heavy + block[1];
      block = [(mean * heavy + block[0] * block[1]) / total, total, members + block[2]];
    }
    blocks.push(block);
  });
  let k = 0;
  for (const [mean, , members] of blocks) for (let end = k + members; k < end; k++) x[layer[k]] = mean + offsets[k];
}
function placed(count, sizes, grid) {
  let left = Infinity, right = -Infinity;
  grid.x.forEach((x, id) => { left = Math.min(left, x - grid.width[id] / 2); right = Math.max(right, x + grid.width[id] / 2); });
  const tops = [], heights = [];
  let y = 0;
  grid.layers.forEach((layer, r) => {
    tops.push(y);
    heights.push(layer.reduce((most, id) => (id < count ? Math.max(most, sizes[id][1]) : most), 0));
    y += heights[r] + LAYER_GAP;
  });
  // Of each box and point: the middle, and the top and the bottom of its layer. Boxes stand at the top of it.
  const place = new Array(grid.x.length);
  grid.layers.forEach((layer, r) => { for (const id of layer) place[id] = [grid.x[id] - left, tops[r], tops[r] + heights[r]]; });
  const pointsOf = (routes) => new Map([...routes].map(([key, ids]) => [key, ids.map((id) => place[id])]));
  const routes = { links: pointsOf(grid.route), entries: pointsOf(grid.entry), exits: pointsOf(grid.exit) };
  return { places: place.slice(0, count), routes, width: count ? right - left : 0, height: Math.max(0, y - LAYER_GAP) };
}
