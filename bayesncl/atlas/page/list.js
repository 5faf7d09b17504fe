const FILTERS = {
  all: ["All", () => true],
  alive: ["Firing", (run, stage, k) => run[stage].support[k] > 0],
  dead: ["Dead", (run, stage, k) => run[stage].support[k] === 0],
  rare: ["Nearly dead (under 10 images)", (run, stage, k) => run[stage].support[k] > 0 && run[stage].support[k] < 10],
  pure: ["Consistent (half or more of one class)", (run, stage, k) => run[stage].support[k] >= 10 && run[stage].consistency?.[k] >= 0.5],
  shut: ["Suppressed (gate closes half or more)", (run, stage, k) => run[stage].support[k] > 0 && run.closed_rate?.[k] >= 0.5],
};

async function viewList({ run, stage, params }) {
  const columns = columnsOf(run, stage);
  const state = {
    sort: columns.some((c) => c.key === params.get("sort")) ? params.get("sort") : "mass",
    up: params.get("order") === "up", show: params.get("show") in FILTERS ? params.get("show") : "all", q: params.get("q") || "",
  };
  const body = h("tbody", {});
  const count = h("p", { class: "note", role: "status" });
  const tail = h("div", {});
  const head = h("tr", {});
  const field = h("input", { type: "search", id: "list-search", value: state.q, placeholder: atlas.classes ? "class name or number" : "number", autocomplete: "off" });
  const select = h("select", { id: "list-show" }, Object.entries(FILTERS)
    .filter(([key]) => (key !== "pure" || run[stage].consistency) && (key !== "shut" || run.gated))
    .map(([key, [name]]) => h("option", { value: key, selected: key === state.show }, name)));

  // "tiger" finds the dimensions whose most frequent class is a tiger; a number finds that dimension.
  const matches = (k) => {
    const q = state.q.trim().toLowerCase();
    if (!q) return true;
    return String(k) === q || (bestClass(run, stage, k) || "").toLowerCase().includes(q);
  };

  function fill() {
    const column = columns.find((c) => c.key === state.sort);
    const found = [...Array(run.dims).keys()].filter((k) => FILTERS[state.show][1](run, stage, k) && matches(k));
    const value = column ? column.of : (k) => k;
    found.sort((a, b) => (state.up ? value(a) - value(b) : value(b) - value(a)) || a - b);
    const button = (key, name, help, kind) => h("th", { scope: "col", class: kind, "aria-sort": state.sort === key ? (state.up ? "ascending" : "descending") : null },
      h("button", { type: "button", title: help, "data-sort": key, onclick: () => {
        state.up = state.sort === key ? !state.up : key === "number";
        state.sort = key;
        keep();
        head.querySelector(`[data-sort=${key}]`).focus();
      } }, name));
    head.replaceChildren(button("number", "Dimension", "by number", "first"), h("th", { scope: "col" }, "Top images"),
      ...(atlas.classes ? [h("th", { scope: "col" }, "Most frequent class")] : []),
      ...columns.map((c) => button(c.key, c.name, c.help, "number")));
    body.replaceChildren();
    tail.replaceChildren(growing(body, found, row, 40));
    count.textContent = `${plural(found.length, "dimension")}${found.length < run.dims ? ` of ${whole(run.dims)}` : ""}`;
  }
  const row = (k) => h("tr", { class: run[stage].support[k] ? null : "dead" },
    h("th", { scope: "row", class: "first" }, h("a", { href: link(`dim/${k}`) }, k), !run[stage].support[k] && h("small", {}, "dead")),
    h("td", {}, h("a", { href: link(`dim/${k}`), tabindex: -1, "aria-hidden": "true" }, dimensionStrip(run, stage, k, 5))),
    atlas.classes && h("td", { class: "name" }, bestClass(run, stage, k) ? h("a", { href: link(`class/${run[stage].best[k]}`) }, bestClass(run, stage, k)) : "–"),
    columns.map((c) => h("td", { class: "number" }, c.show(c.of(k)))));
  function keep() {
    fill();
    const changes = { sort: state.sort === "mass" ? null : state.sort, order: state.up ? "up" : null, show: state.show === "all" ? null : state.show, q: state.q };
    history.replaceState(null, "", link("dims", changes));
    route.tail = changes;
  }
  field.addEventListener("input", () => { state.q = field.value; keep(); });
  select.addEventListener("change", () => { state.show = select.value; keep(); });
  fill();
  const node = h("div", {},
    heading("Dimensions"),
    h("div", { class: "controls" },
      h("label", { for: "list-search" }, atlas.classes ? "Dimensions for" : "Find", field),
      h("label", { for: "list-show" }, "Show", select), count),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of dimensions" }, h("table", { class: "list" }, h("thead", {}, head), body)), tail);
  return { title: "Dimensions", node };
}
