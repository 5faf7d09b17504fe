// The paper's two galleries: dimensions shared by many classes, and those the gates close most.
async function viewGallery({ run, stage, args }) {
  const suppressed = args[0] === "suppressed";
  const at = suppressed ? "before" : stage;
  const dims = run.stages[at].gallery[suppressed ? "suppressed" : "entropy"] || [];
  const title = suppressed ? "Most suppressed dimensions" : atlas.classes ? "High-entropy dimensions" : "Most prevalent dimensions";
  const lede = suppressed
    ? "What the gates take out: dimensions most often closed where they fire, with the images that activate them most."
    : atlas.classes ? "Shared by many classes: often a background, a colour or a texture rather than an object." : "Shared by most images.";
  const s = run[at];
  const node = h("div", {},
    heading(title, h("p", { class: "lede" }, lede)),
    run.gated && h("p", { class: "actions" },
      h("a", { class: "button", href: link("gallery/entropy"), "aria-current": suppressed ? null : "true" }, atlas.classes ? "High entropy" : "Most prevalent"),
      h("a", { class: "button", href: link("gallery/suppressed"), "aria-current": suppressed ? "true" : null }, "Most suppressed")),
    dims.length ? h("div", { class: "rows" }, dims.map((k) => h("article", { class: "row", "data-dim": k },
      h("h2", {}, h("a", { href: link(`dim/${k}`) }, `Dimension ${k}`)),
      h("p", { class: "note" }, [shortNumbers(run, at, k), s.entropy_freq && `entropy ${fixed(s.entropy_freq[k], 2)}`].filter(Boolean).join(" · ")),
      h("div", { class: "wall one" }, topOf(run, at, k).map((i) => thumb(i))))))
      : note(!suppressed ? "No dimension fires on ten images or more." : run.gated ? "The gates close nothing." : "This run has no gates."));
  return { title, node };
}
