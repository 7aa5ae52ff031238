"use strict";

for (const plot of document.querySelectorAll(".plot")) {
  const figures = JSON.parse(document.getElementById(plot.id + "-data").textContent);
  const draw = (which) => {
    const { data, layout, config } = figures[which];
    // A finger that drags means to scroll the page.
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
    Plotly.react(plot, data, layout, config);
  };
  draw(0);
  const choice = document.querySelectorAll(`input[name="${plot.id.replace("plot-", "")}"]`);
  for (const radio of choice) radio.addEventListener("change", () => draw(radio.value));
}

const table = document.getElementById("rows");
const rows = [...table.tBodies[0].rows];
const heads = [...table.tHead.rows[0].cells];

for (const [column, head] of heads.entries()) {
  head.firstElementChild.addEventListener("click", () => {
    const text = head.classList.contains("text");
    // Numbers begin with the largest; a second click turns the order.
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : !text;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      return text ? cell.textContent : "v" in cell.dataset ? Number(cell.dataset.v) : null;
    };
    const order = (a, b) => (text ? a.localeCompare(b, "en", { numeric: true }) : a - b) * (down ? -1 : 1);
    // Rows without a value stay at the end.
    rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return x === null || y === null ? (x === null) - (y === null) : order(x, y);
    });
    table.tBodies[0].append(...rows);
  });
}

const shown = document.getElementById("shown");
const all = shown.textContent;
document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  const left = rows.filter((row) => !row.hidden).length;
  shown.textContent = left === rows.length ? all : `${left} of ${all}`;
});
