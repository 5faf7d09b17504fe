// The first run beside another one.
async function viewCompare({ params }) {
  if (runs.length < 2) throw new Error("This atlas has only one run.");
  const pair = [runs[0], runs[route.run || 1]];
  const stages = pair.map(stageOf);
  const i = params.has("image") ? imageNumber(params.get("image")) : Math.min(7, atlas.count - 1);
  const [matches, ...described] = await Promise.all([
    load(`compare-${pair[1].number}`), ...pair.map((run, r) => loadImage(run, stages[r], i))]);
  const side = (draw) => h("div", { class: "columns two" }, pair.map((run, r) =>
    h("section", { class: "side" }, h("h3", {}, run.name), draw(run, stages[r], r))));

  const go = (n) => goTo(here({ image: String(Math.max(0, Math.min(atlas.count - 1, n))) }));
  const field = h("input", { type: "number", id: "compare-image", min: 0, max: atlas.count - 1, value: i,
    onchange: () => go(Math.round(Number(field.value)) || 0) });
  const any = h("button", { type: "button", onclick: () => go(Math.floor(Math.random() * atlas.count)) }, "Random image");

  const describe = (run, stage, r) => {
    const { features, near } = described[r];
    const top = [...features].sort((a, b) => Math.abs(b[stage]) - Math.abs(a[stage])).slice(0, 6);
    const largest = Math.max(1e-6, ...top.map((f) => Math.max(Math.abs(f.before), Math.abs(f.after))));
    return [
      h("ol", { class: "features tight" }, top.map((f) => featureRow(run, stage, f, largest))),
      note("Nearest images"),
      h("div", { class: "wall" }, near.slice(0, 5).map((n) => thumb(n.image, { caption: fixed(n.similarity, 2) })))];
  };

  const match = (k) => {
    const m = matches.match[k];
    return h("li", { "data-dim": k, "data-match": m },
      dimensionTile(pair[0], "before", k),
      h("span", { class: "match" }, h("b", {}, fixed(matches.cosine[k] / atlas.scale, 2)), h("small", {}, "cosine")),
      dimensionTile(pair[1], "before", m));
  };
  const node = h("div", {},
    heading(`${pair[0].name} and ${pair[1].name}`, lede(`Two runs on the same ${plural(atlas.count, "image")}.`)),
    side((run, stage) => [run.sentence && h("p", {}, run.sentence), headlineFigures(run, stage)]),
    pair.some((run) => Object.keys(run.summary).length) && section("Measures", foldedNumbers(pair)),
    section("All dimensions", side((run, stage) => [dimensionMap(run, stage, true).node, mapLegend(run)])),
    section("One image in both runs",
      h("div", { class: "portrait small" }, picture(i), h("div", {},
        h("p", {}, h("a", { href: link(`image/${i}`) }, imageTitle(i))),
        h("div", { class: "controls" }, h("label", { for: "compare-image" }, "Image", field), any))),
      side(describe)),
    section("Matching dimensions",
      intro(`Dimensions of ${pair[0].name}, clearest first, each with the most similar dimension of ${pair[1].name} `,
        "by the cosine of their activations before gates."),
      growing(h("ol", { class: "matches" }), byClarity(pair[0]), match, 8)));
  return { title: "Compare", node };
}
