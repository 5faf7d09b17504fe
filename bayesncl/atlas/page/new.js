// What `bayesncl compare` found in other images: the most novel ones, and dimensions that grew or shrank in use.
async function viewNew({ run, stage }) {
  if (!atlas.pages.includes("new")) throw new Error("Run bayesncl compare on these codes, then bayesncl atlas again.");
  const { headline, images, changes, sprites, names } = await load("new");
  const number = new Map(names.map((name, n) => [name, n]));
  const wall = growing(h("div", { class: "novel" }), images, ([name, score]) =>
    captioned(number.has(name) ? picture(number.get(name), true, sprites) : h("span", { class: "none" }, "–"), fixed(score, 3), name),
  narrow() ? 12 : 24, false);
  const largest = Math.max(1e-6, ...changes.flatMap(([, before, after]) => [before, after]));
  const row = ([k, before, after]) => dimensionRow(run, stage, k, true,
    twoBars([["fitted", before], ["new", after]], largest, (share) => percent(share, 1)));
  const part = (title, list) => list.length > 0
    && [h("h3", {}, title), growing(h("ol", { class: "features" }), list, row, 12, false)];
  const node = h("div", {},
    heading("New here", lede(`${headline}.`)),
    section("Most novel images", images.length
      ? [intro("Novelty: about 0 for an ordinary image, 3 or more for one that differs much."), wall] : note("None.")),
    section("Dimensions used more or less", changes.length
      ? [intro("Share of images with the dimension among their five strongest. Upper bar: fitted images. Lower bar: new images."),
        part("More", changes.filter(([, before, after]) => after > before)),
        part("Less", changes.filter(([, before, after]) => after <= before))]
      : note("No share changed by more than four standard errors.")));
  return { title: "New here", node };
}
