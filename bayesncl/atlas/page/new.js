// What `bayesncl compare` found in other images: the most novel ones, and dimensions that grew or shrank in use.
async function viewNew({ run, stage }) {
  if (!atlas.pages.includes("new")) throw new Error("Run bayesncl compare on these codes, then bayesncl atlas again.");
  const { headline, images, changes, sprites } = await load("new");
  const wall = h("div", { class: "novel" });
  const more = growing(wall, images, ([name, score, at]) => h("figure", {},
    at >= 0 ? picture(at, true, sprites) : h("span", { class: "none" }, "–"),
    h("figcaption", {}, h("b", {}, fixed(score, 3)), h("small", {}, name))), narrow() ? 12 : 24, false);

  const largest = Math.max(1e-6, ...changes.flatMap(([, before, after]) => [before, after]));
  const bar = (word, value, tone) => h("span", { class: "feature-bar" },
    h("span", { class: "track", "aria-hidden": "true" }, meter(value / largest, tone)),
    h("span", { class: "bar-text" }, h("span", { class: "unseen" }, `${word} `), percent(value, 1)));
  const row = ([k, before, after]) => h("li", { "data-dim": k },
    h("div", {}, dimensionName(run, stage, k)), linkedStrip(run, stage, k, 6),
    h("span", { class: "feature-bars" }, bar("fitted", before, ""), bar("new", after, "open")));
  const part = (title, list) => {
    const rows = h("ol", { class: "features" });
    return list.length > 0 && [h("h3", {}, title), rows, growing(rows, list, row, 12, false)];
  };
  const node = h("div", {},
    heading("New here", lede(`${headline}.`)),
    section("Most novel images", images.length
      ? [intro("Novelty: 0 if one dimension describes an image, 1 if all fit equally well."), wall, more] : note("None.")),
    section("Dimensions used more or less", changes.length
      ? [intro("Share of images with the dimension among their five strongest. Upper bar: fitted images. Lower bar: new images."),
        part("More", changes.filter(([, before, after]) => after > before)),
        part("Less", changes.filter(([, before, after]) => after <= before))]
      : note("No share changed by more than four standard errors.")));
  return { title: "New here", node };
}
