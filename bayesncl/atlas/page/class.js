async function viewClass({ run, stage, args }) {
  if (!atlas.classes) throw new Error("These images have no class labels.");
  const c = Number(args[0]);
  if (!Number.isInteger(c) || !(c in atlas.classes)) throw new Error(`There is no class ${args[0]}.`);
  const ranked = rankForClass(run, c, (await load(`${run.key}-classes`))[stage].classes);
  const owned = ranked.filter((r) => r.owns).length;
  const own = `Owns ${owned ? plural(owned, "dimension") : "no dimension"}.`;

  const images = [...Array(atlas.count).keys()].filter((i) => atlas.labels[i] === c + 1);
  const wall = h("div", { class: "wall" });
  const moreImages = growing(wall, images, (i) => thumb(i), narrow() ? 8 : 11, false);

  const number = (text) => ({ text, class: "number" });
  const head = [{ text: "Dimension", class: "first" }, { text: "Strongest images" },
    number("Precision"), number("Recall"), number("Images"), run.gated && number("Gate closed")].filter(Boolean);
  const rows = table(head, [], { label: "Dimensions of the class", class: "wide" });
  const moreRows = growing(rows.querySelector("tbody"), ranked, (r) => h("tr", { "data-dim": r.k },
    h("th", { scope: "row", class: "first" },
      h("a", { href: link(`dim/${r.k}`) }, nameOf(run, r.k) || r.k), r.owns && h("small", { class: "owns" }, "owned")),
    h("td", {}, linkedStrip(run, stage, r.k)),
    [percent(r.precision), percent(r.recall), whole(r.count), run.gated && percent(run.closed_rate[r.k])]
      .filter(Boolean).map((text) => h("td", { class: "number" }, text))), 24);

  const node = h("div", {},
    h("div", { class: "with-steps" },
      heading(atlas.classes[c], lede(`${plural(images.length, "image")}. ${own}`)),
      steps(c, atlas.classes.length, "class")),
    section("Images", wall, moreImages),
    section("Dimensions that detect it",
      ranked.length ? [rows, moreRows] : note("No dimension fires on its images."),
      note("Precision: share of the images it fires on that have this class. Recall: share of the class it fires on. ",
        "The class owns a dimension with precision ≥ 50 % and recall ≥ 10 %. Sorted by F1 score.")));
  return { title: atlas.classes[c], node, ...neighbors(c, atlas.classes.length, "class") };
}

// counts: images by dimension and class that the dimension fires on, row by row.
function rankForClass(run, c, counts) {
  const width = atlas.classes.length;
  const rows = [];
  for (let k = 0; k < run.dims; k++) {
    const count = counts[k * width + c];
    if (!count) continue;
    let firing = 0;
    for (let j = 0; j < width; j++) firing += counts[k * width + j];
    const precision = count / firing;
    const recall = count / atlas.sizes[c];
    const score = (2 * precision * recall) / (precision + recall);
    rows.push({ k, count, precision, recall, score, owns: precision >= 0.5 && recall >= 0.1 });
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
  const list = h("div", { class: "tiles" });
  const more = growing(list, [...atlas.classes.keys()], (c) => {
    const owned = rankForClass(run, c, counts).filter((r) => r.owns).length;
    const line = `${plural(atlas.sizes[c], "image")} · owns ${owned ? plural(owned, "dimension") : "no dimension"}`;
    return h("a", { class: "tile", href: link(`class/${c}`) }, strip(samples[c], ""),
      h("span", { class: "tile-name" }, atlas.classes[c]), h("span", { class: "tile-line" }, line));
  }, 30);
  return { title: "Classes", node: h("div", {}, heading("Classes"), list, more) };
}
