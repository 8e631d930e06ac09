// The page: what is selected, and what follows from it.

const $ = (id) => document.getElementById(id);
const state = { run: 0, index: 0, across: 0, up: Math.min(1, DATA.m - 1), weights: DATA.names.map(() => 1 / DATA.m) };

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function row(cells, tag) {
  const made = element("tr");
  for (const cell of cells) made.append(cell instanceof Node ? cell : element(tag || "td", cell));
  return made;
}

const finite = (run, i) => run.objectives.every((column) => column[i] !== null);
const points = (run) => Array.from({ length: size(run) }, (_, i) => i).filter((i) => finite(run, i));

// Points in the order of the first objective, for the arrow keys.
const ORDER = DATA.runs.map((run) => points(run).sort((a, b) => run.objectives[0][a] - run.objectives[0][b]));

// The point whose preference is nearest; for a method without preferences, the one that the weighted Tchebycheff rule would choose.
function nearest(run, weights) {
  let best = -1, least = Infinity;
  for (const i of points(run)) {
    const distance = run.preference
      ? run.preference.reduce((sum, column, k) => sum + (column[i] - weights[k]) ** 2, 0)
      : Math.max(...weights.map((w, k) => w * scaled(run.objectives[k][i], k)));
    if (distance < least) { least = distance; best = i; }
  }
  return best;
}

function select(run, index, keepWeights) {
  if (index < 0) return;
  Object.assign(state, { run, index });
  const preference = DATA.runs[run].preference;
  if (!keepWeights && preference) state.weights = preference.map((column) => column[index]);
  $("run").value = run;
  showPanel();
  showSliders();
  const front = $("plot-front");
  const mark = ring(state, front.columns);
  Plotly.restyle(front, spatial() ? { x: [mark.x], y: [mark.y], z: [mark.z] } : { x: [mark.x], y: [mark.y] }, [front.data.length - 1]);
  if (DATA.m > 2 && $("plot-parallel").data) {
    const parallel = $("plot-parallel"), columns = DATA.runs[run].objectives;
    Plotly.restyle(parallel, { y: [columns.map((column, i) => scaled(column[index], i))] }, [parallel.data.length - 1]);
    drawRadar();
  }
  if ($("plots-way").children.length) markWay();
}

// The selected point's curves drawn thick; the charts themselves change only with the run.
function markWay() {
  const run = DATA.runs[state.run], holder = $("plots-way");
  if (!run.curves) return;
  if (Number($("way-run").value) !== state.run) { $("way-run").value = state.run; drawWay(); return; }
  for (let q = 0; q < holder.children.length; q++) {
    const { x, y } = ownCurve(run, q, state.index), chart = holder.children[q];
    Plotly.restyle(chart, { x: [x], y: [y] }, [chart.data.length - 1]);
  }
}

function showPanel() {
  const run = DATA.runs[state.run], i = state.index, panel = $("panel");
  const vector = (columns) => "(" + columns.map((column) => short(column[i])).join(", ") + ")";
  const list = element("dl");
  const entry = (name, value) => { list.append(element("dt", name), element("dd", value)); };
  entry("preference", run.preference ? vector(run.preference) : "none: the method has no preferences");
  DATA.names.forEach((name, k) => entry(name, short(run.objectives[k][i])));
  entry("seed", String(run.seed[i]));
  entry("stopped by", run.failure[i] || run.reason[i]);
  entry("nondominated", run.nondominated[i] ? "yes, within its run" : "no");
  if (run.distance) entry("distance", `${short(run.distance[i])} of the exact front's extent`);
  if (run.lower_residual) entry("‖∇y g‖", short(run.lower_residual[i]));
  const certificate = run.certificates && run.certificates[i];
  if (!certificate) entry("certificate", "not computed; bipareto report --certify computes it for known problems");
  else {
    if (certificate.kkt !== undefined) {
      entry("certificate", `lower level: ${certificate.lower}, gap ${short(certificate.gap)}`);
      entry("kkt residual", short(certificate.kkt));
      entry("descent left", certificate.descent);
    }
    for (const note of certificate.notes) entry("note", note);
  }
  const code = element("code", `x, y = ${run.load}.point(${i})`, { id: "code" });
  panel.replaceChildren(element("h3", `Point ${i} of ${run.name}`), list, code);
}

function showSliders() {
  const inputs = $("sliders").querySelectorAll("input");
  inputs.forEach((input, k) => {
    input.value = state.weights[k];
    input.setAttribute("aria-valuetext", `${state.weights[k].toFixed(3)}, point ${state.index}`);
    input.nextElementSibling.textContent = state.weights[k].toFixed(3);
  });
}

// Move one weight; the others share the rest in their old proportions.
function moveWeight(k, value) {
  const rest = state.weights.reduce((sum, w, i) => (i === k ? sum : sum + w), 0);
  state.weights = state.weights.map((w, i) => (i === k ? value : rest > 0 ? (w * (1 - value)) / rest : (1 - value) / (DATA.m - 1)));
  select(state.run, nearest(DATA.runs[state.run], state.weights), true);
}

function makeSliders() {
  if (DATA.m < 2) return;
  const form = $("sliders");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.append(element("p", "Preference: picks the nearest solution"));
  DATA.names.slice(0, DATA.m === 2 ? 1 : DATA.m).forEach((name, k) => {
    const label = element("label");
    const input = element("input", undefined, { type: "range", min: 0.001, max: 0.999, step: 0.001, id: `weight-${k}`, "aria-label": `Weight of ${name}` });
    input.addEventListener("input", () => moveWeight(k, Number(input.value)));
    label.append(element("span", name), input, element("output"));
    form.append(label);
  });
}

function drawFront() {
  const { traces, layout, columns } = frontFigure(state, state.across, state.up);
  const target = $("plot-front");
  target.columns = columns;
  return Plotly.react(target, traces, layout, CONFIG);
}

function drawRadar() {
  const chosen = DATA.runs.map((run, r) => ({ run: r, index: r === state.run ? state.index : nearest(run, state.weights) })).filter((p) => p.index >= 0);
  const { traces, layout } = radarFigure(chosen);
  Plotly.react($("plot-radar"), traces, layout, CONFIG);
}

function drawMany() {
  if (DATA.m < 3) return;
  const { traces, layout } = parallelFigure(state);
  const first = !$("plot-parallel").data;
  Plotly.react($("plot-parallel"), traces, layout, CONFIG);
  if (first) $("plot-parallel").on("plotly_click", (event) => clicked(event, DATA.m + 1));
  drawRadar();
}

function drawWay() {
  const r = Number($("way-run").value), run = DATA.runs[r];
  if (!run || !run.curves) return;
  const holder = $("plots-way"), count = run.curves.names.length;
  while (holder.children.length > count) { Plotly.purge(holder.lastChild); holder.lastChild.remove(); }
  for (let q = 0; q < count; q++) {
    if (!holder.children[q]) holder.append(element("div", undefined, { class: "plot", role: "img" }));
    holder.children[q].setAttribute("aria-label", `${run.curves.names[q]} over the steps`);
    const { traces, layout } = wayFigure(run, q, r === state.run ? state.index : -1);
    Plotly.react(holder.children[q], traces, layout, { ...CONFIG, displayModeBar: false });
  }
  const c = run.curves;
  const band = c.band ? `Blue: median and range of ${c.total} points; ` : "";
  $("way-note").textContent = `${band}${c.records} records${c.records > c.steps.length ? ", thinned to the smallest and largest value of each bucket" : ""}. The selected point is drawn thick where its curve is kept (${c.runs.length} of ${c.total}).`;
}

function drawCompare() {
  if (DATA.runs.length < 2 || !DATA.comparable) return;
  const { traces, layout } = hypervolumeFigure();
  Plotly.react($("plot-hypervolume"), traces, layout, CONFIG);
}

function drawAll() { drawFront(); drawMany(); drawCompare(); drawWay(); }

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-pressed", String(name === "dark"));
  $("theme").setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colours`);
}

function fillSummary() {
  const table = $("summary");
  const named = DATA.runs.some((run) => run.distance);
  table.append(row(["run", "method", "points", "nondominated", "hypervolume", ...(named ? ["IGD+", "worst distance"] : []), "seconds"], "th"));
  DATA.runs.forEach((run, r) => {
    const name = element("td");
    const swatch = element("span", undefined, { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = DATA.runs.length > 1 ? DATA.runs[r].colour : "transparent";
    name.append(swatch, document.createTextNode(run.name));
    const worst = run.distance ? run.distance.reduce((a, b) => (b !== null && b > a ? b : a), 0) : null;
    const count = run.nondominated.reduce((a, b) => a + b, 0);
    table.append(row([
      name, run.method || "–", String(size(run)), String(count), DATA.comparable ? short(run.hypervolume) : "–",
      ...(named ? [short(run.igd_plus), short(worst)] : []), short(run.seconds),
    ]));
  });
  const raw = DATA.runs.filter((run) => !run.resolved).length;
  $("reference").textContent =
    (DATA.comparable ? `Hypervolume up to (${DATA.reference.map(short).join(", ")}): ${DATA.reference_is}. ` : "The runs are of different problems, so their hypervolumes are not compared. ") +
    (DATA.exact_hypervolume ? `The exact front has ${short(DATA.exact_hypervolume)}. ` : "") +
    (raw ? "Some objectives are as the method returned them, with the lower level only approximately solved, and may lie below the front." : "All objectives are with the lower level solved again, those of networks with y trained on g.") +
    DATA.runs.filter((run) => run.leak).map((run) => ` ${run.name}, means over its points: ` +
      run.leak.map(([name, values]) => `${name} (${values.map(short).join(", ")})`).join("; ") + ".").join("");
}

function fillPoints() {
  const limit = 60, run = DATA.runs[0], table = $("points");
  table.append(row(["point", ...(run.preference ? DATA.names.map((name) => `w(${name})`) : []), ...DATA.names, "seed"], "th"));
  for (const i of ORDER[0].slice(0, limit)) {
    table.append(row([String(i), ...(run.preference || []).map((column) => short(column[i])), ...run.objectives.map((column) => short(column[i])), String(run.seed[i])]));
  }
  $("points-note").textContent = `${run.name}, in the order of ${DATA.names[0]}` + (ORDER[0].length > limit ? `; the first ${limit} of ${ORDER[0].length}.` : ".");
}

function fillConfig() {
  for (const run of DATA.runs) {
    const details = element("details");
    details.append(element("summary", run.name), element("pre", run.config || "Nothing is known of how this front was made."));
    $("config").append(details);
  }
}

function options(box, names, chosen) {
  names.forEach((name, i) => box.append(element("option", name, { value: i })));
  box.value = chosen;
}

function clicked(event, perPoint) {
  const point = event.points.find((p) => Number.isInteger(p.data.meta));
  if (point) select(point.data.meta, Math.floor(point.pointNumber / perPoint));
}

function keyed(event) {
  const order = ORDER[state.run], at = order.indexOf(state.index);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: order.length - 1 }[event.key];
  if (to === undefined || event.target !== $("plot-front")) return;
  event.preventDefault();
  select(state.run, order[Math.max(0, Math.min(order.length - 1, to))]);
}

function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.title = DATA.title;
  $("title").textContent = DATA.title;
  $("footer").textContent = `Written by bipareto ${DATA.version}. This page loads nothing from anywhere.`;
  const names = DATA.runs.map((run) => run.name);
  options($("run"), names, 0);
  options($("way-run"), names, 0);
  $("run-label").hidden = DATA.runs.length < 2;
  options($("axis-x"), DATA.names, state.across);
  options($("axis-y"), DATA.names, state.up);
  $("axes").hidden = DATA.m < 3 || spatial();
  $("many").hidden = DATA.m < 3;
  $("compare").hidden = DATA.runs.length < 2 || !DATA.comparable;
  const recorded = DATA.runs.findIndex((run) => run.curves);
  $("way").hidden = recorded < 0;
  if (recorded >= 0) $("way-run").value = recorded;
  $("compare-note").textContent = "Mean over seeds; whiskers: standard deviation over seeds; dots: the seeds.";
  $("front-note").textContent = (DATA.exact ? "Grey: the exact front. " : "") + "Click a point, or give the plot the focus and use the arrow keys. Pale points are dominated within their run.";
  fillSummary(); fillPoints(); fillConfig(); makeSliders();
  state.index = nearest(DATA.runs[0], state.weights);
  if (state.index < 0) { $("panel").textContent = "No run of this front is finite."; return; }
  const preference = DATA.runs[0].preference;
  if (preference) state.weights = preference.map((column) => column[state.index]);
  showPanel(); showSliders(); drawFront();
  $("plot-front").on("plotly_click", (event) => clicked(event, 1));
  $("plot-front").addEventListener("keydown", keyed);
  $("run").addEventListener("change", () => select(Number($("run").value), nearest(DATA.runs[Number($("run").value)], state.weights)));
  $("way-run").addEventListener("change", drawWay);
  for (const [id, key] of [["axis-x", "across"], ["axis-y", "up"]]) {
    $(id).addEventListener("change", () => { state[key] = Number($(id).value); drawFront(); });
  }
  $("theme").addEventListener("click", () => { setTheme(theme() === "dark" ? "light" : "dark"); drawAll(); });
  // Paper is white and narrow.
  let before = theme();
  addEventListener("beforeprint", () => { before = theme(); if (before === "dark") { setTheme("light"); drawAll(); } fit(true); });
  addEventListener("afterprint", () => { fit(false); if (before === "dark") { setTheme("dark"); drawAll(); } });
  // The front is shown and can be used before the charts further down are drawn.
  painted(() => {
    window.shownAt = performance.now();
    drawMany(); drawCompare(); drawWay();
    painted(() => {
      window.drawnAt = performance.now();
      document.documentElement.dataset.ready = "true";
    });
  });
}

// Charts in the width of a sheet, or as wide as the window allows.
function fit(paper) {
  for (const chart of document.querySelectorAll(".js-plotly-plot")) {
    const half = chart.closest(".grid, .even") !== null;
    Plotly.relayout(chart, paper ? { width: half ? 335 : 680 } : { width: undefined, autosize: true });
  }
}

// What follows two frames later has seen all that was drawn before.
function painted(then) { requestAnimationFrame(() => requestAnimationFrame(then)); }

start();
