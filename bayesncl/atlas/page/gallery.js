// The two galleries of the paper: dimensions shared by classes, and those the gates close most.
async function viewGallery({ run, stage, args }) {
  const suppressed = args[0] === "suppressed";
  const at = suppressed ? "before" : stage;
  const s = run[at];
  const dims = [...(suppressed ? run.suppressed || [] : s.mixed)];
  const [title, words, empty] = suppressed
    ? ["Most suppressed dimensions",
      "Dimensions whose gate is closed most often where they fire, with their strongest images.",
      run.gated ? "The gates close nothing." : "This run has no gates that close."]
    : [atlas.classes ? "High-entropy dimensions" : "Most prevalent dimensions",
      atlas.classes
        ? "Dimensions that classes share, highest class entropy first. Dimensions with one class in half or more of their 50 "
          + "strongest images are left out."
        : "Dimensions that fire on the most images.",
      atlas.classes ? "One class dominates the strongest images of every dimension." : "No dimension fires on 10 or more images."];
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
