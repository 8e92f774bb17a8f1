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
    const spec = JSON.parse(document.getElementById(figure.dataset.spec).textContent);
    figure.classList.add("drawn");
    window.vegaEmbed(figure.querySelector(".live"), spec, embedding).then(
      () => figure.setAttribute("data-ready", ""),
      (error) => {
        figure.classList.remove("drawn");
        console.error(error);
      },
    );
  }

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
    for (const details of document.querySelectorAll("details:not([open])")) {
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
    download.addEventListener("click", () => {
      const text = document.getElementById("records").textContent;
      const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      const link = document.createElement("a");
      link.href = address;
      link.download = "cubemesh-records.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
  }
})();
