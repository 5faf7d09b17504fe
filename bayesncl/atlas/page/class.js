async function viewClass({ run, stage, args }) {
  if (!atlas.classes) throw new Error("These images have no class labels.");
  const c = Number(args[0]);
  if (!Number.isInteger(c) || c < 0 || c >= atlas.classes.length) throw new Error(`There is no class ${args[0]}.`);
  const rows = rankForClass(run, stage, c, (await load(`${run.key}-classes`))[stage].classes);
  const owned = rows.filter((r) => r.owns).length;
  const body = h("tbody", {});
  const button = growing(body, rows, (r) => h("tr", { "data-dim": r.k },
    h("th", { scope: "row", class: "first" }, h("a", { href: link(`dim/${r.k}`) }, r.k), r.owns && h("small", { class: "owns" }, "owns")),
    h("td", {}, h("a", { href: link(`dim/${r.k}`), tabindex: -1, "aria-hidden": "true" }, dimensionStrip(run, stage, r.k, 8))),
    h("td", { class: "number" }, percent(r.precision)), h("td", { class: "number" }, percent(r.recall)), h("td", { class: "number" }, whole(r.count)),
    run.gated && h("td", { class: "number" }, percent(run.closed_rate[r.k]))), 24);
  const images = [...Array(atlas.count).keys()].filter((i) => atlas.labels[i] === c + 1);
  const wall = h("div", { class: "wall" });
  const more = growing(wall, images, (i) => thumb(i), narrow() ? 8 : 11, false);
  const node = h("div", {},
    h("div", { class: "with-steps" }, heading(atlas.classes[c], h("p", { class: "lede" },
      `${plural(images.length, "image")}. ${owned ? `${plural(owned, "dimension")} ${owned === 1 ? "belongs" : "belong"} to it.` : "No dimension is its own."}`)), steps(c, atlas.classes.length, "class")),
    section("Its images", wall, more),
    section("Dimensions, most telling first",
      rows.length ? [table([{ text: "Dimension", class: "first" }, { text: "Top images" }, { text: "Precision", class: "number" }, { text: "Recall", class: "number" }, { text: "Images", class: "number" }, ...(run.gated ? [{ text: "Gate closes", class: "number" }] : [])], [], { label: "Dimensions of the class", class: "wide" }), button]
        : note("No dimension fires on its images."),
      note("Precision: of the images the dimension fires on, the share of this class. Recall: of this class, the share it fires on. A dimension is its own at precision 50 % and recall 10 % or more; the order is by the harmonic mean of the two.")));
  if (rows.length) node.querySelector("tbody").replaceWith(body);
  return { title: atlas.classes[c], node, previous: c > 0 && link(`class/${c - 1}`), next: c < atlas.classes.length - 1 && link(`class/${c + 1}`) };
}

function rankForClass(run, stage, c, counts) {
  const width = atlas.classes.length;
  const rows = [];
  for (let k = 0; k < run.dims; k++) {
    const count = counts[k * width + c];
    if (!count) continue;
    let firing = 0;
    for (let j = 0; j < width; j++) firing += counts[k * width + j];
    const precision = count / firing;
    const recall = count / atlas.sizes[c];
    rows.push({ k, count, precision, recall, score: (2 * precision * recall) / (precision + recall), owns: precision >= 0.5 && recall >= 0.1 });
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
  const button = growing(list, [...atlas.classes.keys()], (c) => {
    const owned = rankForClass(run, stage, c, counts).filter((r) => r.owns).length;
    return h("a", { class: "tile", href: link(`class/${c}`) }, strip(samples[c], ""),
      h("span", { class: "tile-name" }, atlas.classes[c]), h("span", { class: "tile-line" }, `${plural(atlas.sizes[c], "image")} · ${owned ? plural(owned, "own dimension") : "no own dimension"}`));
  }, 30);
  return { title: "Classes", node: h("div", {}, heading("Classes"), list, button) };
}
