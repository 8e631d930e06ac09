"use strict";
// What is drawn, and how: functions of the data and of the selected point.  Names from users go through `plain`,
// since Plotly would read tags in them.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"];
const SYMBOLS_3D = ["circle", "square", "diamond", "cross", "x", "circle-open", "square-open", "diamond-open"];
const MANY = 1000; // from so many points on, WebGL draws them
const HAS_GL = (() => {
  try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch (error) { return false; }
})();

const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const colour = (r) => {
  const found = DATA.runs[r].colour;
  return found === "#000000" && theme() === "dark" ? "#ffffff" : found;
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const theme = () => document.documentElement.dataset.theme;
const short = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(5)).toString());
const size = (run) => run.seed.length;
const spatial = () => DATA.m === 3 && HAS_GL;
const scattered = (count) => (count > MANY && HAS_GL ? "scattergl" : "scatter");

// Best and worst value of every objective on this page.
const RANGE = DATA.names.map((_, i) => {
  let low = Infinity, high = -Infinity;
  for (const run of DATA.runs) {
    for (const value of run.objectives[i]) {
      if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    }
  }
  return [low, high > low ? high : low + 1];
});

const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

function themed(layout) {
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--faint") };
  const result = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), size: 12 },
    margin: { l: 60, r: 16, t: 12, b: 48 }, legend: { bgcolor: "rgba(0,0,0,0)", orientation: "h", y: 1.02, yanchor: "bottom" },
    hovermode: "closest", ...layout,
  };
  for (const key of ["xaxis", "yaxis"]) result[key] = { ...axis, ...result[key] };
  if (layout.scene) for (const key of ["xaxis", "yaxis", "zaxis"]) result.scene[key] = { ...axis, ...result.scene[key] };
  if (layout.polar) {
    result.polar = { bgcolor: "rgba(0,0,0,0)", ...layout.polar };
    for (const key of ["radialaxis", "angularaxis"]) result.polar[key] = { ...axis, ...result.polar[key] };
  }
  return result;
}

// The front: exact points beneath, one trace per run, the selected point as a ring on top.
function frontFigure(selected, across, up) {
  const columns = spatial() ? [0, 1, 2] : DATA.m === 1 ? [null, 0] : [across, up];
  const take = (objectives, count) => {
    const xs = columns.map((c) => (c === null ? Array.from({ length: count }, (_, i) => i) : objectives[c]));
    return spatial() ? { x: xs[0], y: xs[1], z: xs[2] } : { x: xs[0], y: xs[1] };
  };
  const traces = [];
  if (DATA.exact && DATA.m > 1) {
    traces.push({
      ...take(DATA.exact, 0), type: spatial() ? "scatter3d" : "scatter", mode: "markers", name: "exact front", hoverinfo: "skip",
      marker: { size: spatial() ? 1.6 : 3.5, color: css("--exact"), opacity: 0.6 }, meta: null,
    });
  }
  const single = DATA.runs.length === 1;
  DATA.runs.forEach((run, r) => {
    const weights = single && run.preference;
    traces.push({
      ...take(run.objectives, size(run)), name: plain(run.name), meta: r, mode: "markers",
      type: spatial() ? "scatter3d" : scattered(size(run)), customdata: run.preference ? run.preference[0].map((_, i) => i) : undefined,
      marker: {
        size: spatial() ? 4.5 : size(run) > MANY ? 5 : 9, symbol: spatial() ? SYMBOLS_3D[r % 8] : SYMBOLS[r % 8],
        color: weights ? run.preference[0] : colour(r), colorscale: "Viridis", cmin: 0, cmax: 1, showscale: Boolean(weights),
        colorbar: weights ? { title: { text: "weight of " + plain(DATA.names[0]), side: "right" }, thickness: 12, len: 0.9 } : undefined,
        opacity: spatial() || size(run) > MANY ? 0.9 : run.nondominated.map((flag) => (flag ? 0.95 : 0.35)),
        line: { width: size(run) > MANY ? 0 : 0.7, color: css("--ink") },
      },
      hovertemplate: (DATA.m === 1 ? "run %{x}: %{y:.5g}" : spatial() ? "(%{x:.5g}, %{y:.5g}, %{z:.5g})" : "(%{x:.5g}, %{y:.5g})") + "<extra></extra>",
      showlegend: true,
    });
  });
  traces.push({ ...ring(selected, columns), meta: null });
  const title = (i) => ({ title: { text: columns[i] === null ? "run" : plain(DATA.names[columns[i]]) } });
  const layout = spatial()
    ? { scene: { xaxis: title(0), yaxis: title(1), zaxis: title(2), camera: { eye: { x: 1.6, y: 1.6, z: 1 }, center: { x: 0, y: 0, z: -0.15 } } }, margin: { l: 0, r: 0, t: 0, b: 0 } }
    : { xaxis: title(0), yaxis: title(1) };
  return { traces, layout: themed({ ...layout, uirevision: `${across}-${up}` }), columns };
}

function ring(selected, columns) {
  const run = DATA.runs[selected.run];
  const at = columns.map((c) => [c === null ? selected.index : run.objectives[c][selected.index]]);
  const common = { mode: "markers", name: "selected", hoverinfo: "skip", showlegend: false };
  return spatial()
    ? { ...common, x: at[0], y: at[1], z: at[2], type: "scatter3d", marker: { size: 11, symbol: "circle-open", color: css("--ink"), line: { width: 3 } } }
    : { ...common, x: at[0], y: at[1], type: "scatter", marker: { size: 19, symbol: "circle-open", color: css("--ink"), line: { width: 2.5, color: css("--ink") } } };
}

const scaled = (value, i) => (value === null ? null : (value - RANGE[i][0]) / (RANGE[i][1] - RANGE[i][0]));

// Parallel coordinates: all lines of a run are one trace, with a break after every point.
function parallelFigure(selected) {
  const traces = DATA.runs.map((run, r) => {
    const x = [], y = [];
    for (let p = 0; p < size(run); p++) {
      for (let i = 0; i < DATA.m; i++) { x.push(i); y.push(scaled(run.objectives[i][p], i)); }
      x.push(null); y.push(null);
    }
    return {
      x, y, type: scattered(size(run)), mode: size(run) > MANY ? "lines" : "lines+markers", name: plain(run.name), meta: r, connectgaps: false,
      line: { color: colour(r), width: 1 }, marker: { size: 5, color: colour(r) }, opacity: size(run) > 200 ? 0.25 : 0.55, hoverinfo: "none",
    };
  });
  const run = DATA.runs[selected.run];
  traces.push({
    x: DATA.names.map((_, i) => i), y: DATA.names.map((_, i) => scaled(run.objectives[i][selected.index], i)), type: "scatter", mode: "lines+markers",
    name: "selected", line: { color: css("--ink"), width: 3 }, marker: { size: 9, color: css("--ink") }, meta: null, hoverinfo: "skip",
  });
  const text = DATA.names.map((name, i) => `${plain(name)}<br>${short(RANGE[i][0])} … ${short(RANGE[i][1])}`);
  return {
    traces,
    layout: themed({
      xaxis: { tickvals: DATA.names.map((_, i) => i), ticktext: text, range: [-0.2, DATA.m - 0.8] },
      yaxis: { title: { text: "best (0) to worst (1)" }, range: [-0.05, 1.05] }, showlegend: DATA.runs.length > 1,
    }),
  };
}

function radarFigure(points) {
  const traces = points.map(({ run: r, index }) => {
    const values = DATA.names.map((_, i) => scaled(DATA.runs[r].objectives[i][index], i)).map((v) => (v === null ? null : 1 - v));
    return {
      type: "scatterpolar", r: [...values, values[0]], theta: [...DATA.names, DATA.names[0]].map(plain), name: plain(DATA.runs[r].name), fill: "toself",
      opacity: 0.75, line: { color: colour(r) }, marker: { symbol: SYMBOLS[r % 8], size: 7 }, hoverinfo: "skip",
    };
  });
  return {
    traces,
    layout: themed({
      polar: { radialaxis: { angle: 180 / DATA.m, range: [0, 1], tickvals: [0.25, 0.5, 0.75, 1], ticktext: ["", "", "", "best"] } },
      showlegend: DATA.runs.length > 1, margin: { l: 40, r: 40, t: 30, b: 30 },
    }),
  };
}

// Mean over seeds, its standard deviation, and every seed as a dot.
function hypervolumeFigure() {
  const values = DATA.runs.map((run) => Object.values(run.hypervolume_by_seed));
  const mean = values.map((v) => v.reduce((a, b) => a + b, 0) / v.length);
  const spread = values.map((v, r) => (v.length > 1 ? Math.sqrt(v.reduce((a, b) => a + (b - mean[r]) ** 2, 0) / (v.length - 1)) : 0));
  const names = DATA.runs.map((run) => plain(run.name));
  const dots = { x: [], y: [] };
  values.forEach((v, r) => v.forEach((value) => { dots.x.push(names[r]); dots.y.push(value); }));
  const traces = [
    {
      type: "bar", x: names, y: mean, marker: { color: DATA.runs.map((_, r) => colour(r)), opacity: 0.65 }, name: "mean",
      error_y: { type: "data", array: spread, visible: spread.some((s) => s > 0), color: css("--ink") }, hovertemplate: "%{y:.6g}<extra></extra>",
    },
    { type: "scatter", mode: "markers", ...dots, marker: { color: css("--ink"), size: 6 }, name: "seeds", hovertemplate: "%{y:.6g}<extra></extra>" },
  ];
  const line = DATA.exact_hypervolume;
  const shapes = line ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: line, y1: line, line: { dash: "dash", color: css("--faint") } }] : [];
  const notes = line ? [{ xref: "paper", x: 1, y: line, text: "exact front", showarrow: false, yanchor: "bottom", xanchor: "right" }] : [];
  return { traces, layout: themed({ shapes, annotations: notes, yaxis: { title: { text: "hypervolume" } }, showlegend: false, xaxis: { automargin: true }, margin: { l: 70, r: 16, t: 16, b: 30 } }) };
}

// The selected point's own curve, where it is kept.
function ownCurve(run, q, chosen) {
  const own = run.curves.runs.indexOf(chosen);
  return own < 0 ? { x: [], y: [] } : { x: run.curves.steps, y: run.curves.values[q][own] };
}

// One quantity on the way: all runs as a band and their median where they are many, single runs as lines.
function wayFigure(run, q, chosen) {
  const c = run.curves, traces = [];
  if (c.band) {
    const base = { x: c.steps, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
    traces.push({ ...base, y: c.band.low[q], line: { width: 0 } });
    traces.push({ ...base, y: c.band.high[q], line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(86,180,233,0.25)" });
    traces.push({ ...base, y: c.band.median[q], line: { width: 2, color: css("--accent") } });
  } else {
    c.values[q].forEach((line, k) => traces.push({
      x: c.steps, y: line, type: "scatter", mode: "lines", line: { width: 1, color: DATA.colours[k % 6] }, opacity: 0.75,
      hovertemplate: `point ${c.runs[k]}: %{y:.4g} at step %{x}<extra></extra>`, showlegend: false,
    }));
  }
  traces.push({ ...ownCurve(run, q, chosen), type: "scatter", mode: "lines", line: { width: 2.5, color: css("--ink") }, showlegend: false, hoverinfo: "skip" });
  const shown = c.band ? [c.band.low[q]] : c.values[q];
  const positive = shown.every((line) => line.every((value) => value === null || value > 0));
  return {
    traces,
    layout: themed({
      title: { text: plain(c.names[q]), font: { size: 13 }, y: 0.97 }, xaxis: { title: { text: "step" } }, yaxis: { type: positive ? "log" : "linear", exponentformat: "e" },
      margin: { l: 58, r: 12, t: 30, b: 40 },
    }),
  };
}
