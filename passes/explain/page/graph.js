/* The graph of a model on a canvas: zoom, selection, groups that open and close, and keys. */
const MOST_OPEN = [90, 40, 20], WIDEST = 2600; // boxes that are seen at first: fewer where they would not fit into a window

class GraphView {
  /* `chosen` is called with the selected box, or null. */
  constructor(canvas, model, chosen) {
    this.canvas = canvas;
    this.model = model;
    this.onChosen = chosen;
    this.view = { x: 0, y: 0, zoom: 1 };
    this.mode = "device";
    this.box = null;
    this.found = new Set();
    this.draw = perFrame(() => this.paint());
    this.pen = new Pen(canvas.getContext("2d", { alpha: false }));
    this.colouring = new Colouring(model, this.mode);
    this.group("scope");
    listen(this);
  }
  group(grouping) {
    this.tree = buildTree(this.model, grouping);
    this.box = null;
    for (const most of MOST_OPEN) {
      eachGroup(this.tree.root, (group) => { group.open = false; group.arranged = null; });
      changed(this.tree.root);
      const opened = openSome(this.tree.root, most);
      this.arrange();
      if (!opened || this.scene.width <= WIDEST) break;
    }
  }
  colour(mode) {
    this.mode = mode;
    this.colouring = new Colouring(this.model, mode);
    this.draw();
  }
  arrange() {
    this.scene = arrange(this.tree);
    this.draw();
  }
  size() {
    const { clientWidth: width, clientHeight: height } = this.canvas, ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) { this.canvas.width = w; this.canvas.height = h; }
    return [width, height, ratio];
  }
  fit() {
    const [width, height] = this.size(), { width: w, height: h } = this.scene, view = this.view;
    view.zoom = Math.min(1.15, (width - 30) / Math.max(1, w), (height - 30) / Math.max(1, h));
    view.x = (width - w * view.zoom) / 2;
    view.y = (height - h * view.zoom) / 2;
    this.draw();
  }
  /* A deep graph is a thin line as a whole: begin at its top, at a size that can be read. */
  start() {
    this.fit();
    if (this.view.zoom >= 0.6 || !this.scene.boxes.length) return;
    const [width] = this.size(), top = this.scene.boxes.reduce((a, b) => (b.top < a.top ? b : a));
    this.view.zoom = Math.max(0.7, Math.min(1, (width - 30) / this.scene.width));
    this.view.x = this.scene.width * this.view.zoom <= width - 30 ? (width - this.scene.width * this.view.zoom) / 2 : width / 2 - top.x * this.view.zoom;
    this.view.y = 14;
    this.draw();
  }
  zoom(factor, x, y) {
    const view = this.view, next = Math.min(3, Math.max(0.004, view.zoom * factor)), real = next / view.zoom;
    const [width, height] = this.size();
    [x, y] = [x === undefined ? width / 2 : x, y === undefined ? height / 2 : y];
    view.x = x - (x - view.x) * real;
    view.y = y - (y - view.y) * real;
    view.zoom = next;
    this.draw();
  }
  /* Move the view so that a box is seen, with a size that can be read. */
  reveal(box) {
    const [width, height] = this.size(), view = this.view;
    if (view.zoom < 0.5) view.zoom = 0.9;
    const [x, y] = [box.x * view.zoom + view.x, box.y * view.zoom + view.y];
    if (x < 90 || y < 40 || x > width - 90 || y > height - 40) {
      view.x = width / 2 - box.x * view.zoom;
      view.y = height / 2 - box.y * view.zoom;
    }
    this.draw();
  }
  choose(box, reveals) {
    this.box = box;
    if (box && reveals) this.reveal(box);
    this.draw();
    this.onChosen(box);
  }
  /* Select a node by number, and open the groups around it. */
  show(node) {
    const leaf = this.tree.leaves[node];
    let opens = false;
    for (let box = leaf.parent; box; box = box.parent) if (!box.open) { box.open = true; changed(box); opens = true; }
    if (opens) this.arrange();
    this.choose(leaf, true);
  }
  toggle(group) {
    const [x, y] = [group.left * this.view.zoom + this.view.x, group.top * this.view.zoom + this.view.y];
    group.open = !group.open;
    changed(group);
    this.arrange();
    // The group stays where it was on the screen.
    this.view.x = x - group.left * this.view.zoom;
    this.view.y = y - group.top * this.view.zoom;
    this.choose(group, false);
  }
  openAll(open) {
    eachGroup(this.tree.root, (group) => { group.open = open; group.arranged = null; });
    changed(this.tree.root);
    this.arrange();
    this.start();
    if (this.box) this.choose(standing(this.box), true);
  }
  mark(numbers) {
    this.found = new Set(numbers);
    this.hits = new Map();
    this.draw();
  }
  hitsOf(box) {
    if (!this.hits.has(box)) this.hits.set(box, box.nodes.reduce((n, i) => n + (this.found.has(i) ? 1 : 0), 0));
    return this.hits.get(box);
  }
  at(x, y) {
    const [u, v] = [(x - this.view.x) / this.view.zoom, (y - this.view.y) / this.view.zoom];
    const boxes = this.scene.boxes;
    for (let i = boxes.length - 1; i >= 0; i--) {
      const b = boxes[i];
      if (u >= b.left && u <= b.left + b.w && v >= b.top && v <= b.top + (b.open ? HEAD : b.h)) return b;
    }
    return null;
  }
  /* The edge within a few pixels of a point, if there is one. */
  edgeAt(x, y) {
    const [u, v] = [(x - this.view.x) / this.view.zoom, (y - this.view.y) / this.view.zoom], reach = 6 / this.view.zoom;
    return this.scene.edges.find((edge) => {
      if (u < edge.left - reach || u > edge.right + reach || v < edge.top - reach || v > edge.bottom + reach) return false;
      return edge.points.some(([c, d], i) => {
        if (!i) return false;
        const [a, b] = edge.points[i - 1];
        if (v < Math.min(b, d) - reach || v > Math.max(b, d) + reach) return false;
        const t = d === b ? 0 : Math.max(0, Math.min(1, (v - b) / (d - b))), s = t * t * (3 - 2 * t);
        return Math.abs(a + (c - a) * s - u) <= reach;
      });
    }) || null;
  }
  look(box) {
    const { model } = this, known = this.looks.get(box);
    if (known) return known;
    let look;
    if (box.kind === "node") {
      const node = model.nodes[box.node], us = model.time(node);
      const colour = this.colouring.node(node);
      if (this.pen.isFar) return { colour };
      const op = node.op.split("::").pop(), note = us === null ? "" : time(us), wide = box.w - 24;
      const title = this.pen.fit(op, wide - (note && this.pen.width(note, 11) + 6), 12.5, 600);
      look = { colour, title, name: this.pen.fit(box.name, wide, 11, 400, true), note };
    } else {
      const us = box.nodes.reduce((sum, i) => sum + (model.time(model.nodes[i]) || 0), 0);
      const share = percent(us, model.total), about = plural(box.nodes.length, "node");
      look = {
        colour: this.colouring.group(box), parts: this.colouring.parts(box), title: "▸ " + this.pen.fit(box.name, box.w - 40, 12.5, 600, true), name: "",
        note: "", about, share,
      };
      if (box.open) { look.title = box.name; look.note = about + (share ? ", " + share : ""); } else look.name = about + (share ? " · " + share : "");
    }
    this.looks.set(box, look);
    return look;
  }
  paint() {
    const [width, height, ratio] = this.size(), { view, pen, model } = this;
    if (!width) return;
    if (this.looksOf !== this.colouring || this.looksScene !== this.scene) {
      [this.looks, this.looksOf, this.looksScene] = [new Map(), this.colouring, this.scene];
    }
    pen.begin(view, width, height, ratio);
    const left = -view.x / view.zoom - 10, top = -view.y / view.zoom - 10;
    const right = left + width / view.zoom + 20, bottom = top + height / view.zoom + 20;
    const seen = (b) => b.left <= right && b.left + b.w >= left && b.top <= bottom && b.top + b.h >= top;
    const boxes = this.scene.boxes.filter(seen);
    for (const box of boxes) if (box.open) pen.opened(box, this.look(box));
    const plain = [], crossing = [], own = [];
    for (const edge of this.scene.edges) {
      if (edge.left > right || edge.right < left || edge.top > bottom || edge.bottom < top) continue;
      if (this.box && (edge.from === this.box || edge.to === this.box)) own.push(edge);
      else if (this.crosses(edge)) crossing.push(edge);
      else plain.push(edge);
    }
    pen.edges(plain, pen.edge, 1.2);
    pen.edges(crossing, pen.cross, 2);
    pen.edges(own, pen.accent, 2.4);
    if (view.zoom >= 0.8) this.labels([...plain, ...crossing, ...own], top, bottom);
    const dots = new Map();
    for (const box of boxes) {
      if (box.open) { pen.heading(box, this.look(box)); continue; }
      const pale = this.found.size > 0 && !(box.nodes.length && this.hitsOf(box));
      if (pen.isFar && box.nodes.length) {
        const key = (pale ? "pale" : "full") + this.look(box).colour;
        if (dots.has(key)) dots.get(key).push(box); else dots.set(key, [box]);
        continue;
      }
      pen.c.globalAlpha = pale ? 0.25 : 1;
      if (box.kind === "node") pen.leaf(box, this.look(box));
      else if (box.kind === "group") pen.closed(box, this.look(box));
      else { const v = model.values[box.value]; pen.end(box, box.kind === "input" ? "in " : "out ", v.name, model.type(v)); }
    }
    for (const [key, own] of dots) pen.dots(own, key.slice(4), key.startsWith("pale") ? 0.25 : 1);
    pen.c.globalAlpha = 1;
    if (this.box) pen.outline(this.box, pen.accent, 2.5);
    this.canvas.dataset.drawn = boxes.length;
  }
  crosses(edge) {
    if (edge.device === undefined) {
      const device = (leaf) => (leaf.kind === "node" ? this.model.nodes[leaf.node].device : null);
      edge.device = [...edge.values].some((v) => {
        const writer = this.model.values[v].writer;
        if (writer < 0 || edge.from.kind === "output") return false;
        const own = device(this.tree.leaves[writer]), inside = new Set(edge.to.nodes);
        return this.model.values[v].readers.some((r) => inside.has(r) && this.model.nodes[r].device !== own);
      });
    }
    return edge.device;
  }
  /* Shape and bytes of the value, beside the end of an edge. */
  labels(edges, top, bottom) {
    const taken = [];
    for (const edge of edges) {
      const n = edge.points.length, [a, b] = [edge.points[n - 2], edge.points[n - 1]];
      if (b[1] < top || b[1] > bottom || b[1] - a[1] < 24) continue;
      const first = this.model.values[edge.values.values().next().value];
      const text = edge.values.size > 1 ? plural(edge.values.size, "value") : this.model.shape(first) + (this.view.zoom >= 1 ? ", " + bytes(first.bytes) : "");
      const [x, y] = [(a[0] + b[0]) / 2 + 5, (a[1] + b[1]) / 2 + 3], end = x + this.pen.width(text, 9.5) + 4;
      // On one another they could not be read; the pointer has all of them.
      if (taken.some(([l, r, at]) => x < r && end > l && Math.abs(at - y) < 10)) continue;
      taken.push([x, end, y]);
      this.pen.text(text, x, y, 9.5, this.pen.dim);
    }
  }
  describe(edge) {
    const values = [...edge.values].map((v) => this.model.values[v]);
    const lines = values.slice(0, 6).map((v) => v.name + "\n" + this.model.type(v) + ", " + bytes(v.bytes));
    if (values.length > 6) lines.push("and " + (values.length - 6) + " more values");
    return lines.join("\n");
  }
}
