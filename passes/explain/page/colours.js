/* Colours: those of the style, and those that stand for devices, operators and times. */
const HUES = ["#4c8dd6", "#e0913a", "#4fa97a", "#a077d1", "#d4626e", "#3fa7b4", "#a8963a", "#7f8a9b", "#c76ba8", "#6f9a3c", "#5d6fc9", "#b5764a"];
const REST = "#98a2b3";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mixes = new Map();
function mix(a, b, share) {
  const key = a + b + share;
  let found = mixes.get(key);
  if (!found) {
    const [x, y] = [rgb(a), rgb(b)];
    found = "#" + x.map((v, i) => Math.round(v * (1 - share) + y[i] * share).toString(16).padStart(2, "0")).join("");
    mixes.set(key, found);
  }
  return found;
}

/* The colours of nodes in one of the modes, with what they stand for. `parts` are of a group: [colour, share] each. */
class Colouring {
  constructor(model, mode) {
    this.model = model;
    this.mode = mode;
    const counts = new Map();
    for (const node of model.nodes) counts.set(node.op, (counts.get(node.op) || 0) + 1);
    const ops = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    this.ops = new Map(ops.slice(0, HUES.length).map(([op], i) => [op, HUES[i]]));
    this.counts = counts;
    this.longest = Math.max(0, ...model.nodes.map((n) => model.time(n) || 0).filter(Number.isFinite));
    this.known = new Map();
  }
  static device(model, name) { return HUES[Math.max(0, model.deviceNames.indexOf(name)) % HUES.length]; }
  /* Short times are pale, long ones red; the scale is that of square roots, so that short ones differ, too. */
  heat(share) {
    const s = Math.round(Math.sqrt(Math.max(0, Math.min(1, share))) * 20) / 20;
    return s < 0.5 ? mix("#7fb8a4", "#e8b04a", s * 2) : mix("#e8b04a", "#d0393b", s * 2 - 1);
  }
  node(node) {
    if (this.mode === "device") return Colouring.device(this.model, node.device);
    if (this.mode === "operator") return this.ops.get(node.op) || REST;
    const us = this.model.time(node);
    return us === null ? REST : this.heat(us / this.longest);
  }
  parts(box) {
    let found = this.known.get(box);
    if (!found) {
      const counts = new Map();
      for (const i of box.nodes) {
        const colour = this.node(this.model.nodes[i]);
        counts.set(colour, (counts.get(colour) || 0) + 1);
      }
      found = [...counts].sort((a, b) => b[1] - a[1]).map(([colour, n]) => [colour, n / box.nodes.length]);
      this.known.set(box, found);
    }
    return found;
  }
  group(box) {
    if (this.mode !== "time") return this.parts(box)[0][0];
    const us = box.nodes.reduce((sum, i) => sum + (this.model.time(this.model.nodes[i]) || 0), 0);
    return this.heat(this.model.total ? us / this.model.total : 0);
  }
  legend(parent) {
    clear(parent);
    const key = (colour, text) => {
      const item = make("span", null, parent, { className: "key" });
      make("span", null, item, { className: "dot" }).style.background = colour;
      make("span", text, item);
    };
    const { model } = this;
    if (this.mode === "device") {
      for (const name of model.deviceNames) key(Colouring.device(model, name), name + " (" + model.nodes.filter((n) => n.device === name).length + ")");
    } else if (this.mode === "operator") {
      for (const [op, colour] of [...this.ops].slice(0, 8)) key(colour, op + " (" + this.counts.get(op) + ")");
      if (this.counts.size > 8) make("span", "and " + (this.counts.size - 8) + " more", parent, { className: "dim" });
    } else {
      key(this.heat(0), "0"); key(this.heat(0.25), time(this.longest / 4)); key(this.heat(1), time(this.longest));
      if (model.nodes.some((n) => model.time(n) === null)) key(REST, "not known");
    }
  }
}
