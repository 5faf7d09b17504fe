const MEASURES = {
  consistency: "Consistency, %", consistency_weighted: "Consistency by mass, %", entropy_sum: "Entropy of sums", entropy_mean: "Entropy of means",
  entropy_freq: "Entropy of firing", activation_ratio: "Activation ratio", l0: "Active dimensions an image",
};
const measureName = (key) => MEASURES[key] || key.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());
const measureValue = (v) => (v === null ? "–" : Number.isInteger(v) && Math.abs(v) >= 10 ? whole(v) : fixed(v, Math.abs(v) >= 10 ? 1 : 3));

function headlineFigures(run, stage) {
  const s = run.stages[stage];
  const largest = atlas.sizes && Math.max(...atlas.sizes) / atlas.count;
  return h("div", { class: "figures" },
    figureNumber(whole(run.dims - s.dead), `of ${whole(run.dims)} dimensions fire`, s.dead ? `${whole(s.dead)} are dead` : "none is dead"),
    figureNumber(s.active.toFixed(1), "active dimensions an image", "mean over images"),
    s.consistency !== null && figureNumber(percent(s.consistency, 1), "consistency", `of ${whole(s.supported)} with ≥ 10 images; largest class ${percent(largest, 1)}`),
    run.gated && figureNumber(percent(run.closed, 1), "of firing features closed", "by the gates"));
}

function summaryTable(list) {
  const shown = list.filter((run) => run.summary);
  if (!shown.length) return null;
  const many = list.length > 1;
  const head = [{ text: "Measure" }];
  const rows = new Map();
  for (const run of shown) {
    for (const [c, column] of run.summary.columns.entries()) {
      const at = head.length - 1;
      head.push({ text: [many && run.name, column].filter(Boolean).join(", ") || "Value", class: "number" });
      for (const row of run.summary.rows) {
        if (!rows.has(row[0])) rows.set(row[0], []);
        rows.get(row[0])[at] = row[c + 1];
      }
    }
  }
  const body = [...rows].map(([key, values]) => h("tr", {}, h("th", { scope: "row" }, measureName(key)),
    head.slice(1).map((_, j) => h("td", { class: "number" }, measureValue(values[j] ?? null)))));
  return table(head, body, { label: "Headline numbers" });
}

function galleryLinks(run) {
  const s = run.stages.before.gallery;
  return h("p", { class: "actions" },
    h("a", { class: "button", href: link("gallery/entropy") }, atlas.classes ? "High-entropy dimensions" : "Most prevalent dimensions"),
    s.suppressed?.length > 0 && h("a", { class: "button", href: link("gallery/suppressed") }, "Most suppressed dimensions"),
    h("a", { class: "button", href: link("dims") }, "All dimensions"),
    runs.length > 1 && h("a", { class: "button", href: link("compare") }, "Compare the runs"));
}

// Places to begin: what is purest, what is most common, what the gates take out.
function beginnings(run, stage) {
  const s = run[stage];
  const firing = [...Array(run.dims).keys()].filter((k) => s.support[k] >= 10);
  const by = (of) => [...firing].sort((a, b) => of(b) - of(a) || s.mass[b] - s.mass[a]).slice(0, 4);
  const groups = [
    s.consistency && ["Purest", by((k) => s.consistency[k]), link("dims", { sort: "consistency" })],
    ["Most common", by((k) => s.support[k]), link("dims", { sort: "support" })],
    run.gated && ["Most suppressed", run.stages.before.gallery.suppressed.slice(0, 4), link("gallery/suppressed")],
    !run.gated && ["Heaviest", by((k) => s.mass[k]), link("dims")],
  ].filter((group) => group && group[1].length);
  return groups.map(([name, dims, href]) => h("div", {}, h("h3", {}, h("a", { href }, name)),
    h("div", { class: "tiles" }, dims.map((k) => dimensionTile(run, hasStage(run, stage) && s.shown[k] ? stage : "before", k)))));
}

async function viewOverview({ run, stage }) {
  const map = dimensionMap(run, stage);
  const figures = h("div", {}, headlineFigures(run, stage));
  const dead = h("span", {});
  const below = () => {
    const gone = run.stages[stage].dead;
    dead.replaceChildren(...(gone ? [`${plural(gone, "dimension")} never ${gone === 1 ? "fires" : "fire"} and ${gone === 1 ? "is" : "are"} not drawn: `, h("a", { href: link("dims", { show: "dead" }) }, "see the list"), "."] : []));
  };
  below();
  const start = h("div", { class: "columns" }, beginnings(run, stage));
  const node = h("div", {},
    h("div", { class: "masthead" }, heading(atlas.title, run.sentence && h("p", { class: "lede" }, run.sentence)), figures),
    section("Every dimension at a glance",
      h("p", { class: "intro" }, atlas.classes
        ? "A dimension far to the right fires on most images; one far up fires on a single class. Those to the right and low down are shared by all classes: the conflicting features. Both scales are square roots."
        : "A dimension far to the right fires on most images. There are no class labels, so height is how strongly it fires."),
      map.node, mapLegend(run), note(dead)),
    run.summary && section("Headline numbers",
      run.summary.columns.length > 1 && h("p", { class: "intro" }, "By both definitions: to the letter of the paper, and the sound one."), summaryTable([run])),
    section("Where to begin", start),
    galleryLinks(run));
  return {
    title: "Overview", node,
    update(next) {
      stage = next.stage;
      map.update(stage);
      figures.replaceChildren(headlineFigures(run, stage));
      start.replaceChildren(...beginnings(run, stage));
      below();
    },
  };
}
