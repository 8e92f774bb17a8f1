// Draws the curves of a run with uPlot; colours come from the page, so they follow light and dark.
(() => {
  "use strict";

  const place = document.querySelector("[data-curves]");
  if (!place || !window.uPlot) return;
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  let curves = [];
  let charts = [];

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
        {
          label: curve.unit || "value",
          stroke: colour("--c1"),
          width: 1.5,
          points: { show: curve.x.length < 40 },
        },
      ],
    };
  }

  function draw() {
    for (const chart of charts) chart.destroy();
    charts = [];
    place.replaceChildren();
    for (const curve of curves) {
      const figure = document.createElement("figure");
      const title = document.createElement("figcaption");
      title.textContent = curve.name;
      const box = document.createElement("div");
      figure.append(title, box);
      place.append(figure);
      const chart = new window.uPlot(options(curve, box.clientWidth || 300), [curve.x, curve.y], box);
      charts.push(chart);
      const canvas = figure.querySelector("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${curve.name} against ${curve.x_name}`);
    }
    place.dataset.ready = "";
  }

  function resize() {
    for (const chart of charts) {
      chart.setSize({ width: chart.root.parentElement.clientWidth, height: 200 });
    }
  }

  fetch(place.dataset.curves, { credentials: "same-origin" })
    .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(answer.statusText))))
    .then((found) => {
      curves = found.curves.filter((curve) => curve.x.length > 1);
      draw();
      scheme.addEventListener("change", draw);
      window.addEventListener("resize", resize);
    })
    .catch((error) => {
      place.querySelector("p").firstChild.textContent = `The curves could not be loaded: ${error.message}. `;
    });
})();
