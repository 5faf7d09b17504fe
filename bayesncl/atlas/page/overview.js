const MEASURES = {
  consistency: "Consistency, %", entropy_sum: "Entropy of sums", entropy_mean: "Entropy of means",
  entropy_freq: "Entropy of firing", activation_ratio: "Activation ratio", l0: "Active dimensions an image",
};
const measureName = (key) => MEASURES[key] || key.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());

function measureValue(v) {
  if (v === null || v === undefined) return "–";
  if (Number.isInteger(v) && Math.abs(v) >= 10) return whole(v);
  return fixed(v, Math.abs(v) >= 10 ? 1 : 3);
}

function headlineFigures(run, stage) {
  const s = run.stages[stage];
  const largest = atlas.sizes && percent(Math.max(...atlas.sizes) / atlas.count, 1);
  return h("div", { class: "figures" },
    figureNumber(whole(run.dims - s.dead), `of ${whole(run.dims)} dimensions fire`, `${whole(s.dead)} dead`),
    figureNumber(s.active.toFixed(1), "active dimensions an image", "mean over images"),
    s.consistency !== null && figureNumber(percent(s.consistency, 1), "consistency",
      `of ${whole(s.supported)} with ≥ 10 images; largest class ${largest}`),
    run.gated && figureNumber(percent(run.closed, 1), "of firing features closed", "by the gates"));
}

function summaryIntro(list) {
  const gated = list.some((run) => run.gated) ? " Of features after the gates, whatever is shown elsewhere." : "";
  return `By both definitions: to the letter of the paper, and the sound one.${gated}`;
}

// One row a measure, one column a definition (and a run, where there are two).
function summaryTable(list) {
  const head = [{ text: "Measure" }];
  const rows = new Map();
  for (const run of list.filter((r) => r.summary)) {
    for (const [c, column] of run.summary.columns.entries()) {
      const name = list.length > 1 ? [run.name, column].filter(Boolean).join(", ") : column;
      for (const [key, ...values] of run.summary.rows) {
        if (!rows.has(key)) rows.set(key, []);
        rows.get(key)[head.length - 1] = values[c];
      }
      head.push({ text: name || "Value", class: "number" });
    }
  }
  const body = [...rows].map(([key, values]) => h("tr", {},
    h("th", { scope: "row" }, measureName(key)),
    head.slice(1).map((_, j) => h("td", { class: "number" }, measureValue(values[j])))));
  return table(head, body, { label: "Headline numbers" });
}

function galleryLinks(run) {
  return actions(
    button(atlas.classes ? "High-entropy dimensions" : "Most prevalent dimensions", link("gallery/entropy")),
    run.gated && button("Most suppressed dimensions", link("gallery/suppressed")),
    button("All dimensions", link("dims")),
    runs.length > 1 && button("Compare the runs", link("compare")));
}

// Places to begin: what is purest, what is most common, what the gates take out.
function beginnings(run, stage) {
  const s = run[stage];
  const firing = [...Array(run.dims).keys()].filter((k) => s.support[k] >= 10);
  const by = (of) => [...firing].sort((a, b) => of(b) - of(a) || s.mass[b] - s.mass[a]).slice(0, 4);
  const groups = [
    s.consistency && ["Purest", by((k) => s.consistency[k]), link("dims", { sort: "consistency" })],
    ["Most common", by((k) => s.support[k]), link("dims", { sort: "support" })],
    run.gated
      ? ["Most suppressed", run.stages.before.gallery.suppressed.slice(0, 4), link("gallery/suppressed")]
      : ["Heaviest", by((k) => s.mass[k]), link("dims")],
  ];
  return groups.filter((group) => group && group[1].length).map(([name, dims, href]) => h("div", {},
    h("h3", {}, h("a", { href }, name)),
    h("div", { class: "tiles" }, dims.map((k) => dimensionTile(run, s.shown[k] ? stage : "before", k)))));
}

function deadNote(run, stage) {
  const { dead } = run.stages[stage];
  if (!dead) return [];
  const never = dead === 1 ? "never fires and is not drawn" : "never fire and are not drawn";
  return [`${plural(dead, "dimension")} ${never}: `, h("a", { href: link("dims", { show: "dead" }) }, "see the list"), "."];
}

async function viewOverview({ run, stage }) {
  const map = dimensionMap(run, stage);
  const figures = h("div", {});
  const dead = note();
  const start = h("div", { class: "columns" });
  const fill = () => {
    figures.replaceChildren(headlineFigures(run, stage));
    dead.replaceChildren(...deadNote(run, stage));
    start.replaceChildren(...beginnings(run, stage));
  };
  fill();
  const reading = atlas.classes
    ? "A dimension far to the right fires on most images; one far up fires on a single class. Those to the right and low "
      + "down are shared by all classes: the conflicting features. Both scales are square roots."
    : "A dimension far to the right fires on most images. There are no class labels, so height is how strongly it fires.";
  const both = run.summary?.columns.length > 1 && intro(summaryIntro([run]));
  const node = h("div", {},
    h("div", { class: "masthead" }, heading(atlas.title, run.sentence && lede(run.sentence)), figures),
    section("Every dimension at a glance", intro(reading), map.node, mapLegend(run), dead),
    run.summary && section("Headline numbers", both, summaryTable([run])),
    section("Where to begin", start),
    galleryLinks(run));
  const update = (next) => {
    stage = next.stage;
    map.update(stage);
    fill();
  };
  return { title: "Overview", node, update };
}
