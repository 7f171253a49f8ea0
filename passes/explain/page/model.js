/* A report's data with what follows from it: who writes and reads each value, and times of nodes. */
class Model {
  constructor(data) {
    Object.assign(this, data);
    this.data = data;
    this.values = data.values.map(([name, dtype, shape, size, constant, least, most], i) =>
      ({ i, name, dtype, shape, bytes: size, constant: Boolean(constant), least, most, writer: -1, readers: [] }));
    this.nodes = data.nodes.map((node, i) => ({ ...node, i, part: node.part }));
    for (const node of this.nodes) {
      for (const v of node.out) this.values[v].writer = node.i;
      for (const v of new Set(node.in)) this.values[v].readers.push(node.i);
    }
    this.deviceNames = data.devices.map((d) => d.name);
    this.isMeasured = Boolean(data.measured && data.measured.kernels.length);
    const sum = (of) => this.nodes.reduce((total, n) => total + (of(n) || 0), 0);
    this.nodesMeasured = sum((n) => n.measured);
    this.nodesEstimated = sum((n) => n.us);
    this.byLabel = new Map(this.nodes.map((n) => [n.label, n.i]));
  }
  /* The time that the page shows of a node: what was measured, else the estimate; null if neither is known. */
  time(node) { return this.isMeasured ? node.measured : node.us; }
  get total() { return this.isMeasured ? this.nodesMeasured : this.nodesEstimated; }
  get timeName() { return this.isMeasured ? "measured" : "estimated"; }
  weights(node) { return node.in.map((v) => this.values[v]).filter((v) => v.constant); }
  shape(value) { return value.shape === null ? "unknown rank" : value.shape.length ? value.shape.join("×") : "scalar"; }
  type(value) { return value.dtype + " " + this.shape(value); }
  /* The nodes that write what a node reads, and those that read what it writes. */
  before(node) { return [...new Set(node.in.map((v) => this.values[v].writer))].filter((i) => i >= 0); }
  after(node) { return [...new Set(node.out.flatMap((v) => this.values[v].readers))]; }
}

/* The data in the text of a report that was written to a file; an Error says what is wrong with it. */
function readReport(text, format) {
  const found = /<script type="application\/json" id="data">([^<]*)<\/script>/.exec(text);
  if (!found) throw new Error("it is not a report of heterocc");
  let data;
  try { data = JSON.parse(found[1]); } catch { throw new Error("its data is damaged"); }
  if (data.format !== format) throw new Error("another version of heterocc wrote it: write it again");
  return new Model(data);
}
