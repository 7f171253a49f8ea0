/* A timeline of partitions, kernels and transfers: a lane for each thread, device with a clock of its own, and link. */
const LANE_HEAD = 170, ROW = 20, LANE_PAD = 7, AXIS = 22, LEAST_SPAN = 0.02;

class Timeline {
  constructor(canvas, model, chosen) {
    Object.assign(this, { canvas, model, onChosen: chosen, from: 0, to: 1, picked: null });
    this.draw = perFrame(() => this.paint());
    this.pen = new Pen(canvas.getContext("2d", { alpha: false }));
    this.load(model.measured && model.measured.moments.length ? "measured" : "estimated");
    this.listen();
  }
  load(source) {
    this.source = source;
    [this.lanes, this.items] = source === "measured" ? measuredItems(this.model) : estimatedItems(this.model);
    this.end = this.items.reduce((most, i) => Math.max(most, i.start + i.us), 0) || 1;
    let y = AXIS;
    for (const lane of this.lanes) { lane.top = y; y += LANE_PAD * 2 + ROW * lane.rows; }
    this.canvas.style.height = Math.max(y + 6, 90) + "px";
    this.reset();
  }
  reset() { [this.from, this.to] = [0, this.end * 1.01]; this.draw(); }
  zoom(factor, at) {
    const middle = at === undefined ? (this.from + this.to) / 2 : at, span = Math.max(LEAST_SPAN, (this.to - this.from) / factor);
    const share = (middle - this.from) / (this.to - this.from);
    this.from = middle - share * span;
    this.to = this.from + span;
    this.inside();
  }
  move(us) { this.from += us; this.to += us; this.inside(); }
  inside() {
    const span = Math.min(this.to - this.from, this.end * 1.01);
    this.from = Math.max(0, Math.min(this.from, this.end * 1.01 - span));
    this.to = this.from + span;
    this.draw();
  }
  get scale() { return (this.canvas.clientWidth - LANE_HEAD - 8) / (this.to - this.from); }
  x(us) { return LANE_HEAD + (us - this.from) * this.scale; }
  us(x) { return this.from + (x - LANE_HEAD) / this.scale; }
  top(item) { return this.lanes[item.lane].top + LANE_PAD + item.row * ROW; }
  at(x, y) {
    if (x < LANE_HEAD) return null;
    let best = null;
    for (const item of this.items) {
      const top = this.top(item), left = this.x(item.start), right = Math.max(left + 2, this.x(item.start + item.us));
      if (y >= top && y < top + ROW - 2 && x >= left - 1 && x <= right && (!best || item.us < best.us)) best = item;
    }
    return best;
  }
  colour(item) {
    if (item.kind === "transfer") return this.pen.cross;
    if (item.kind === "partition") return Colouring.device(this.model, item.device);
    return item.node === null ? REST : this.colouring.node(this.model.nodes[item.node]);
  }
  paint() {
    const { canvas, pen } = this, ratio = window.devicePixelRatio || 1, [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    this.colouring = this.colouring || new Colouring(this.model, "operator");
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pen.begin({ x: 0, y: 0, zoom: 1 }, width, height, ratio);
    const c = pen.c;
    this.axis(width, height);
    for (const lane of this.lanes) {
      c.fillStyle = pen.line;
      c.fillRect(0, lane.top + LANE_PAD * 2 + ROW * lane.rows, width, 1);
      pen.text(short(lane.name, 12), 8, lane.top + LANE_PAD + 13, 11.5, pen.fg, 600);
      pen.text(lane.about, LANE_HEAD - 8, lane.top + LANE_PAD + 13, 10.5, pen.dim, 400, "right");
    }
    c.save();
    c.beginPath();
    c.rect(LANE_HEAD, 0, width - LANE_HEAD, height);
    c.clip();
    const last = new Map();
    let drawn = 0;
    for (const item of this.items) {
      const left = this.x(item.start), w = Math.max(1, item.us * this.scale);
      if (left > width || left + w < LANE_HEAD) continue;
      const row = item.lane * 8 + item.row;
      if (left + w - (last.get(row) || -1) < 0.6) continue; // within a pixel that is drawn already
      last.set(row, left + w);
      drawn += 1;
      c.fillStyle = item.kind === "partition" ? mix(pen.card, this.colour(item), 0.45) : this.colour(item);
      const gap = w > 4 ? 0.7 : 0;
      c.fillRect(left, this.top(item), w - gap, ROW - 3);
      if (item === this.picked) { c.strokeStyle = pen.fg; c.lineWidth = 2; c.strokeRect(left + 1, this.top(item) + 1, Math.max(1, w - gap - 2), ROW - 5); }
      const room = Math.floor((Math.min(left + w, width) - Math.max(left, LANE_HEAD) - 8) / 6.2);
      if (room >= 3) pen.text(item.name.length <= room ? item.name : item.name.slice(0, room - 1) + "…", Math.max(left, LANE_HEAD) + 4, this.top(item) + 13, 11, item.kind === "partition" ? pen.fg : "#10151d", 500);
    }
    c.restore();
    canvas.dataset.drawn = drawn;
  }
  axis(width, height) {
    const { pen } = this, span = this.to - this.from, rough = span / Math.max(2, (width - LANE_HEAD) / 120);
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.x(at);
      pen.c.fillStyle = pen.line;
      pen.c.fillRect(x, AXIS - 4, 1, height);
      pen.text(at === 0 ? "0" : time(at), x + 3, 13, 10.5, pen.dim);
    }
  }
  /* How much of the run each lane does something, by what is in its last row: kernels where it has some. */
  sums(place) {
    const rows = this.lanes.map((lane, i) => {
      const own = this.items.filter((item) => item.lane === i && item.row === lane.rows - 1);
      return { lane, steps: own.length, us: own.reduce((sum, item) => sum + item.us, 0), what: own.length ? own[0].kind : "" };
    });
    table(place, [
      ["lane", (r) => r.lane.name + (r.lane.about ? ", " + r.lane.about : "")], ["what", (r) => r.what && r.what + "s"], ["steps", (r) => r.steps], ["busy", (r) => r.us, time],
      ["share of the run", (r) => 100 * r.us / this.end, (v) => v.toFixed(1) + " %"],
    ], rows, { shares: 4 });
  }
  pick(item) {
    this.picked = item;
    this.draw();
    if (item) this.onChosen(item);
  }
  listen() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, moved: false }; canvas.setPointerCapture(e.pointerId); hideTip(); });
    canvas.addEventListener("pointermove", (e) => {
      if (drag) {
        if (!drag.moved && Math.abs(e.clientX - drag.x) <= 3) return;
        this.move(-(e.clientX - drag.x) / this.scale);
        drag = { x: e.clientX, moved: true };
        return;
      }
      const item = this.at(e.offsetX, e.offsetY);
      if (item) showTip(item.about + "\n" + time(item.us) + " from " + (item.start ? time(item.start) : "0") + ", " + percent(item.us, this.end) + " of the run", e); else hideTip();
    });
    canvas.addEventListener("pointerup", (e) => { if (drag && !drag.moved) this.pick(this.at(e.offsetX, e.offsetY)); drag = null; });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("wheel", (e) => {
      if (e.shiftKey) this.move((e.deltaY || e.deltaX) / this.scale);
      else if (e.offsetX < LANE_HEAD) return; // the page scrolls
      else this.zoom(Math.exp(-e.deltaY / 300), this.us(e.offsetX));
      e.preventDefault();
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      const span = this.to - this.from;
      const action = { "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.reset(), f: () => this.reset(),
        ArrowRight: () => (e.shiftKey ? this.move(span / 8) : this.next(1)), ArrowLeft: () => (e.shiftKey ? this.move(-span / 8) : this.next(-1)) }[e.key];
      if (action && !e.ctrlKey && !e.metaKey) { action(); e.preventDefault(); }
    });
  }
  /* Pick the step after or before the picked one in its lane. */
  next(sign) {
    const at = this.picked || { start: this.from - 1, lane: null };
    const same = this.items.filter((i) => (at.lane === null ? i.kind === "kernel" : i.lane === at.lane && i.row === at.row));
    const item = sign > 0 ? same.find((i) => i.start > at.start) : same.findLast((i) => i.start < at.start);
    if (!item) return;
    if (item.start < this.from || item.start + item.us > this.to) this.move(item.start + item.us / 2 - (this.from + this.to) / 2);
    this.pick(item);
  }
}
/* One run as it was measured. */
function measuredItems(model) {
  const { tracks, moments, kernels, steps } = model.measured;
  const lanes = tracks.map((name) => ({ name: name.split(", ")[0], about: name.split(", ").slice(1).join(", "), rows: 1 }));
  const items = moments.map(([isKernel, place, lane, start, us]) => {
    if (isKernel) {
      const kernel = kernels[place];
      const node = kernel.nodes.length ? kernel.nodes.reduce((a, b) => ((model.nodes[a].us || 0) >= (model.nodes[b].us || 0) ? a : b)) : null;
      return { kind: "kernel", name: node === null ? kernel.symbol : kernelName(model, kernel), about: kernel.symbol + "\n" + kernel.name, device: kernel.device, lane, row: 1, start, us, node, kernel: place };
    }
    const found = steps[place];
    return { kind: found.kind, name: found.name, about: found.kind + " " + found.name, device: found.device, lane, row: 0, start, us, node: null };
  });
  for (const item of items) {
    // A lane that has kernels alone needs one row.
    if (item.kind === "kernel" && tracks[item.lane].endsWith("clock")) item.row = 0;
    lanes[item.lane].rows = Math.max(lanes[item.lane].rows, item.row + 1);
  }
  return [lanes, items];
}
function kernelName(model, kernel) {
  const ops = [...new Set(kernel.nodes.map((i) => model.nodes[i].op.split("::").pop()))];
  return ops.length > 3 ? ops.slice(0, 3).join("+") + "+…" : ops.join("+");
}
/* One step after the other, as the cost model has it. */
function estimatedItems(model) {
  const lanes = model.deviceNames.map((name) => ({ name, about: "estimated", rows: 2 })), items = [];
  const own = model.partitions.map(() => []);
  for (const node of model.nodes) if (own[node.part]) own[node.part].push(node);
  model.partitions.forEach((part, p) => {
    if (part.start === null || part.us === null) return;
    const lane = model.deviceNames.indexOf(part.device);
    items.push({ kind: "partition", name: "p" + p, about: "partition p" + p + " on " + part.device, device: part.device, lane, row: 0, start: part.start, us: part.us, node: null });
    let at = part.start + part.us - own[p].reduce((sum, n) => sum + n.us, 0);
    for (const node of own[p]) {
      items.push({ kind: "kernel", name: node.op, about: node.op + "\n" + node.label, device: part.device, lane, row: 1, start: at, us: node.us, node: node.i });
      at += node.us;
    }
  });
  if (model.transfers.length) lanes.push({ name: "transfers", about: "", rows: 1 });
  for (const t of model.transfers) {
    if (t.start === null || t.us === null) continue;
    items.push({ kind: "transfer", name: t.value, about: t.value + "\n" + t.from + " → " + t.to + ", " + bytes(t.bytes), device: t.to, lane: lanes.length - 1, row: 0, start: t.start, us: t.us, node: t.writer });
  }
  items.sort((a, b) => a.start - b.start);
  return [lanes, items];
}
