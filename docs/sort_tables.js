// A click on a table's heading sorts its rows by that column; a second click reverses the order.
document.addEventListener("click", event => {
  const heading = event.target.closest(".md-typeset table:not([class]) thead th");
  if (!heading) return;
  const column = heading.cellIndex;
  const descending = heading.ariaSort === "ascending";
  const body = heading.closest("table").tBodies[0];
  const text = row => row.cells[column].textContent.trim();
  const order = (a, b) => {
    const x = parseFloat(text(a)), y = parseFloat(text(b));
    if (isNaN(x) && isNaN(y)) return text(a).localeCompare(text(b));
    return isNaN(x) ? 1 : isNaN(y) ? -1 : x - y;
  };
  const rows = [...body.rows].sort(order);
  body.append(...(descending ? rows.reverse() : rows));
  for (const one of heading.parentElement.cells) one.removeAttribute("aria-sort");
  heading.ariaSort = descending ? "descending" : "ascending";
});
