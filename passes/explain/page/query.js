/* Search: words, and fields as in `op:Conv device:GPU time>1ms -name:bias`. */
const UNITS = {
  time: { ns: 1e-3, us: 1, "µs": 1, ms: 1e3, s: 1e6 },
  bytes: { b: 1, kb: 1e3, mb: 1e6, gb: 1e9 },
  flops: { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12 },
  share: { "": 1, "%": 1 },
  part: { "": 1 },
};
const TEXT_FIELDS = {
  name: (n) => [n.label],
  op: (n) => [n.op],
  module: (n, m) => [scopesOf(m)[n.i].join("/") + "/"],
  device: (n) => [n.device],
  why: (n) => [n.why],
  bound: (n) => [n.bound || ""],
  dtype: (n, m) => n.out.map((v) => m.values[v].dtype),
  shape: (n, m) => n.out.map((v) => m.shape(m.values[v]).replaceAll("×", "x")),
  value: (n, m) => [...n.in, ...n.out].map((v) => m.values[v].name),
  attribute: (n, m) => m.attributes[n.attributes].map(([name, text]) => name + "=" + text),
  kernel: (n, m) => (m.measured ? n.kernels.map((k) => m.measured.kernels[k].symbol) : []),
};
const NUMBER_FIELDS = {
  time: (n, m) => m.time(n),
  bytes: (n) => n.bytes,
  flops: (n) => n.flops,
  share: (n, m) => (m.total ? 100 * (m.time(n) || 0) / m.total : null),
  part: (n) => n.part,
};
const EXACT = new Set(["op", "device", "why", "bound", "dtype"]);

/* A function of node and model; throws an Error that says what is wrong with the text. */
function parseQuery(text) {
  const terms = text.match(/(?:[^\s"]+|"[^"]*"?)+/g) || [];
  const tests = terms.map(parseTerm);
  return (node, model) => tests.every((test) => test(node, model));
}
function parseTerm(term) {
  if (term.length > 1 && term.startsWith("-")) { const inner = parseTerm(term.slice(1)); return (n, m) => !inner(n, m); }
  const parts = /^([a-z]+)(:|<=|>=|<|>|=)(.*)$/is.exec(term);
  if (!parts) {
    const wanted = term.replaceAll('"', "").toLowerCase();
    return (n) => (n.label + " " + n.op + " " + n.device + " p" + n.part).toLowerCase().includes(wanted);
  }
  const [field, sign, rest] = [parts[1].toLowerCase(), parts[2], parts[3].replaceAll('"', "")];
  if (NUMBER_FIELDS[field]) return numberTest(field, sign === ":" ? "=" : sign, rest);
  if (!TEXT_FIELDS[field]) {
    throw new Error("unknown field '" + field + "': there are " + [...Object.keys(TEXT_FIELDS), ...Object.keys(NUMBER_FIELDS)].join(", "));
  }
  if (sign !== ":" && sign !== "=") throw new Error("'" + field + "' is text: write " + field + ":" + (rest || "…"));
  const wanted = rest.toLowerCase(), of = TEXT_FIELDS[field];
  if (EXACT.has(field) && !wanted.includes("*")) return (n, m) => of(n, m).some((t) => t.toLowerCase() === wanted || t.toLowerCase().endsWith("::" + wanted));
  if (!wanted.includes("*")) return (n, m) => of(n, m).some((t) => t.toLowerCase().includes(wanted));
  const glob = new RegExp("^" + wanted.split("*").map((t) => t.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*") + "$");
  return (n, m) => of(n, m).some((t) => glob.test(t.toLowerCase()));
}
function numberTest(field, sign, text) {
  const parts = /^p?([0-9.]+(?:e[0-9]+)?)\s*([a-zµ%]*)$/i.exec(text);
  const units = UNITS[field], unit = parts ? parts[2].toLowerCase().replace(/flops?$/, "") : "";
  const scale = parts ? units[unit || ("" in units ? "" : field === "time" ? "us" : "b")] : undefined;
  if (scale === undefined || Number.isNaN(Number(parts[1]))) {
    throw new Error("'" + text + "' is not a " + field + ": write " + field + sign + "1" + { time: "ms", bytes: "MB", flops: "M", share: "%", part: "" }[field]);
  }
  const limit = Number(parts[1]) * scale, of = NUMBER_FIELDS[field];
  const tests = { "<": (x) => x < limit, ">": (x) => x > limit, "<=": (x) => x <= limit, ">=": (x) => x >= limit, "=": (x) => x === limit };
  return (n, m) => { const x = of(n, m); return x !== null && x !== undefined && tests[sign](x); };
}
