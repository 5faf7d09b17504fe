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

function table(head, rows, attributes = {}) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": attributes.label || "Table" }, sideways(),
    h("table", { class: attributes.class },
      h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col", class: cell.class }, cell.text)))),
      h("tbody", {}, rows)));
}

// Visible if the table is cut; see cutTables.
const sideways = () => h("p", { class: "sideways", "aria-hidden": "true" }, "More to the right →");

function figureNumber(value, label, remark) {
  return h("div", { class: "figure-number" },
    h("strong", {}, value), h("span", {}, label), remark && h("small", {}, remark));
}
