// What pages do beyond being read: filters apply on change, the compare button appears with a choice,
// "/" goes to the search field. Everything works without this file.
(() => {
  "use strict";

  for (const form of document.querySelectorAll("form[data-submit-on-change]")) {
    form.addEventListener("change", (event) => {
      if (event.target.closest(".columns")) return; // several are chosen before they are applied
      for (const field of form.elements) if (field.value === "") field.disabled = true;
      form.requestSubmit();
    });
  }

  const compare = document.getElementById("compare");
  if (compare) {
    const boxes = [...document.querySelectorAll('input[name="id"][form="compare"]')];
    const button = compare.querySelector("button");
    const update = () => {
      const count = boxes.filter((box) => box.checked).length;
      compare.classList.toggle("idle", count < 2);
      button.textContent = count < 2 ? "Compare" : `Compare ${count} runs`;
      button.disabled = count > 50;
    };
    for (const box of boxes) box.addEventListener("change", update);
    update();
    window.addEventListener("pageshow", update);
  }

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = document.querySelector(".search input");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  });
})();
