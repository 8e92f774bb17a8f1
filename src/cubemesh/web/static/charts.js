// Draws the curves of a run or job with uPlot, those of a running job as they grow; colours come from
// the page, so they follow light and dark.
(() => {
  "use strict";

  const place = document.querySelector("[data-curves]");
  if (!place || !window.uPlot) return;
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const MOST_POINTS = 6000; // of a growing curve, before it is thinned again
  let curves = [];
  let charts = [];
  let run = 0;
  let cursor = 0;
  let loading = false;
  let pending = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function options(curve, width) {
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    return {
      width,
      height: 200,
      scales: { x: { time: false } },
      cursor: { sync: { key: curve.x_name } },
      legend: { live: true },
      axes: [{ ...axis, size: 30 }, { ...axis, size: 62 }],
      series: [
        { label: curve.x_name },
        ...expectedLines(curve).map(([label]) => ({
          label,
          stroke: colour("--soft"),
          width: label === "expected" ? 1.5 : 0.5,
          dash: [6, 5],
          points: { show: false },
        })),
        {
          label: curve.unit || "value",
          stroke: colour("--c1"),
          width: 1.5,
          points: { show: (chart) => chart.data[0].length < 40 },
        },
      ],
      bands: expectedLines(curve).length === 3 ? [{ series: [2, 1], fill: colour("--wash") }] : [],
    };
  }

  // What was expected of a run: a line, and the two ends of its band where it is known.
  function expectedLines(curve) {
    const found = curve.expected;
    if (!found) return [];
    const ends = found.low === null ? [] : [["from", found.low], ["to", found.high]];
    return [...ends, ["expected", found.samples_per_s]]; // drawn below what is measured
  }

  function dataOf(curve) {
    return [curve.x, ...expectedLines(curve).map(([, value]) => curve.x.map(() => value)), curve.y];
  }

  function draw() {
    for (const chart of charts) chart.destroy();
    charts = [];
    place.replaceChildren();
    for (const curve of curves) {
      curve.chart = null;
      if (curve.x.length < 2) continue;
      const figure = document.createElement("figure");
      const title = document.createElement("figcaption");
      title.textContent = curve.name;
      const box = document.createElement("div");
      if (curve.expected) {
        const source = document.createElement("small");
        source.textContent = `expected from ${curve.expected.source}`;
        title.append(source);
      }
      figure.append(title, box);
      place.append(figure);
      const chart = new window.uPlot(options(curve, box.clientWidth || 300), dataOf(curve), box);
      charts.push(chart);
      curve.chart = chart;
      const canvas = figure.querySelector("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${curve.name} against ${curve.x_name}`);
    }
    if (!charts.length) {
      const none = document.createElement("p");
      none.className = "none";
      none.textContent = place.dataset.events ? "The first points are not measured yet." : "No points.";
      place.append(none);
    }
    place.dataset.ready = "";
  }

  function grow(event) {
    if (event.sequence <= cursor) return;
    if (loading) {
      pending.push(event);
      return;
    }
    if (event.kind === "rewind" || event.kind === "run") {
      load().catch(() => {}); // at the next event again
      return;
    }
    if (event.kind !== "points") return;
    const { series, points } = event.value;
    const curve = curves.find((one) => one.series === series);
    if (!curve || event.value.run !== run || curve.x.length > MOST_POINTS) {
      load().catch(() => {}); // at the next event again
      return;
    }
    for (const [x, y] of points) {
      if (curve.x.length && x <= curve.x[curve.x.length - 1]) {
        load().catch(() => {}); // at the next event again
        return;
      }
      curve.x.push(x);
      curve.y.push(y);
    }
    if (!curve.chart) draw();
    else requestAnimationFrame(() => curve.chart && curve.chart.setData(dataOf(curve)));
  }

  function resize() {
    for (const chart of charts) {
      chart.setSize({ width: chart.root.parentElement.clientWidth, height: 200 });
    }
  }

  async function load() {
    if (loading) return;
    loading = true;
    try {
      const answer = await fetch(place.dataset.curves, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.statusText);
      const found = await answer.json();
      curves = found.curves;
      run = found.run || 0;
      cursor = found.cursor || 0;
      draw();
    } finally {
      loading = false;
    }
    const waiting = pending;
    pending = [];
    waiting.forEach(grow);
  }

  load()
    .then(() => {
      scheme.addEventListener("change", draw);
      window.addEventListener("resize", resize);
      if (place.dataset.events && window.cubemeshLive) window.cubemeshLive(place.dataset.events, cursor, grow);
    })
    .catch((error) => {
      place.querySelector("p").firstChild.textContent = `The curves could not be loaded: ${error.message}. `;
    });
})();
