// A cursor and zoom for each chart. The page is complete without this.
"use strict";
function human(size) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (size >= unit) return (size / unit).toFixed(2) + " " + name;
  }
  return size + " B";
}
for (const figure of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const count = data.columns.length;
  const views = figure.querySelectorAll("svg.view");
  const plot = figure.querySelector(".plot");
  const slider = figure.querySelector("input[type=range]");
  const output = figure.querySelector("output");
  const cursor = figure.querySelector(".cursor");
  const labels = [...figure.querySelectorAll(".steps span")];
  let first = 0, width = count, dragFrom = null;

  function say(column) {
    const [event, ...sizes] = data.columns[column];
    const phase = data.phases.filter(([start]) => start <= event).at(-1)[1];
    const parts = sizes.slice(1).map((size, index) => [size, data.names[index + 1]]).filter(([size]) => size);
    const total = parts.reduce((sum, [size]) => sum + size, 0);
    parts.sort((a, b) => b[0] - a[0]);
    output.textContent = `Event ${event.toLocaleString("en")} (${phase}): ${human(total)} allocated, ${human(sizes[0])} reserved; ` +
      parts.map(([size, name]) => `${name} ${human(size)}`).join(", ");
    slider.setAttribute("aria-valuetext", output.textContent);
    cursor.setAttribute("d", `M${column + 0.5},0V1000`);
  }
  function show(from, columns) {
    width = Math.max(Math.min(20, count), Math.min(count, Math.round(columns)));
    first = Math.max(0, Math.min(count - width, Math.round(from)));
    for (const view of views) {
      view.setAttribute("viewBox", `${first} 0 ${width} ${view.viewBox.baseVal.height}`);
    }
    const inside = labels.filter((label) => label.dataset.x > first && label.dataset.x <= first + width);
    const stride = Math.ceil(inside.length / 8);
    for (const label of labels) label.hidden = true;
    inside.forEach((label, index) => {
      label.hidden = index % stride !== 0;
      label.style.left = (label.dataset.x - first) / width * 100 + "%";
    });
    slider.min = first;
    slider.max = first + width - 1;
    say(Number(slider.value));
  }
  function columnAt(event) {
    const box = plot.getBoundingClientRect();
    const share = Math.max(0, Math.min(0.9999, (event.clientX - box.left) / box.width));
    return Math.floor(first + share * width);
  }
  plot.addEventListener("pointermove", (event) => {
    slider.value = columnAt(event);
    say(Number(slider.value));
  });
  plot.addEventListener("pointerdown", (event) => { dragFrom = columnAt(event); });
  plot.addEventListener("pointerup", (event) => {
    const to = columnAt(event);
    if (dragFrom !== null && Math.abs(to - dragFrom) > width / 50) show(Math.min(dragFrom, to), Math.abs(to - dragFrom));
    dragFrom = null;
  });
  slider.addEventListener("input", () => say(Number(slider.value)));
  figure.querySelector(".buttons").addEventListener("click", (event) => {
    const zoom = event.target.dataset.zoom;
    const middle = Number(slider.value);
    if (zoom === "in") show(middle - width / 4, width / 2);
    if (zoom === "out") show(middle - width, width * 2);
    if (zoom === "all") show(0, count);
  });
  figure.querySelector(".controls").hidden = false;
  const totals = data.columns.map(([, , ...sizes]) => sizes.reduce((sum, size) => sum + size, 0));
  slider.value = totals.indexOf(Math.max(...totals));
  show(0, count);
}
