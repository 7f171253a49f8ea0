/* Tables that sort, and show the first rows of many. A column: its name, the value of a row, and how it is written. */
function table(place, all, rows, options) {
  const { click } = options || {}, empty = ([, value]) => rows.every((row) => value(row) === null || value(row) === "");
  const columns = all.filter((column, c) => !c || !empty(column)), shares = columns.indexOf(all[(options || {}).shares]);
  let by = -1, down = false, most = ROWS;
  const isNumber = columns.map(([, value]) => rows.some((row) => typeof value(row) === "number"));
  const turn = (c) => { down = c === by ? !down : isNumber[c]; by = c; paint(); place.querySelectorAll("th button")[c].focus(); };
  const ordered = () => {
    const order = rows.map((row, i) => [row, i]);
    if (by < 0) return order;
    const value = columns[by][1];
    return order.sort(([a, i], [b, j]) => {
      const x = value(a), y = value(b);
      if (x === null || y === null) return (x === null) - (y === null) || i - j; // what is not known comes last
      const less = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return (down ? -less : less) || i - j;
    });
  };
  function paint() {
    clear(place);
    if (!rows.length) { make("p", "None.", place, { className: "dim" }); return; }
    const grid = make("table", null, make("div", null, place, { className: "scroll" }));
    const head = make("tr", null, make("thead", null, grid)), body = make("tbody", null, grid);
    columns.forEach(([name], c) => {
      const cell = make("th", null, head, { className: isNumber[c] ? "num" : "", scope: "col" });
      cell.setAttribute("aria-sort", c === by ? (down ? "descending" : "ascending") : "none");
      make("button", name + (c === by ? (down ? " ↓" : " ↑") : ""), cell, { onclick: () => turn(c) });
    });
    const order = ordered();
    for (const [row, i] of order.slice(0, most)) {
      const line = make("tr", null, body);
      columns.forEach(([, value, text], c) => {
        const raw = value(row), cell = make("td", text ? text(raw, row) : raw === null ? "" : raw, line);
        if (isNumber[c]) cell.className = "num";
        if (c === shares && typeof raw === "number") cell.style.setProperty("--share", Math.max(0, Math.min(100, raw)) + "%");
        if (c === shares) cell.classList.add("share");
      });
      if (!click) continue;
      line.className = "row";
      line.tabIndex = 0;
      line.onclick = () => click(row, i);
      line.onkeydown = (e) => { if (e.key === "Enter") click(row, i); };
    }
    if (order.length <= most) return;
    const more = make("p", most.toLocaleString("en") + " of " + order.length.toLocaleString("en") + " rows. ", place, { className: "dim" });
    make("button", "Show more", more, { onclick: () => { most *= 5; paint(); } });
  }
  paint();
}
