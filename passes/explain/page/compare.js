/* Two reports side by side: this one and another, whose nodes are matched by name. */
class Comparison {
  constructor(model, actions) {
    this.model = model;
    this.actions = actions;
    this.own = null;
  }
  /* Take another report's model; `name` is what its file is called. */
  load(other, name) {
    this.other = other;
    this.name = name;
    const pairs = this.model.nodes.map((n) => [n, other.byLabel.has(n.label) ? other.nodes[other.byLabel.get(n.label)] : null]);
    const matched = new Set(pairs.filter(([, o]) => o).map(([, o]) => o.i));
    // A device has one colour on both sides.
    other.deviceNames = [...new Set([...this.model.deviceNames, ...other.deviceNames])];
    this.pairs = [...pairs, ...other.nodes.filter((o) => !matched.has(o.i)).map((o) => [null, o])];
    $("compared").hidden = false;
    $("comparetitle").textContent = "Left: this report. Right: " + name + ".";
    this.summary();
    this.operators();
    this.nodes();
    this.graphs();
  }
  ratio(a, b) { return a && b ? b / a : null; }
  /* Times are compared if both reports measured them, or neither did. */
  get comparable() { return this.model.isMeasured === this.other.isMeasured; }
  summary() {
    const { model, other } = this, sums = [model, other].map((m) => sumOf(m, m.nodes));
    const run = (m) => (m.measured ? m.measured.us : m.partitions.reduce((sum, p) => (sum === null || p.us === null ? null : sum + p.us), 0));
    const rows = [
      ["run, " + (this.comparable ? model.timeName : model.timeName + " and " + other.timeName), run(model), run(other), time],
      ["run, estimated", ...[model, other].map((m) => m.partitions.reduce((sum, p) => (sum === null || p.us === null ? null : sum + p.us), 0)), time],
      ["nodes", model.nodes.length, other.nodes.length, (v) => v.toLocaleString("en")],
      ["partitions", model.partitions.length, other.partitions.length, String],
      ["transfers", model.transfers.length, other.transfers.length, String],
      ["bytes transferred", ...[model, other].map((m) => m.transfers.reduce((sum, t) => sum + t.bytes, 0)), bytes],
      ["kernels", ...[model, other].map((m) => (m.measured ? m.measured.kernels.length : null)), (v) => (v === null ? "not measured" : String(v))],
      ["FLOPs", sums[0].flops, sums[1].flops, flops],
      ["weights", sums[0].weights, sums[1].weights, bytes],
    ];
    table($("comparesums"), [
      ["", (r) => r[0]], ["left", (r) => (r[1] === null ? "unknown" : r[3](r[1]))], ["right", (r) => (r[2] === null ? "unknown" : r[3](r[2]))],
      ["right / left", (r) => this.ratio(r[1], r[2]), (v) => (v === null ? "" : v.toFixed(2))],
    ], rows);
  }
  operators() {
    const { model, other } = this, both = [model, other].map((m) => new Map(sumsBy(m, m.nodes, (n) => n.op).map((r) => [r.key, r])));
    const rows = [...new Set([...both[0].keys(), ...both[1].keys()])].map((key) => ({ key, a: both[0].get(key) || null, b: both[1].get(key) || null }));
    const us = (r) => (r ? r.us : null), change = (r) => (us(r.b) || 0) - (us(r.a) || 0);
    rows.sort((x, y) => Math.abs(change(y)) - Math.abs(change(x)));
    table($("compareoperators"), [
      ["operator", (r) => r.key], ["nodes left", (r) => (r.a ? r.a.nodes.length : 0)], ["nodes right", (r) => (r.b ? r.b.nodes.length : 0)],
      ["time left", (r) => us(r.a), (v) => (v === null ? "" : time(v))], ["time right", (r) => us(r.b), (v) => (v === null ? "" : time(v))],
      ["difference", change, signed], ["right / left", (r) => this.ratio(us(r.a), us(r.b)), (v) => (v === null ? "" : v.toFixed(2))],
    ], rows);
  }
  nodes() {
    const { model, other } = this;
    const a = ([n]) => (n ? model.time(n) : null), b = ([, o]) => (o ? other.time(o) : null);
    const change = (pair) => (a(pair) === null && b(pair) === null ? null : (b(pair) || 0) - (a(pair) || 0));
    const rows = [...this.pairs].sort((x, y) => Math.abs(change(y) || 0) - Math.abs(change(x) || 0));
    table($("comparenodes"), [
      ["node", ([n, o]) => (n || o).label], ["operator", ([n, o]) => (n && o && n.op !== o.op ? n.op + " → " + o.op : (n || o).op)],
      ["device left", ([n]) => (n ? n.device : "absent")], ["device right", ([, o]) => (o ? o.device : "absent")],
      ["time left", a, (v) => (v === null ? "" : time(v))], ["time right", b, (v) => (v === null ? "" : time(v))],
      ["difference", change, (v) => (v === null ? "" : signed(v))], ["right / left", (p) => this.ratio(a(p), b(p)), (v) => (v === null ? "" : v.toFixed(2))],
    ], rows, { click: (pair) => this.show(pair) });
  }
  graphs() {
    const follow = (from, to) => (box) => {
      if (!box || box.kind !== "node" || this.following) { this.actions.describe(from(), box); return; }
      this.following = true;
      const partner = to().model.byLabel.get(from().model.nodes[box.node].label);
      if (partner !== undefined) to().show(partner); else to().choose(null);
      this.following = false;
      this.describe(from());
    };
    for (const id of ["left", "right"]) $(id).replaceWith(make("canvas", null, null, { id, tabIndex: 0, ariaLabel: "Graph on the " + id + ", as in the tab Graph", role: "application" }));
    this.left = new GraphView($("left"), this.model, follow(() => this.left, () => this.right));
    this.right = new GraphView($("right"), this.other, follow(() => this.right, () => this.left));
    for (const view of [this.left, this.right]) { view.colour($("colour").value); view.start(); }
  }
  show([n, o]) {
    this.following = true;
    if (o) this.right.show(o.i); else this.right.choose(null);
    if (n) this.left.show(n.i); else this.left.choose(null);
    this.following = false;
    this.describe(n ? this.left : this.right);
    $("left").scrollIntoView({ block: "nearest" });
  }
  /* What is selected in one of the graphs, after what it is on both sides. */
  describe(view) {
    this.actions.describe(view, view.box);
    const list = make("dl", null, null, { className: "sides" }), times = [];
    for (const [name, { model, box }] of [["Left", this.left], ["Right", this.right]]) {
      const node = box && box.kind === "node" ? model.nodes[box.node] : null;
      times.push(node ? model.time(node) : null);
      make("dt", name, list);
      make("dd", node ? node.device + ", " + time(model.time(node)) : "absent", list);
    }
    const ratio = this.ratio(...times);
    if (ratio !== null) { make("dt", "Right / left", list); make("dd", ratio.toFixed(2), list); }
    $("detail").prepend(list);
  }
  each(action) { if (this.left) [this.left, this.right].forEach(action); }
}
const signed = (us) => (us > 0 ? "+" : us < 0 ? "−" : "") + time(Math.abs(us));
