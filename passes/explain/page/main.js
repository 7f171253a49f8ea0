/* The page: its tabs, search, and what is selected. */
const model = new Model(JSON.parse($("data").textContent));
const views = {};
const filled = new Set();
let found = [], foundAt = -1;

function head() {
  $("model").textContent = model.model;
  $("policy").textContent = "policy " + model.policy + (model.measured ? ", measured over " + plural(model.measured.runs, "run") + ": " + time(model.measured.us) + " a run" : ", estimated");
  $("summary").textContent = model.summary;
  for (const note of model.notes) make("li", note, $("notes"));
  $("notebox").hidden = !model.notes.length;
  $("notecount").textContent = plural(model.notes.length, "note");
}
const actions = {
  show: (node) => { views.graph.show(node); select("graph"); },
  toggle: (group) => views.graph.toggle(group),
  describe: (view, box) => detail($("detail"), view.model, box, { show: (i) => view.show(i), toggle: (g) => view.toggle(g) }),
};
function chosen(box) {
  detail($("detail"), model, box, actions);
  $("said").textContent = !box ? "" : box.kind === "node" ? model.nodes[box.node].op + " " + model.nodes[box.node].label : box.kind + " " + box.name;
}

/* ---- tabs */
const TABS = [...document.querySelectorAll("[role=tab]")];
const FILL = {
  graph: () => {},
  timeline: () => {
    views.timeline = new Timeline($("lanes"), model, (item) => { if (item.node !== null) { views.graph.show(item.node); } });
    $("source").value = views.timeline.source;
    $("source").disabled = !model.measured;
    $("timenote").textContent = model.measured ? "One run, that of median length. " + model.measured.note : "Estimated, one step after the other. `heterocc bench --profile --report` measures it.";
    views.timeline.sums($("lanesums"));
    if (!views.timeline.items.length) $("timenote").textContent = "The times of some nodes are not known.";
  },
  sums: () => sumsPanel(model, buildTree(model, "scope")),
  nodes: () => nodesPanel(model, actions.show, found.length ? found : null),
  kernels: () => kernelsPanel(model, actions.show),
  plan: () => planPanel(model, actions.show),
  compare: () => { if (beside) compareWith(() => new Model(beside.report), beside.name); },
};
function select(name) {
  for (const tab of TABS) {
    const on = tab.dataset.panel === name;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    $("panel-" + tab.dataset.panel).hidden = !on;
  }
  if (!filled.has(name)) { filled.add(name); FILL[name](); }
  redraw();
}
function redraw() {
  views.graph.draw();
  if (views.timeline) views.timeline.draw();
  compared.each((view) => view.draw());
}
for (const tab of TABS) {
  tab.onclick = () => select(tab.dataset.panel);
  tab.onkeydown = (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const shown = TABS.filter((t) => !t.hidden), next = shown[(shown.indexOf(tab) + step + shown.length) % shown.length];
    select(next.dataset.panel);
    next.focus();
    e.preventDefault();
  };
}

/* ---- search */
function search() {
  const text = $("search").value.trim();
  let test = null, wrong = "";
  try { test = text ? parseQuery(text) : null; } catch (error) { wrong = error.message; }
  found = test ? model.nodes.filter((n) => test(n, model)).map((n) => n.i) : [];
  foundAt = -1;
  const us = found.reduce((sum, i) => sum + (model.time(model.nodes[i]) || 0), 0);
  $("hits").textContent = wrong || (!test ? "" : found.length.toLocaleString("en") + " of " + plural(model.nodes.length, "node") + (found.length && model.total ? ", " + time(us) + " (" + percent(us, model.total) + ")" : ""));
  $("hits").classList.toggle("wrong", Boolean(wrong));
  $("next").disabled = $("previous").disabled = !found.length;
  // With nothing found all boxes are pale.
  views.graph.mark(test && !found.length ? [-1] : found);
  filled.delete("nodes");
  if (!$("panel-nodes").hidden) select("nodes");
  else if (found.length && !$("panel-graph").hidden) go(1);
}
function go(by) {
  if (!found.length) return;
  foundAt = (foundAt + by + found.length) % found.length;
  views.graph.show(found[foundAt]);
}
function searchFor(text) { $("search").value = text; select("graph"); search(); }
$("search").oninput = search;
$("search").onkeydown = (e) => {
  if (e.key === "Enter") go(e.shiftKey ? -1 : 1);
  if (e.key === "Escape") { $("search").value = ""; search(); }
};
$("next").onclick = () => { select("graph"); go(1); };
$("previous").onclick = () => { select("graph"); go(-1); };
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) { $("search").focus(); e.preventDefault(); }
});

/* ---- graph */
$("colour").onchange = () => {
  for (const view of [views.graph]) { view.colour($("colour").value); view.colouring.legend($("legend")); }
  compared.each((view) => view.colour($("colour").value));
};
$("grouping").onchange = () => { views.graph.group($("grouping").value); views.graph.start(); views.graph.mark(found); };
$("in").onclick = () => views.graph.zoom(1.4);
$("out").onclick = () => views.graph.zoom(1 / 1.4);
$("fit").onclick = () => views.graph.fit();
$("openall").onclick = () => views.graph.openAll(true);
$("closeall").onclick = () => views.graph.openAll(false);
$("timein").onclick = () => views.timeline.zoom(1.6);
$("timeout").onclick = () => views.timeline.zoom(1 / 1.6);
$("timeall").onclick = () => views.timeline.reset();
$("source").onchange = () => { views.timeline.load($("source").value); views.timeline.sums($("lanesums")); };

/* ---- comparison */
/* The report that was packed into this page to be compared with it, or null. */
const beside = JSON.parse($("beside").textContent);
const compared = new Comparison(model, actions);
function compareWith(read, name) {
  $("comparewrong").textContent = "";
  try { compared.load(read(), name); } catch (error) {
    $("compared").hidden = true;
    $("comparewrong").textContent = name + " cannot be compared: " + error.message;
  }
}
$("other").onchange = async () => {
  const [file] = $("other").files;
  if (!file) return;
  const text = await file.text();
  compareWith(() => readReport(text, model.format), file.name);
};

head();
$("kernelstab").hidden = !model.measured;
views.graph = new GraphView($("graph"), model, chosen);
views.graph.colouring.legend($("legend"));
chosen(null);
select("graph");
views.graph.start();
if (beside) select("compare");
new ResizeObserver(redraw).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  [views.graph, views.timeline, compared.left, compared.right].forEach((view) => { if (view) view.pen.refresh(); });
  redraw();
});
requestAnimationFrame(() => { performance.mark("ready"); document.body.dataset.ready = model.nodes.length; });
