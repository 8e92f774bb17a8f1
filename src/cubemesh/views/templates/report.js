// What the page does beyond being read: charts answer the pointer, links open the run they mean,
// the records can be saved. Nothing here asks the network for anything.
(() => {
  "use strict";

  // A chart is drawn again by Vega in place of its still picture; where that fails, the picture
  // stays. Its colours are CSS variables, so it follows the page into the dark by itself.
  const embedding = {
    mode: "vega-lite",
    renderer: "svg",
    actions: false,
    ast: true, // expressions are interpreted: the page allows no code made from strings
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };
  for (const figure of document.querySelectorAll("figure[data-spec]")) {
    const { spec, saved } = JSON.parse(document.getElementById(figure.dataset.spec).textContent);
    addMenu(figure, spec, saved);
    figure.classList.add("drawn");
    window.vegaEmbed(figure.querySelector(".live"), spec, embedding).then(
      () => figure.setAttribute("data-ready", ""),
      (error) => {
        figure.classList.remove("drawn");
        console.error(error);
      },
    );
  }

  // A saved chart has its title, its legend and the colours of paper in place of CSS variables.
  function paperSpec(spec, saved) {
    const colours = getComputedStyle(document.getElementById("paper"));
    const resolve = (key, value) => {
      const name = typeof value === "string" && /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? colours.getPropertyValue(name[1]).trim() : value;
    };
    const own = JSON.parse(JSON.stringify(spec), resolve);
    delete own.autosize;
    own.width = 640;
    own.title = { text: saved.title, subtitle: saved.caption || undefined };
    own.config = { ...own.config, background: colours.getPropertyValue("--paper").trim(), padding: 16 };
    for (const { encoding } of own.layer ?? []) {
      for (const channel of ["color", "strokeDash"]) {
        if (saved.legend && encoding?.[channel]?.scale && encoding[channel].legend === null) {
          encoding[channel].legend = saved.legend;
        }
      }
    }
    return own;
  }

  async function encoded(kind, spec, saved) {
    if (kind === "csv") return new Blob([saved.csv], { type: "text/csv" });
    const { view } = await window.vegaEmbed(document.createElement("div"), paperSpec(spec, saved), embedding);
    try {
      if (kind === "svg") return new Blob([await view.toSVG()], { type: "image/svg+xml" });
      const canvas = await view.toCanvas(2);
      return await new Promise((done) => canvas.toBlob(done, "image/png"));
    } finally {
      view.finalize();
    }
  }

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function addMenu(figure, spec, saved) {
    const menu = figure.querySelector(".menu");
    const said = menu.querySelector("output");
    menu.hidden = false;
    menu.addEventListener("click", async (event) => {
      const { copy, save: kind } = event.target.dataset;
      if (!copy && !kind) return;
      try {
        const made = encoded(copy || kind, spec, saved);
        if (kind) save(await made, `${saved.name}.${kind}`);
        else if (copy === "png") await navigator.clipboard.write([new ClipboardItem({ "image/png": made })]);
        else await navigator.clipboard.writeText(await (await made).text());
        said.textContent = kind ? "Saved." : "Copied.";
      } catch (error) {
        said.textContent = `Not possible here: ${error.message}`;
      }
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
    });
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
  }

  // The contents: closed on a narrow screen, and with a mark at the section in view.
  const contents = document.querySelector(".contents");
  const wide = matchMedia("(min-width: 1180px)");
  const fit = () => { contents.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
  const links = new Map();
  for (const link of contents.querySelectorAll("a")) {
    links.set(document.getElementById(link.hash.slice(1)), link);
    link.addEventListener("click", () => { contents.open = wide.matches; });
  }
  function mark() {
    let current = null;
    for (const [section, link] of links) {
      if (section.getBoundingClientRect().top < 160) current = link;
      link.removeAttribute("aria-current");
    }
    (current ?? links.values().next().value).setAttribute("aria-current", "true");
  }
  addEventListener("scroll", mark, { passive: true });
  mark();

  // Text of an element of data, which may be gzip in base64.
  async function textOf(id) {
    const { type, textContent } = document.getElementById(id);
    if (type !== "application/gzip") return textContent;
    const bytes = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).text();
  }

  // A curve of letters, as curve.py writes it: a letter is a point at its height.
  const heights = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  function pathOf(letters) {
    let x = 0;
    let stretch = [];
    const stretches = [stretch];
    for (const letter of letters) {
      if (letter === "|") stretches.push((stretch = []));
      if (letter === " " || letter === "|") x += 1;
      else stretch.push(`${x} ${heights.indexOf(letter) + 2}`);
    }
    return stretches.map((points) => `M${points.join("L")}${points.length === 1 ? "h1" : ""}`).join("");
  }

  // The details of a run that are packed: shown when it is opened.
  async function unpack(run) {
    const { pack } = run.dataset;
    delete run.dataset.pack;
    const body = run.querySelector(".run-body");
    const id = run.id.replace("run-", "");
    try {
      body.innerHTML = JSON.parse(await textOf(pack))[id];
      for (const path of body.querySelectorAll("path[data-curve]")) {
        path.setAttribute("d", pathOf(path.dataset.curve));
      }
    } catch (error) {
      body.textContent = `This browser cannot unpack the details: ${error.message}. In a terminal: cubemesh results ${id}`;
    }
  }
  document.addEventListener("toggle", ({ target }) => {
    if (target.open && target.dataset.pack) unpack(target);
  }, true);

  function openTarget() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) {
      target.open = true;
      target.scrollIntoView({ block: "start" });
    }
  }
  window.addEventListener("hashchange", openTarget);
  openTarget();

  // Paper cannot be clicked.
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open], [data-pack])")) {
      details.open = true;
      details.dataset.forPrint = "";
    }
  });
  window.addEventListener("afterprint", () => {
    for (const details of document.querySelectorAll("details[data-for-print]")) {
      details.open = false;
      delete details.dataset.forPrint;
    }
  });

  const download = document.getElementById("download");
  if (download) {
    download.hidden = false;
    download.addEventListener("click", async () => {
      const text = await textOf("records");
      save(new Blob([text], { type: "application/json" }), "cubemesh-records.json");
    });
  }
})();
