/* What a graph does on the mouse and on keys. */
const KEY_STEP = 60;

function listen(graph) {
  const { canvas, view } = graph;
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => {
    drag = { x: e.clientX, y: e.clientY, moved: false };
    canvas.setPointerCapture(e.pointerId);
    hideTip();
  });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) { point(graph, e); return; }
    if (!drag.moved && Math.abs(e.clientX - drag.x) + Math.abs(e.clientY - drag.y) <= 3) return;
    view.x += e.clientX - drag.x; view.y += e.clientY - drag.y;
    drag = { x: e.clientX, y: e.clientY, moved: true };
    graph.draw();
  });
  canvas.addEventListener("pointerup", (e) => {
    if (drag && !drag.moved) {
      const box = graph.at(e.offsetX, e.offsetY);
      const arrow = box && (e.offsetX - view.x) / view.zoom < box.left + 30;
      if (box && box.kind === "group" && (arrow || box === graph.box)) graph.toggle(box);
      else graph.choose(box, false);
    }
    drag = null;
  });
  canvas.addEventListener("dblclick", (e) => {
    const box = graph.at(e.offsetX, e.offsetY);
    if (box && box.kind === "node") graph.reveal(box);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    if (e.shiftKey) { view.x -= e.deltaY || e.deltaX; graph.draw(); return; }
    graph.zoom(Math.exp(-e.deltaY / 400), e.offsetX, e.offsetY);
  }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const action = KEYS[e.key];
    if (action && action(graph, e.shiftKey) !== false) e.preventDefault();
  });
}
const KEYS = {
  "+": (g) => g.zoom(1.3), "=": (g) => g.zoom(1.3), "-": (g) => g.zoom(1 / 1.3),
  f: (g) => g.fit(), 0: (g) => g.start(),
  Enter: (g) => (g.box && g.box.kind === "group" ? g.toggle(g.box) : false),
  " ": (g) => (g.box && g.box.kind === "group" ? g.toggle(g.box) : false),
  Backspace: (g) => (g.box && g.box.parent && g.box.parent.parent ? g.toggle(g.box.parent) : false),
  Escape: (g) => (g.box ? g.choose(null) : false),
  ArrowDown: (g, shift) => step(g, "down", shift), ArrowUp: (g, shift) => step(g, "up", shift),
  ArrowRight: (g, shift) => step(g, "right", shift), ArrowLeft: (g, shift) => step(g, "left", shift),
};
/* Go along an edge, or sideways to the nearest box; with Shift, or with nothing selected, move the view. */
function step(graph, way, moves) {
  const vertical = way === "down" || way === "up", sign = way === "down" || way === "right" ? 1 : -1;
  if (moves) {
    graph.view[vertical ? "y" : "x"] -= sign * KEY_STEP;
    graph.draw();
    return;
  }
  const from = graph.box;
  if (!from) {
    const first = graph.scene.boxes.find((b) => b.kind !== "group" || !b.open);
    if (first) graph.choose(first, true);
    return;
  }
  let next = null;
  if (vertical) {
    const ends = graph.scene.edges.filter((e) => (sign > 0 ? e.from : e.to) === from).map((e) => (sign > 0 ? e.to : e.from));
    next = nearest(ends, from, (b) => Math.abs(b.y - from.y) + Math.abs(b.x - from.x));
  }
  if (!next) {
    const ahead = graph.scene.boxes.filter((b) => !b.open && b !== from && sign * (vertical ? b.y - from.y : b.x - from.x) > 1);
    next = nearest(ahead, from, (b) => (vertical ? 3 * Math.abs(b.x - from.x) + Math.abs(b.y - from.y) : Math.abs(b.x - from.x) + 3 * Math.abs(b.y - from.y)));
  }
  if (next) graph.choose(next, true);
}
function nearest(boxes, from, distance) {
  let best = null, least = Infinity;
  for (const box of boxes) { const d = distance(box); if (d < least) [best, least] = [box, d]; }
  return best;
}

/* What is under the pointer, in words. */
function point(graph, event) {
  const box = graph.at(event.offsetX, event.offsetY);
  const edge = box ? null : graph.edgeAt(event.offsetX, event.offsetY);
  graph.canvas.style.cursor = box ? "pointer" : "grab";
  if (edge) showTip(graph.describe(edge), event);
  else if (box && box.kind === "node") showTip(graph.model.nodes[box.node].label, event);
  else if (box && box.kind === "group") showTip(box.path + "\n" + plural(box.nodes.length, "node") + (box === graph.box ? ": click to " : ": click its arrow to ") + (box.open ? "close" : "open"), event);
  else hideTip();
}
function showTip(text, event) {
  const tip = $("tip");
  tip.textContent = text;
  tip.hidden = false;
  const [w, h] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - w - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 16, innerHeight - h - 8)) + "px";
}
function hideTip() { $("tip").hidden = true; }
