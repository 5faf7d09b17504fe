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
  const when = run.after ? `, ${stage} gates` : "";
  const largest = atlas.sizes && percent(Math.max(...atlas.sizes) / atlas.count, 1);
  return h("div", { class: "figures" },
    figureNumber(whole(run.dims - s.dead), `of ${whole(run.dims)} dimensions fire${when}`, `${whole(s.dead)} dead`),
    figureNumber(s.active.toFixed(1), `active dimensions an image${when}`, "mean over images"),
    s.consistency !== null && figureNumber(percent(s.consistency, 1), `consistency${when}`,
      `of ${whole(s.supported)} with ≥ 10 images; largest class ${largest}`),
    run.gated && figureNumber(percent(run.closed, 1), "of firing features closed", "by the gates"));
}

function summaryIntro(list) {
  const gated = list.some((run) => run.gated) ? " Of features after the gates, whatever is shown elsewhere." : "";
  return `By both definitions: to the letter of the paper, and the sound one.${gated}`;
}

function foldedNumbers(list) {
  const rows = Math.max(...list.map((run) => run.summary?.rows.length || 0));
  return h("details", { ontoggle: () => cutTables() },
    h("summary", {}, `Every measure of the evaluation (${rows})`),
    list.some((run) => run.summary?.columns.length > 1) && intro(summaryIntro(list)), summaryTable(list));
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
    button("Test yourself: the quiz", link("quiz")),
    runs.length > 1 && button("Compare the runs", link("compare")));
}

function deadNote(run, stage) {
  const { dead } = run.stages[stage];
  if (!dead) return [];
  const never = dead === 1 ? "never fires and is not drawn" : "never fire and are not drawn";
  return [`${plural(dead, "dimension")} ${never}: `, h("a", { href: link("dims", { show: "dead" }) }, "see the list"), "."];
}

// What dimensions mean: the most telling ones as strips of pictures, each with its name or a plain sentence.
function tellingWall(run, stage) {
  const s = run[stage];
  const first = new Set(s.wall);
  const order = [...s.wall, ...[...Array(run.dims).keys()].filter((k) => s.shown[k] && s.telling[k] > 0 && !first.has(k))
    .sort((a, b) => s.telling[b] - s.telling[a] || s.mass[b] - s.mass[a])];
  if (!order.length) return [note("No dimension fires on ten images or more.")];
  const wall = h("div", { class: "tiles telling" });
  return [wall, growing(wall, order, (k) => dimensionTile(run, stage, k), narrow() ? 6 : 12, false)];
}

async function viewOverview({ run, stage }) {
  const map = dimensionMap(run, stage);
  const figures = h("div", {});
  const dead = note();
  const wall = h("div", {});
  const fill = () => {
    figures.replaceChildren(headlineFigures(run, stage));
    dead.replaceChildren(...deadNote(run, stage));
    wall.replaceChildren(...tellingWall(run, stage));
  };
  fill();
  const reading = atlas.classes
    ? "A dimension far to the right fires on many images; one far up fires on a single class. Those to the right and low "
      + "down are shared by all classes. Both axes have square-root scales."
    : "A dimension far to the right fires on many images. There are no class labels, so height is how strongly it fires.";
  const { dead: none, active } = run.stages[stage];
  const [verdict] = run.verdict?.[0]
    ?? [`${whole(run.dims - none)} of ${whole(run.dims)} dimensions fire; an image uses ${active.toFixed(1)} on average.`];
  const node = h("div", {},
    heading(atlas.title, lede(run.sentence && `${run.sentence} `, verdict)),
    section("What the dimensions mean",
      intro("The most telling first, unlike ones before similar ones. A dimension is telling if its strongest images are ",
        "alike in other dimensions, too, and if it fires on few images, and strongly. No label decides this order. ",
        h("a", { href: link("names") }, progress(run)), "."),
      wall),
    section("Every dimension at a glance", intro(reading), map.node, mapLegend(run), dead),
    section(run.verdict?.length ? "Verdict" : "Numbers",
      run.verdict?.length > 0 && h("ul", { class: "lines" }, run.verdict.map(([text, by]) => h("li", { title: by }, text))),
      h("details", { class: "numbers" }, h("summary", {}, "Dimensions in use, and what they have in common"), figures),
      run.summary && foldedNumbers([run])),
    galleryLinks(run));
  const update = (next) => {
    stage = next.stage;
    map.update(stage);
    fill();
  };
  return { title: "Overview", node, update };
}
