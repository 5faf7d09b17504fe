// The paper's two galleries: dimensions shared by many classes, and those the gates close most.
async function viewGallery({ run, stage, args }) {
  const suppressed = args[0] === "suppressed";
  const at = suppressed ? "before" : stage;
  const s = run[at];
  const dims = run.stages[at].gallery[suppressed ? "suppressed" : "entropy"] || [];
  const [title, words, empty] = suppressed
    ? ["Most suppressed dimensions",
      "What the gates take out: dimensions most often closed where they fire, with the images that activate them most.",
      run.gated ? "The gates close nothing." : "This run has no gates that close."]
    : [atlas.classes ? "High-entropy dimensions" : "Most prevalent dimensions",
      atlas.classes
        ? "Shared by many classes: often a background, a colour or a texture rather than an object."
        : "Shared by most images.",
      "No dimension fires on ten images or more."];
  const row = (k) => h("article", { class: "row", "data-dim": k },
    h("h2", {}, h("a", { href: link(`dim/${k}`) }, dimensionLabel(run, k))),
    note(shortNumbers(run, at, k), s.entropy_sum ? ` · entropy ${fixed(s.entropy_sum[k], 2)}` : ""),
    h("div", { class: "wall one" }, topOf(run, at, k).map((i) => thumb(i))));
  const node = h("div", {},
    heading(title, lede(words)),
    run.gated && actions(
      button(atlas.classes ? "High entropy" : "Most prevalent", link("gallery/entropy"), !suppressed),
      button("Most suppressed", link("gallery/suppressed"), suppressed)),
    dims.length ? h("div", { class: "rows" }, dims.map(row)) : note(empty));
  return { title, node };
}
