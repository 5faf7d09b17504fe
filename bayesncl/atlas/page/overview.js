const MEASURES = {
  consistency: "Consistency, %", entropy_sum: "Entropy of sums", entropy_mean: "Entropy of means",
  entropy_freq: "Entropy of firing", activation_ratio: "Activation ratio", l0: "Active dimensions per image",
};
const measureName = (key) => MEASURES[key] || key.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());

function measureValue(v) {
  if (v === null || v === undefined) return "–";
  if (Number.isInteger(v) && Math.abs(v) >= 10) return whole(v);
  return fixed(v, Math.abs(v) >= 10 ? 1 : 3);
}

function headlineFigures(run, stage) {
  const s = run[stage];
  const when = run.after ? `, ${stage} gates` : "";
  const largest = atlas.sizes && percent(Math.max(...atlas.sizes) / atlas.count, 1);
  return h("div", { class: "figures" },
    figureNumber(whole(run.dims - s.dead), `of ${whole(run.dims)} dimensions are active${when}`, `${whole(s.dead)} dead`),
    figureNumber(s.active.toFixed(1), `active dimensions per image${when}`, "mean"),
    s.mean_consistency !== null && figureNumber(percent(s.mean_consistency, 1), `consistency${when}`,
      `mean of ${whole(s.supported)} dimensions with ≥ 10 images; largest class ${largest}`),
    run.gated && figureNumber(percent(run.closed, 1), "of active features closed", "by the gates"));
}

function foldedNumbers(list) {
  const measures = list.flatMap((run) => Object.values(run.summary).flatMap(Object.keys));
  if (!measures.length) return null;
  const gated = list.some((run) => run.gated) ? " Measured after the gates." : "";
  return h("details", { ontoggle: () => cutTables() },
    h("summary", {}, `All measures of the evaluation (${new Set(measures).size})`),
    list.some((run) => Object.keys(run.summary).length > 1)
      && intro(`“paper”: as the paper defines a measure. “sound”: as we define it.${gated}`),
    summaryTable(list));
}

// One row per measure, one column per definition and run.
function summaryTable(list) {
  const columns = list.flatMap((run) => Object.entries(run.summary).map(([definition, values]) =>
    [list.length > 1 ? `${run.name}, ${definition}` : definition, values]));
  const measures = [...new Set(columns.flatMap(([, values]) => Object.keys(values)))];
  return table("All measures", ["Measure", ...columns.map(([name]) => `#${name}`)], h("tbody", {}, measures.map((key) =>
    tableRow(null, measureName(key), [], columns.map(([, values]) => measureValue(values[key]))))));
}

function galleryLinks(run, first = null) {
  return actions(
    first,
    button(atlas.classes ? "High-entropy dimensions" : "Most prevalent dimensions", link("gallery/entropy")),
    run.gated && button("Most suppressed dimensions", link("gallery/suppressed")),
    button("All dimensions", link("dims")),
    button("Take the quiz", link("quiz")),
    runs.length > 1 && button("Compare the runs", link("compare")));
}

// The clearest dimensions as strips of images, each with its name or prominent class.
function clearestTiles(run, stage) {
  const s = run[stage];
  const first = new Set(s.wall);
  const order = [...s.wall, ...[...Array(run.dims).keys()].filter((k) => s.shown[k] && s.clarity[k] > 0 && !first.has(k))
    .sort((a, b) => s.clarity[b] - s.clarity[a] || s.mass[b] - s.mass[a])];
  if (!order.length) return [note("No dimension fires on 10 or more images.")];
  const tile = (k) => h("div", {}, dimensionTile(run, stage, k));
  return growingTwins(run, h("div", { class: "tiles clearest" }), order, tile, narrow() ? 6 : 12, { auto: false });
}

async function viewOverview({ run, stage }) {
  const map = dimensionMap(run, stage);
  const [figures, dead, wall] = [h("div", {}), note(), h("div", {})];
  const fill = () => {
    figures.replaceChildren(headlineFigures(run, stage));
    const gone = run[stage].dead;
    dead.replaceChildren(...(gone
      ? [`${plural(gone, "dead dimension")} not shown: `, h("a", { href: link("dims", { show: "dead" }) }, "list"), "."] : []));
    wall.replaceChildren(...clearestTiles(run, stage));
  };
  fill();
  const reading = atlas.classes
    ? "Dimensions on the right fire on many images, those at the top on a single class. Those at the bottom right are "
      + "shared by all classes. Both axes have square-root scales."
    : "Dimensions on the right fire on many images, those at the top fire strongly. Both axes have square-root scales.";
  const { dead: none, active } = run[stage];
  const [verdict] = run.verdict?.[0]
    ?? [`${whole(run.dims - none)} of ${whole(run.dims)} dimensions are active, ${active.toFixed(1)} per image on average.`];
  const node = h("div", {},
    heading(atlas.title, lede(run.sentence && `${run.sentence} `, verdict)),
    section("What the dimensions mean",
      intro("Clearest dimensions first, dissimilar ones before similar ones. A dimension is clear if its strongest images ",
        "resemble each other and it fires strongly on few images. Labels are not used. ",
        h("a", { href: link("names") }, progress(run)), "."),
      wall),
    section("All dimensions", intro(reading), map.node, mapLegend(run), dead),
    section(run.verdict?.length ? "Verdict" : "Numbers",
      run.verdict?.length > 0 && h("ul", { class: "lines" }, run.verdict.map(([text, by]) => h("li", { title: by }, text.replaceAll(" %", "\u00a0%")))),
      h("details", { class: "numbers" }, h("summary", {}, "Active dimensions and consistency"), figures),
      foldedNumbers([run])),
    galleryLinks(run));
  const update = (next) => {
    stage = next.stage;
    map.update(stage);
    fill();
  };
  return { title: "Overview", node, update };
}
