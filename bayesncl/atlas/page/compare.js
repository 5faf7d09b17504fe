async function viewCompare({ params }) {
  if (runs.length < 2) throw new Error("This atlas holds one run: there is nothing to compare.");
  const stages = runs.map((run) => (hasStage(run, route.stage) ? route.stage : "before"));
  const matches = await load("compare");
  const i = params.has("image") ? imageNumber(params.get("image")) : Math.min(7, atlas.count - 1);
  const described = await Promise.all(runs.map((run, r) => loadImage(run, stages[r], i)));
  const side = (draw) => h("div", { class: "columns two" }, runs.map((run, r) => h("section", { class: "side" }, h("h3", {}, run.name), draw(run, stages[r], r))));

  const field = h("input", { type: "number", id: "compare-image", min: 0, max: atlas.count - 1, value: i });
  const go = (n) => { location.hash = link("compare", { image: String(Math.max(0, Math.min(atlas.count - 1, n))) }); };
  field.addEventListener("change", () => go(Math.round(Number(field.value)) || 0));

  // The most prevalent dimensions of the first run, and what the second has instead.
  const s = runs[0].before;
  const order = [...Array(runs[0].dims).keys()].filter((k) => s.support[k] > 0).sort((a, b) => s.support[b] - s.support[a] || s.mass[b] - s.mass[a]);
  const list = h("ol", { class: "matches" });
  const button = growing(list, order, (k) => {
    const m = matches.first.match[k];
    const cosine = matches.first.cosine[k] / atlas.scale;
    return h("li", { "data-dim": k, "data-match": m },
      dimensionTile(runs[0], "before", k), h("span", { class: "match" }, h("b", {}, fixed(cosine, 2)), h("small", {}, "cosine")), dimensionTile(runs[1], "before", m));
  }, 8);

  const node = h("div", {},
    heading(`${runs[0].name} and ${runs[1].name}`, h("p", { class: "lede" }, `Two runs on the same ${plural(atlas.count, "image")}.`)),
    side((run, stage) => [run.sentence && h("p", {}, run.sentence), headlineFigures(run, stage)]),
    runs.some((run) => run.summary) && section("Headline numbers", summaryTable(runs)),
    section("All dimensions", side((run, stage) => [dimensionMap(run, stage, { compact: true }).node, mapLegend(run)])),
    section("One image, described twice",
      h("div", { class: "portrait small" }, picture(i), h("div", {},
        h("p", {}, h("a", { href: link(`image/${i}`) }, imageTitle(i))),
        h("div", { class: "controls" }, h("label", { for: "compare-image" }, "Image", field),
          h("button", { type: "button", class: "button", onclick: () => go(Math.floor(Math.random() * atlas.count)) }, "Any other image")))),
      side((run, stage, r) => {
        const top = [...described[r].features].sort((a, b) => Math.abs(b[stage]) - Math.abs(a[stage])).slice(0, 6);
        return [h("ol", { class: "features tight" }, top.map((f) => featureRow(run, stage, f, Math.max(1e-6, ...top.map((g) => Math.max(Math.abs(g.before), Math.abs(g.after))))))),
          h("p", { class: "note" }, "Nearest images"),
          h("div", { class: "wall" }, described[r].near.slice(0, 5).map((n) => thumb(n.image, { caption: fixed(n.similarity, 2) })))];
      })),
    section("The same dimension in both?",
      h("p", { class: "intro" }, `Dimensions of ${runs[0].name}, most prevalent first, each with the dimension of ${runs[1].name} that acts most alike on the same images (before gates).`), list, button));
  return { title: "Compare", node };
}
