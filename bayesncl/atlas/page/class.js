async function viewClass({ run, stage, args }) {
  if (!atlas.classes) throw new Error("These images have no class labels.");
  const c = Number(args[0]);
  if (!Number.isInteger(c) || !(c in atlas.classes)) throw new Error(`There is no class ${args[0]}.`);
  const ranked = rankForClass(run, c, (await load(`${run.key}-classes`))[stage].classes);
  const owned = ranked.filter((r) => r.owns).length;
  const own = `Owns ${owned ? plural(owned, "dimension") : "no dimension"}.`;

  const images = [...Array(atlas.count).keys()].filter((i) => atlas.labels[i] === c + 1);
  const wall = growing(h("div", { class: "wall" }), images, (i) => thumb(i), narrow() ? 8 : 11, false);
  const rows = longTable("Dimensions of the class",
    ["Dimension", "Strongest images", "#Precision", "#Recall", "#Images", run.gated && "#Gate closed"].filter(Boolean), ranked,
    (r) => tableRow(r.k,
      [h("a", { href: link(`dim/${r.k}`) }, nameOf(run, r.k) || r.k), r.owns && h("small", { class: "owns" }, "owned")],
      [linkedStrip(run, stage, r.k)],
      [percent(r.precision), percent(r.recall), whole(r.count), run.gated && percent(run.closed_rate[r.k])]), 24);
  const { steps, ...keys } = neighbors(c, atlas.classes.length, "class");
  const node = h("div", {},
    h("div", { class: "with-steps" }, heading(atlas.classes[c], lede(`${plural(images.length, "image")}. ${own}`)), steps),
    section("Images", wall),
    section("Dimensions that detect it",
      ranked.length ? rows : note("No dimension fires on its images."),
      note("Precision: share of the images it fires on that have this class. Recall: share of the class it fires on. ",
        "The class owns a dimension with precision ≥ 50 % and recall ≥ 10 %. Sorted by F1 score.")));
  return { title: atlas.classes[c], node, ...keys };
}

// counts: images by dimension and class that the dimension fires on, row by row.
function rankForClass(run, c, counts) {
  const rows = [];
  for (let k = 0; k < run.dims; k++) {
    const own = rowOf(counts, k, run.dims);
    if (!own[c]) continue;
    const precision = own[c] / own.reduce((a, b) => a + b, 0);
    const recall = own[c] / atlas.sizes[c];
    const score = (2 * precision * recall) / (precision + recall);
    rows.push({ k, count: own[c], precision, recall, score, owns: precision >= 0.5 && recall >= 0.1 });
  }
  return rows.sort((a, b) => b.score - a.score || a.k - b.k);
}

async function viewClasses({ run, stage }) {
  if (!atlas.classes) throw new Error("These images have no class labels.");
  const counts = (await load(`${run.key}-classes`))[stage].classes;
  const samples = atlas.classes.map(() => []);
  for (let i = 0; i < atlas.count; i++) {
    const y = atlas.labels[i];
    if (y && samples[y - 1].length < 6) samples[y - 1].push(i);
  }
  const tile = (c) => {
    const owned = rankForClass(run, c, counts).filter((r) => r.owns).length;
    return h("a", { class: "tile", href: link(`class/${c}`) }, strip(samples[c], ""),
      h("span", { class: "tile-name" }, atlas.classes[c]),
      h("span", { class: "tile-line" }, `${plural(atlas.sizes[c], "image")} · owns ${owned ? plural(owned, "dimension") : "no dimension"}`));
  };
  return { title: "Classes", node: h("div", {}, heading("Classes"), growing(h("div", { class: "tiles" }), [...atlas.classes.keys()], tile, 30)) };
}
