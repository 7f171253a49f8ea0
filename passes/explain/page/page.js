"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#3b8fe0", "#f0a04b", "#57b57f", "#b57edc", "#e06c75", "#45b8c4", "#b8a038", "#8b95a5"];
const COLUMN = 170, LAYER = 62, BOX_W = 150, BOX_H = 40, ROWS = 1000;
const $ = (id) => document.getElementById(id);
const colour = (device) => COLOURS[Math.max(0, D.devices.indexOf(device)) % COLOURS.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function time(us) {
  if (us === null || us === undefined) return "unknown";
  return us < 999.95 ? us.toFixed(1) + " µs" : us < 999950 ? (us / 1e3).toFixed(2) + " ms" : (us / 1e6).toFixed(2) + " s";
}
function bytes(n) {
  if (n < 1000) return n + " B";
  for (const unit of ["kB", "MB", "GB"]) { n /= 1000; if (n < 999.95) return n.toFixed(1) + " " + unit; }
  return (n / 1000).toFixed(1) + " TB";
}
function make(tag, text, parent) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

/* ---- head ---------------------------------------------------------------------------------------------------- */
$("model").textContent = D.model + ", policy " + D.policy;
$("summary").textContent = D.summary;
for (const note of D.notes) make("li", note, $("notes"));
for (const device of D.devices) {
  const key = make("span", null, $("legend"));
  key.className = "key";
  const dot = make("span", null, key);
  dot.className = "dot";
  dot.style.background = colour(device);
  make("span", device + " (" + D.nodes.filter((n) => n.device === device).length + ")", key);
}

/* ---- graph --------------------------------------------------------------------------------------------------- */
const canvas = $("graph"), pen = canvas.getContext("2d");
const spots = D.nodes.map((n) => [n.at[0] * COLUMN, n.at[1] * LAYER]);
const view = { x: 0, y: 0, zoom: 1 };
let chosen = -1, found = new Set(), foundList = [], foundAt = -1;

function box() {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of spots) {
    left = Math.min(left, x); top = Math.min(top, y); right = Math.max(right, x); bottom = Math.max(bottom, y);
  }
  return [left - BOX_W, top - BOX_H, right + BOX_W, bottom + BOX_H];
}
function size() {
  const ratio = window.devicePixelRatio || 1, at = canvas.getBoundingClientRect();
  canvas.width = Math.round(at.width * ratio);
  canvas.height = Math.round(at.height * ratio);
  return [at.width, at.height, ratio];
}
function fit() {
  if (!spots.length) return;
  const [width, height] = size(), [left, top, right, bottom] = box();
  view.zoom = Math.min(1.2, width / (right - left), height / (bottom - top));
  view.x = (width - (left + right) * view.zoom) / 2;
  view.y = (height - (top + bottom) * view.zoom) / 2;
  draw();
}
function start() {
  // A deep graph is a thin line as a whole: begin at its top, at a size that can be read.
  fit();
  if (view.zoom < 0.35 && spots.length) {
    const [width] = size(), [, top] = box();
    view.zoom = 0.6;
    view.x = width / 2 - spots[0][0] * view.zoom;
    view.y = 10 - top * view.zoom;
    draw();
  }
}
function draw() {
  const [width, height, ratio] = size();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.setTransform(ratio * view.zoom, 0, 0, ratio * view.zoom, ratio * view.x, ratio * view.y);
  const left = -view.x / view.zoom - BOX_W, top = -view.y / view.zoom - BOX_H * 2;
  const right = left + width / view.zoom + 2 * BOX_W, bottom = top + height / view.zoom + 4 * BOX_H;
  const fg = css("--fg"), edge = css("--edge"), cross = css("--cross");
  for (const [a, b] of D.edges) {
    const [x, y] = spots[a], [u, v] = spots[b];
    if (Math.max(x, u) < left || Math.min(x, u) > right || Math.max(y, v) < top || Math.min(y, v) > bottom) continue;
    const crosses = D.nodes[a].device !== D.nodes[b].device;
    pen.strokeStyle = crosses ? cross : edge;
    pen.lineWidth = (crosses ? 2.5 : 1.2) / Math.min(1, Math.max(view.zoom, 0.25));
    pen.beginPath();
    pen.moveTo(x, y + BOX_H / 2);
    const bend = Math.max(12, (v - y - BOX_H) / 2);
    // An edge over several layers goes around the nodes between its ends.
    const aside = v - y > 1.5 * LAYER ? (u < x ? -1 : 1) * BOX_W * 0.9 : 0;
    pen.bezierCurveTo(x + aside, y + BOX_H / 2 + bend, u + aside, v - BOX_H / 2 - bend, u, v - BOX_H / 2);
    pen.stroke();
  }
  let drawn = 0;
  const readable = view.zoom > 0.3;
  const wide = Math.max(BOX_W, 5 / view.zoom), high = Math.max(BOX_H, 2.5 / view.zoom);
  pen.textAlign = "center";
  D.nodes.forEach((node, i) => {
    const [x, y] = spots[i];
    if (x < left || x > right || y < top || y > bottom) return;
    drawn += 1;
    pen.globalAlpha = found.size && !found.has(i) ? 0.22 : 1;
    pen.fillStyle = colour(node.device);
    pen.beginPath();
    pen.roundRect(x - wide / 2, y - high / 2, wide, high, 6);
    pen.fill();
    if (i === chosen) { pen.strokeStyle = fg; pen.lineWidth = 3 / Math.min(1, view.zoom); pen.stroke(); }
    if (readable) {
      pen.fillStyle = "#0c1118";
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(short(node.op, 20), x, y - 3);
      pen.font = "10px system-ui, sans-serif";
      pen.fillText(short(node.label, 27), x, y + 12);
    }
  });
  pen.globalAlpha = 1;
  canvas.dataset.drawn = drawn;
}
function short(text, most) { return text.length <= most ? text : "…" + text.slice(text.length - most + 1); }
function zoom(factor, x, y) {
  const next = Math.min(4, Math.max(0.005, view.zoom * factor)), real = next / view.zoom;
  view.x = x - (x - view.x) * real;
  view.y = y - (y - view.y) * real;
  view.zoom = next;
  draw();
}
function show(index) {
  const [width, height] = size();
  view.zoom = Math.max(view.zoom, 0.8);
  view.x = width / 2 - spots[index][0] * view.zoom;
  view.y = height / 2 - spots[index][1] * view.zoom;
  choose(index);
}
function choose(index) {
  chosen = index;
  draw();
  const panel = $("detail");
  panel.textContent = "";
  if (index < 0) return;
  const node = D.nodes[index];
  make("h3", node.op + " '" + node.label + "'", panel);
  const list = make("dl", null, panel);
  const line = (name, text) => { make("dt", name, list); make("dd", text, list); };
  line("Device", node.device + ", partition p" + node.part);
  line("Why", D.texts[node.text]);
  line("Estimated time", time(node.us));
  for (const [device, reason, us] of node.others) {
    const longer = us === null ? "possible" : "a run would take " + time(Math.abs(us)) + (us < 0 ? " less" : " more");
    line("On " + device, reason !== null ? "not possible: " + D.texts[reason] : longer);
  }
  for (const kernel of D.kernels.filter((k) => k.nodes.includes(node.label)))
    line("Kernel (measured)", kernel.name + ": " + time(kernel.us) + (kernel.nodes.length > 1 ? ", with " + (kernel.nodes.length - 1) + " other nodes" : ""));
}
function hit(event) {
  const at = canvas.getBoundingClientRect();
  const x = (event.clientX - at.left - view.x) / view.zoom, y = (event.clientY - at.top - view.y) / view.zoom;
  return spots.findIndex(([u, v]) => Math.abs(x - u) <= BOX_W / 2 && Math.abs(y - v) <= BOX_H / 2);
}
let drag = null;
canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, y: e.clientY, moved: false }; canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener("pointermove", (e) => {
  if (!drag) return;
  if (Math.abs(e.clientX - drag.x) + Math.abs(e.clientY - drag.y) > 3 || drag.moved) {
    view.x += e.clientX - drag.x; view.y += e.clientY - drag.y;
    drag = { x: e.clientX, y: e.clientY, moved: true };
    draw();
  }
});
canvas.addEventListener("pointerup", (e) => { if (drag && !drag.moved) choose(hit(e)); drag = null; });
canvas.addEventListener("wheel", (e) => {
  e.preventDefault();
  const at = canvas.getBoundingClientRect();
  zoom(Math.exp(-e.deltaY / 400), e.clientX - at.left, e.clientY - at.top);
}, { passive: false });
const middle = (factor) => { const at = canvas.getBoundingClientRect(); zoom(factor, at.width / 2, at.height / 2); };
$("in").onclick = () => middle(1.4);
$("out").onclick = () => middle(1 / 1.4);
$("fit").onclick = fit;
function search() {
  const wanted = $("search").value.trim().toLowerCase();
  foundList = [];
  if (wanted) D.nodes.forEach((n, i) => {
    if ((n.label + " " + n.op + " " + n.device + " p" + n.part).toLowerCase().includes(wanted)) foundList.push(i);
  });
  found = new Set(foundList);
  foundAt = -1;
  $("hits").textContent = wanted ? foundList.length + " of " + D.nodes.length : "";
  if (foundList.length) step(); else draw();
}
function step() {
  if (!foundList.length) return;
  foundAt = (foundAt + 1) % foundList.length;
  show(foundList[foundAt]);
}
$("search").oninput = search;
$("search").onkeydown = (e) => { if (e.key === "Enter") step(); };
$("next").onclick = step;
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

/* ---- timeline ------------------------------------------------------------------------------------------------ */
function timeline() {
  const place = $("timeline");
  place.textContent = "";
  $("timetitle").textContent = D.measured ? "Timeline, measured" : "Timeline, estimated";
  const steps = D.timeline.filter((s) => s.start !== null && s.us !== null);
  if (!steps.length) { make("p", "The times of some nodes are not known.", place).className = "more"; return; }
  const end = Math.max(...steps.map((s) => s.start + s.us)) || 1;
  const lanes = [...D.devices, "transfers"], lane = 34, label = 90, bottom = 24;
  const inside = place.clientWidth - label - 24, width = inside * Number($("stretch").value);
  const NS = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("width", width + label + 10);
  svg.setAttribute("height", lanes.length * lane + bottom);
  const add = (tag, attributes, text) => {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    svg.append(element);
    return element;
  };
  lanes.forEach((name, i) => {
    add("text", { x: 8, y: i * lane + 21 }, name);
    add("line", { x1: label, x2: label + width, y1: (i + 1) * lane, y2: (i + 1) * lane, stroke: css("--line") });
  });
  const ticks = Math.max(2, Math.round(width / 140));
  for (let i = 0; i <= ticks; i++) {
    const x = label + (width * i) / ticks;
    add("line", { x1: x, x2: x, y1: 0, y2: lanes.length * lane, stroke: css("--line") });
    add("text", { x: Math.min(x + 2, label + width - 50), y: lanes.length * lane + 16, class: "dim" }, time((end * i) / ticks));
  }
  for (const s of steps) {
    const x = label + (s.start / end) * width, w = Math.max(1, (s.us / end) * width);
    const row = s.kind === "transfer" ? lanes.length - 1 : lanes.indexOf(s.device);
    const block = add("rect", { x, y: row * lane + 6, width: w, height: lane - 12, rx: 3, fill: s.kind === "transfer" ? css("--cross") : colour(s.device) });
    const hint = document.createElementNS(NS, "title");
    hint.textContent = s.name + (s.from ? ": " + s.from + " → " + s.device : " on " + s.device) + ", " + time(s.us) + " from " + time(s.start);
    block.append(hint);
    if (w > 28 && s.kind === "partition") add("text", { x: x + 5, y: row * lane + 21, "pointer-events": "none" }, s.name);
  }
  place.append(svg);
}
$("stretch").oninput = timeline;
window.addEventListener("resize", timeline);

/* ---- tables -------------------------------------------------------------------------------------------------- */
function table(id, columns, rows, click) {
  const place = $(id);
  let by = -1, down = false;
  const paint = () => {
    place.textContent = "";
    if (!rows.length) { make("p", "None.", place).className = "more"; return; }
    const scroll = make("div", null, place);
    scroll.className = "scroll";
    const grid = make("table", null, scroll), head = make("tr", null, make("thead", null, grid)), body = make("tbody", null, grid);
    columns.forEach(([name], c) => {
      const cell = make("th", name + (c === by ? (down ? " ▼" : " ▲") : ""), head);
      if (rows.some((r) => typeof columns[c][1](r) === "number")) cell.className = "num";
      cell.onclick = () => { down = c === by ? !down : rows.some((r) => typeof columns[c][1](r) === "number"); by = c; paint(); };
    });
    const order = rows.map((row, i) => [row, i]);
    if (by >= 0) order.sort(([a, i], [b, j]) => {
      const x = columns[by][1](a), y = columns[by][1](b);
      const less = x === null ? (y === null ? 0 : -1) : y === null ? 1 : typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return (down ? -less : less) || i - j;
    });
    for (const [row, i] of order.slice(0, ROWS)) {
      const line = make("tr", null, body);
      for (const [, value, text] of columns) {
        const raw = value(row), cell = make("td", text ? text(raw, row) : raw === null ? "" : raw, line);
        if (typeof raw === "number") cell.className = "num";
      }
      if (click) { line.className = "row"; line.onclick = () => click(row, i); }
    }
    if (order.length > ROWS) make("p", "The first " + ROWS + " of " + order.length + " rows; the search above finds the others.", place).className = "more";
  };
  paint();
}
const go = (index) => { show(index); canvas.scrollIntoView({ block: "center" }); };
table("plans", [
  ["plan", (p) => p.name + (p.chosen ? " (this plan)" : "")],
  ["nodes", (p) => Object.entries(p.nodes).map(([d, n]) => d + " " + n).join(", ")],
  ["partitions", (p) => p.why_not === null ? p.partitions : null], ["transfers", (p) => p.why_not === null ? p.transfers : null],
  ["bytes", (p) => p.why_not === null ? p.transfer_bytes : null, (v) => v === null ? "" : bytes(v)],
  ["estimated", (p) => p.estimated_us, (v) => v === null ? "" : time(v)],
  ["measured", (p) => p.measured_us, (v) => v === null ? "" : time(v)],
  ["not possible", (p) => p.why_not || ""],
], D.plans);
table("partitions", [
  ["partition", (p) => D.partitions.indexOf(p), (v) => "p" + v], ["device", (p) => p.device], ["nodes", (p) => p.nodes],
  ["estimated", (p) => p.us, time], ["bytes in", (p) => p.in, bytes], ["bytes out", (p) => p.out, bytes],
], D.partitions, (p) => go(D.nodes.findIndex((n) => n.part === D.partitions.indexOf(p))));
table("transfers", [
  ["value", (t) => t.value], ["from", (t) => t.from], ["to", (t) => t.to], ["bytes", (t) => t.bytes, bytes],
  ["estimated", (t) => t.us, time], ["why", (t) => t.text],
], D.transfers, (t) => go(t.writer));
if (D.kernels.length) table("kernels", [
  ["kernel", (k) => k.name], ["device", (k) => k.device], ["partition", (k) => k.part], ["measured", (k) => k.us, time],
  ["nodes", (k) => k.nodes.length], ["names", (k) => k.nodes.join(", ")],
], D.kernels); else $("kernelsection").remove();
table("nodes", [
  ["node", (n) => n.label], ["operator", (n) => n.op], ["device", (n) => n.device], ["partition", (n) => n.part, (v) => "p" + v],
  ["estimated", (n) => n.us, time], ["why", (n) => n.why], ["reason", (n) => D.texts[n.text]],
], D.nodes, (n, i) => go(i));

start();
timeline();
document.body.dataset.ready = D.nodes.length;
