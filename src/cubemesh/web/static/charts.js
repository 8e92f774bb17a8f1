// Draws the curves of a run or job with uPlot, those of a running job as they grow, and those of
// several runs in one chart; colours come from the page, so they follow light and dark.
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

  const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const DECIMAL = ["", "k", "M", "G", "T", "P"];
  const POWERS_OF_2 = Array.from({ length: 60 }, (_, power) => 2 ** power);

  // Numbers of an axis or legend, all in one unit: 1.5 GiB, 2 MB, 20k.
  function texts(values, unit) {
    const binary = unit === "bytes";
    const base = binary ? 1024 : 1000;
    const least = unit.startsWith("bytes") ? base : 10000;
    const largest = Math.max(0, ...values.map((value) => Math.abs(value ?? 0)));
    let power = 0;
    while (largest >= least && largest >= base ** (power + 1) && power < 5) power += 1;
    let after = DECIMAL[power];
    if (binary) after = ` ${BINARY[power]}`;
    else if (unit === "bytes/s") after = ` ${DECIMAL[power]}B`;
    return values.map((value) => {
      if (value === null || value === undefined) return "";
      const short = Number((value / base ** power).toPrecision(4)).toLocaleString("en");
      return short + after;
    });
  }

  const latest = (chart) => {
    const { left } = chart.cursor;
    if (left === undefined || left < 0) chart.setLegend({ idx: chart.data[0].length - 1 }, false);
  };

  // Of a chart without a legend, which names unit and axis elsewhere.
  function headingOf(curve) {
    const unit = curve.unit && !curve.unit.startsWith("bytes") ? ` (${curve.unit})` : "";
    return `${curve.name}${unit} against ${curve.x_name}`;
  }

  // Several runs in one chart: colours, then dashes, tell them apart; the nearest is named.
  function linesOf(curve, title) {
    const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3]];
    return {
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: { sync: { key: curve.x_name }, focus: { prox: 24 } },
      hooks: {
        setSeries: [
          (chart, index) => {
            const small = title.querySelector("small");
            const line = index ? curve.lines[index - 1] : null;
            small.textContent = line ? `${line.run_id} · ${line.label}` : "";
          },
        ],
      },
      series: [
        { label: curve.x_name },
        ...curve.lines.map((line) => ({
          label: line.run_id,
          stroke: colour(`--c${(line.place % 8) + 1}`),
          dash: DASHES[Math.floor(line.place / 8) % DASHES.length],
          width: 1.5,
          spanGaps: true,
          points: { show: false },
        })),
      ],
      bands: [],
    };
  }

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
      axes: [
        { ...axis, size: 30 },
        {
          ...axis,
          size: 62,
          values: (chart, splits) => texts(splits, curve.unit),
          ...(curve.unit === "bytes" ? { incrs: POWERS_OF_2 } : {}),
        },
      ],
      hooks: { setCursor: [latest], ready: [latest] },
      series: [
        { label: curve.x_name, value: (chart, x) => texts([x], "")[0] || "–" },
        ...expectedLines(curve).map(([label]) => ({
          label,
          stroke: colour("--soft"),
          width: label === "expected" ? 1.5 : 0.5,
          dash: [6, 5],
          value: (chart, y) => texts([y], curve.unit)[0] || "–",
          points: { show: false },
        })),
        {
          label: curve.unit && !curve.unit.startsWith("bytes") ? curve.unit : curve.name,
          value: (chart, y) => texts([y], curve.unit)[0] || "–",
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
    if (curve.lines) return window.uPlot.join(curve.lines.map((line) => [line.x, line.y]));
    return [curve.x, ...expectedLines(curve).map(([, value]) => curve.x.map(() => value)), curve.y];
  }

  // The runs of several curves with their colours.
  function keyOf(shown) {
    const key = document.createElement("ul");
    key.className = "key";
    const lines = new Map(shown.flatMap((curve) => curve.lines.map((line) => [line.place, line])));
    for (const [place, line] of [...lines].sort(([a], [b]) => a - b)) {
      const item = document.createElement("li");
      const mark = document.createElement("span");
      mark.style.background = colour(`--c${(place % 8) + 1}`);
      const link = document.createElement("a");
      link.href = `/runs/${encodeURIComponent(line.run_id)}`;
      link.textContent = line.label || line.run_id;
      item.append(mark, link);
      key.append(item);
    }
    return key;
  }

  function draw() {
    for (const chart of charts) chart.destroy();
    charts = [];
    place.replaceChildren();
    for (const curve of curves) {
      curve.chart = null;
      if (curve.lines ? !curve.lines.some((line) => line.x.length > 1) : curve.x.length < 2) continue;
      const figure = document.createElement("figure");
      const title = document.createElement("figcaption");
      title.textContent = curve.lines ? headingOf(curve) : curve.name;
      const box = document.createElement("div");
      if (curve.expected) {
        const source = document.createElement("small");
        source.textContent = `expected from ${curve.expected.source}`;
        title.append(source);
      }
      if (curve.lines) title.append(document.createElement("small"));
      figure.append(title, box);
      place.append(figure);
      const own = options(curve, box.clientWidth || 300);
      const chart = new window.uPlot(
        curve.lines ? { ...own, ...linesOf(curve, title) } : own,
        dataOf(curve),
        box,
      );
      charts.push(chart);
      curve.chart = chart;
      const canvas = figure.querySelector("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `${curve.name} against ${curve.x_name}`);
    }
    if (charts.length && curves[0].lines) place.prepend(keyOf(curves));
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
    else requestAnimationFrame(() => redraw(curve));
  }

  function redraw(curve) {
    if (!curve.chart) return;
    curve.chart.setData(dataOf(curve));
    latest(curve.chart);
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
