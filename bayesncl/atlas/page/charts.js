// Small charts. The length of a bar is a custom property.

// rows: {label, href, value (0..1), text, tone, title}
function bars(rows, label) {
  return h("ul", { class: "bars", "aria-label": label }, rows.map((row) =>
    h("li", { title: row.title },
      h(row.href ? "a" : "span", { class: "bar-label", href: row.href }, row.label),
      h("span", { class: "track", "aria-hidden": "true" }, meter(row.value, row.tone)),
      h("span", { class: "bar-text" }, row.text))));
}

function meter(value, tone = "") {
  return h("span", { class: `meter ${tone}`, "--share": Math.max(0, Math.min(1, value)) });
}

// A histogram between two values.
function histogram(counts, low, high, label) {
  const width = 360;
  const height = 120;
  const most = Math.max(1, ...counts);
  const step = width / counts.length;
  const columns = [...counts].map((count, j) => {
    const tall = count ? Math.max(1.5, (count / most) * (height - 4)) : 0;
    const from = low + ((high - low) * j) / counts.length;
    return svg("rect", { x: j * step + 0.5, y: height - tall, width: step - 1, height: tall },
      svg("title", {}, `${fixed(from)} to ${fixed(from + (high - low) / counts.length)}: ${plural(count, "image")}`));
  });
  return h("figure", { class: "histogram" },
    svg("svg", { viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": label },
      columns,
      svg("line", { x1: 0, x2: width, y1: height, y2: height, class: "axis" }),
      svg("text", { x: 0, y: height + 14 }, fixed(low, 2)),
      svg("text", { x: width, y: height + 14, "text-anchor": "end" }, fixed(high, 2))));
}

// body: a tbody. head: texts or cells; a text that begins with "#" is the head of a column of numbers.
function table(label, head, body, kind = null) {
  const cell = (text, n) => (typeof text !== "string" ? text
    : h("th", { scope: "col", class: text.startsWith("#") ? "number" : n === 0 && "first" }, text.replace("#", "")));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("p", { class: "sideways", "aria-hidden": "true" }, "More to the right →"), // visible if the table is cut
    h("table", { class: kind }, h("thead", {}, h("tr", {}, head.map(cell))), body));
}

// A table that grows.
function longTable(label, head, items, row, step) {
  const [body, more] = growing(h("tbody", {}), items, row, step);
  return [table(label, head, body, "wide"), more];
}

// A row: its head, cells, and numbers as texts.
const tableRow = (k, head, cells, numbers = []) => h("tr", { "data-dim": k }, h("th", { scope: "row", class: "first" }, head),
  cells.map((cell) => h("td", {}, cell)), numbers.filter(given).map((text) => h("td", { class: "number" }, text)));

function figureNumber(value, label, remark) {
  return h("div", { class: "figure-number" },
    h("strong", {}, value), h("span", {}, label), remark && h("small", {}, remark));
}
