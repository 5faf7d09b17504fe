// key: [name, filter, whether the run has what it needs]
const FILTERS = {
  all: ["All", () => true],
  alive: ["Active", (run, s, k) => s.support[k] > 0],
  named: ["Named", (run, s, k) => isNamed(run, k)],
  unnamed: ["Unnamed", (run, s, k) => s.support[k] > 0 && !isNamed(run, k)],
  suggested: ["Name suggested", (run, s, k) => suggestionOf(run, k), (run) => suggestedCount(run)],
  dead: ["Dead", (run, s, k) => s.support[k] === 0],
  rare: ["Nearly dead (fewer than 10 images)", (run, s, k) => s.support[k] > 0 && s.support[k] < 10],
  pure: ["Consistent (half or more one class)", (run, s, k) => s.support[k] >= 10 && s.consistency[k] >= 0.5,
    (run, s) => s.consistency],
  shut: ["Suppressed (gate closed on half or more)", (run, s, k) => s.support[k] > 0 && run.closed_rate[k] >= 0.5,
    (run) => run.gated],
};

async function viewList({ run, stage, params }) {
  const s = run[stage];
  const columns = columnsOf(run, stage);
  const filters = Object.fromEntries(Object.entries(FILTERS).filter(([, filter]) => !filter[2] || filter[2](run, s)));
  const sortable = ["number", ...columns.map((c) => c.key)];
  const state = {
    sort: sortable.includes(params.get("sort")) ? params.get("sort") : "clarity",
    up: params.get("order") === "up",
    show: params.get("show") in filters ? params.get("show") : "all",
    q: params.get("q") || "",
  };
  const hint = atlas.classes ? "name, class or number" : "name or number";
  const field = h("input", { type: "search", id: "list-search", value: state.q, placeholder: hint, autocomplete: "off" });
  const select = h("select", { id: "list-show" }, Object.entries(filters).map(([key, [name]]) =>
    h("option", { value: key, selected: key === state.show }, name)));
  const head = h("tr", {});
  const body = h("tbody", {});
  const tail = h("div", {});
  const count = h("p", { class: "note", role: "status" });

  // "tiger" matches dimensions with that name or prominent class; a number matches one dimension.
  const matches = (k, q) => !q || String(k) === q
    || [nameOf(run, k), prominent(run, stage, k)?.word].some((word) => word?.toLowerCase().includes(q));

  const sorter = (key, name, help, kind) => h("th",
    { scope: "col", class: kind, "aria-sort": state.sort === key ? (state.up ? "ascending" : "descending") : null },
    h("button", { type: "button", title: help, "data-sort": key, onclick: () => sortBy(key) }, name));

  const stands = (k) => {
    const o = prominent(run, stage, k);
    if (!o) return nameOf(run, k) ? "" : "–";
    if (nameOf(run, k).toLowerCase() === o.word.toLowerCase()) return "";
    return o.kind === 1 ? h("a", { href: link(`class/${s.word[k]}`) }, o.word) : `on ${o.word}`;
  };
  const row = (k) => h("tr", {},
    h("th", { scope: "row", class: "first" },
      h("a", { href: link(`dim/${k}`) }, k), !s.support[k] && h("small", {}, "dead")),
    h("td", {}, linkedStrip(run, stage, k, 5)),
    h("td", { class: "name" }, nameOf(run, k) && h("b", { class: suggestionOf(run, k) && "suggested", title: suggestionOf(run, k) || null }, nameOf(run, k), " "),
      stands(k)),
    columns.map((c) => h("td", { class: "number" }, c.show(c.of(k)))));

  function fill() {
    const q = state.q.trim().toLowerCase();
    const value = columns.find((c) => c.key === state.sort)?.of ?? ((k) => k);
    const way = state.up ? 1 : -1;
    const found = [...Array(run.dims).keys()]
      .filter((k) => filters[state.show][1](run, s, k) && matches(k, q))
      .sort((a, b) => way * (value(a) - value(b)) || a - b);
    head.replaceChildren(
      sorter("number", "Dimension", "by number", "first"),
      h("th", { scope: "col" }, "Strongest images"),
      h("th", { scope: "col" }, atlas.classes || atlas.backgrounds ? "Name or prominent class" : "Name"),
      ...columns.map((c) => sorter(c.key, c.name, c.help, "number")));
    body.replaceChildren();
    const groups = foldTwins(run, found);
    tail.replaceChildren(growing(body, groups, ({ first, rest }) => {
      const line = row(first);
      return withTwins(line, line.firstChild, rest, row);
    }, 40));
    count.textContent = plural(found.length, "dimension") + (found.length < run.dims ? ` of ${whole(run.dims)}` : "")
      + (groups.length < found.length ? `, ${whole(groups.length)} with twins folded` : "");
  }

  // The address follows the state, so that it can be shared.
  function keep() {
    fill();
    route.tail = {
      sort: state.sort === "clarity" ? null : state.sort, order: state.up ? "up" : null,
      show: state.show === "all" ? null : state.show, q: state.q,
    };
    history.replaceState(null, "", link("dims", route.tail));
    switches();
  }
  function sortBy(key) {
    state.up = state.sort === key ? !state.up : key === "number";
    state.sort = key;
    keep();
    head.querySelector(`[data-sort=${key}]`).focus();
  }
  field.addEventListener("input", () => { state.q = field.value; keep(); });
  select.addEventListener("change", () => { state.show = select.value; keep(); });
  fill();
  const node = h("div", {},
    heading("Dimensions"),
    h("div", { class: "controls" },
      h("label", { for: "list-search" }, "Find", field),
      h("label", { for: "list-show" }, "Show", select), count),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of dimensions" }, sideways(),
      h("table", { class: "list" }, h("thead", {}, head), body)),
    tail);
  return { title: "Dimensions", node };
}
