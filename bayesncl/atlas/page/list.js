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
  const show = choices("list-show", "Show", Object.entries(filters).map(([key, [name]]) => [key, name]), state.show,
    (value) => { state.show = value; keep(); });
  const box = h("div", {});
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
    return o.kind === 1 ? h("a", { href: link(`class/${s.word[k]}`) }, clip(o.word, 28)) : `on ${clip(o.word, 28)}`;
  };
  const row = (k) => tableRow(k, [h("a", { href: link(`dim/${k}`) }, k), !s.support[k] && h("small", {}, "dead")], [
    linkedStrip(run, stage, k, 5),
    h("div", { class: "name" }, nameOf(run, k)
      && h("b", { class: suggestionOf(run, k) && "suggested", title: suggestionOf(run, k) || null }, nameOf(run, k), " "), stands(k))],
  columns.map((c) => c.show(c.of(k))));

  function fill() {
    const q = state.q.trim().toLowerCase();
    const value = columns.find((c) => c.key === state.sort)?.of ?? ((k) => k);
    const way = state.up ? 1 : -1;
    const found = [...Array(run.dims).keys()]
      .filter((k) => filters[state.show][1](run, s, k) && matches(k, q))
      .sort((a, b) => way * (value(a) - value(b)) || a - b);
    const [body, more] = growingTwins(run, h("tbody", {}), found, row, 40);
    const groups = foldTwins(run, found).length;
    box.replaceChildren(table("Table of dimensions", [
      sorter("number", "Dimension", "by number", "first"), "Strongest images",
      atlas.classes || atlas.backgrounds ? "Name or prominent class" : "Name",
      ...columns.map((c) => sorter(c.key, c.name, c.help, "number"))], body, "list"), more);
    cutTables();
    count.textContent = plural(found.length, "dimension") + (found.length < run.dims ? ` of ${whole(run.dims)}` : "")
      + (groups < found.length ? `, ${whole(groups)} with twins folded` : "");
  }

  // The address follows the state, so that it can be shared.
  function keep() {
    fill();
    route.tail = {
      sort: state.sort === "clarity" ? null : state.sort, order: state.up ? "up" : null,
      show: state.show === "all" ? null : state.show, q: state.q,
    };
    history.replaceState(null, "", here());
    switches();
  }
  function sortBy(key) {
    state.up = state.sort === key ? !state.up : key === "number";
    state.sort = key;
    keep();
    box.querySelector(`[data-sort=${key}]`).focus();
  }
  field.addEventListener("input", () => { state.q = field.value; keep(); });
  fill();
  const node = h("div", {},
    heading("Dimensions"),
    h("div", { class: "controls" },
      h("label", { for: "list-search" }, "Find", field),
      show, count),
    box);
  return { title: "Dimensions", node };
}
