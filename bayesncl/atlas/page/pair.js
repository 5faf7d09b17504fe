// Why are these two similar? The similarity is a sum over dimensions, z·z' = Σ z_k z'_k, and each term can be looked at.
async function viewPair({ run, args }) {
  const [i, j] = [imageNumber(args[0]), imageNumber(args[1])];
  const [a, b] = await Promise.all([loadImage(run, "before", i), loadImage(run, "before", j)]);
  const other = new Map(b.features.map((f) => [f.dim, f]));
  const shared = a.features.filter((f) => other.has(f.dim)).map((f) => {
    const g = other.get(f.dim);
    return { dim: f.dim, f, g, before: f.before * g.before, after: f.after * g.after };
  }).filter((s) => Math.abs(s.before) > 1e-9 || Math.abs(s.after) > 1e-9);
  const total = (stage) => shared.reduce((sum, s) => sum + s[stage], 0);
  const stages = run.after ? ["before", "after"] : ["before"];
  shared.sort((s, t) => Math.max(Math.abs(t.before), Math.abs(t.after)) - Math.max(Math.abs(s.before), Math.abs(s.after)));
  const largest = Math.max(1e-9, ...shared.map((s) => Math.max(Math.abs(s.before), Math.abs(s.after))));
  shared.forEach((s, n) => { s.tone = `p${n % 4}`; });
  const longest = Math.max(1e-9, ...stages.map((stage) => shared.reduce((sum, s) => sum + Math.max(0, s[stage]), 0)));
  const muted = shared.filter((s) => s.after === 0 && s.before !== 0);

  const list = h("ol", { class: "features pair-list" });
  const button = growing(list, shared, (s) => pairRow(run, s, largest), 20);
  const side = (n) => h("figure", {}, h("a", { href: link(`image/${n}`), "aria-label": imageTitle(n) }, picture(n)),
    h("figcaption", {}, h("a", { href: link(`image/${n}`) }, `Image ${n}`), labelOf(n) && h("span", {}, labelOf(n)), backgroundOf(n) && h("span", {}, `on ${backgroundOf(n)}`)));
  const node = h("div", {},
    heading("Why are these two similar?"),
    h("div", { class: "pair" }, side(i),
      h("div", { class: "verdict" }, stages.map((stage) => figureNumber(fixed(total(stage), 3), stages.length > 1 ? `similarity ${stage} gates` : "similarity"))),
      side(j)),
    h("p", { class: "lede" }, sentence(shared, run, muted)),
    stages.map((stage) => stack(shared, stage, longest, stages.length > 1)),
    section("Shared dimensions", shared.length ? [h("p", { class: "intro" }, run.after ? "Each with images that share it. Upper bar: its contribution before gates; lower bar: after." : "Each with images that share it, and its contribution."), list, button] : note("No stored dimension fires on both images."), remainder(run, a, b, other)),
    h("p", { class: "actions" },
      h("a", { class: "button", href: link("images", { with: String(i) }) }, `Another second image`),
      h("a", { class: "button", href: link(`pair/${j}/${i}`) }, "Swap the two")));
  return { title: `Images ${i} and ${j}`, node };
}

function sentence(shared, run, muted) {
  if (!shared.length) return "They share no dimension.";
  const first = `They share ${plural(shared.length, "dimension")}.`;
  if (!run.gated) return first;
  return `${first} ${muted.length ? `The gates take ${plural(muted.length, "of them", "of them")} out.` : "The gates leave all of them in."}`;
}

function pairRow(run, s, largest) {
  const bar = (stage, tone, word) => h("span", { class: "feature-bar" },
    h("span", { class: "track", "aria-hidden": "true" }, meter(Math.abs(s[stage]) / largest, tone)),
    h("span", { class: "bar-text" }, run.after && h("span", { class: "unseen" }, `${word} `), fixed(s[stage], 4)));
  return h("li", { class: run.gated && !(s.f.open && s.g.open) ? "shut" : null, "data-dim": s.dim },
    h("a", { class: "feature-name", href: link(`dim/${s.dim}`) }, h("b", {}, s.dim), h("span", {}, bestClass(run, "before", s.dim) || "")),
    dimensionStrip(run, "before", s.dim, 6),
    h("span", { class: "feature-bars" }, bar("before", "", "before"), run.after && bar("after", "open", "after")),
    h("span", { class: "terms" }, `${fixed(s.f.before, 2)} × ${fixed(s.g.before, 2)}`, run.gated && h("span", {}, gate(s.f.open), " ", gate(s.g.open))));
}

// The similarity as one bar, a segment for each dimension; both bars have one scale, and a dimension one colour.
function stack(shared, stage, longest, both) {
  const positive = shared.filter((s) => s[stage] > 0);
  if (!positive.length) return null;
  const spoken = positive.slice(0, 5).map((s) => `dimension ${s.dim} ${fixed(s[stage], 3)}`).join(", ");
  return h("div", { class: "stack-row" }, both && h("span", { class: "stack-name" }, stage),
    h("div", { class: "stack", role: "img", "aria-label": `Contributions ${both ? `${stage} gates` : ""}: ${spoken}` },
      positive.slice(0, 40).map((s) => h("span", { class: `piece ${s.tone}`, "--share": s[stage] / longest, title: `Dimension ${s.dim}: ${fixed(s[stage], 4)}` },
        s[stage] / longest > 0.05 ? s.dim : ""))));
}

// What the stored features leave open, by Cauchy and Schwarz on the parts that are not stored.
function remainder(run, a, b, other) {
  const mine = new Set(a.features.map((f) => f.dim));
  const bound = (stage) => {
    const rest = (x) => Math.sqrt(Math.max(0, 1 - x.covered[stage]));
    const alone = (features, held) => Math.sqrt(features.reduce((s, f) => s + (held.has(f.dim) ? 0 : f[stage] ** 2), 0));
    return alone(a.features, other) * rest(b) + alone(b.features, mine) * rest(a) + rest(a) * rest(b);
  };
  const worst = Math.max(bound("before"), run.after ? bound("after") : 0);
  if (worst < 5e-4) return note("Every feature of both images is counted.");
  return note(`The page holds each image's ${run.keep} strongest features: ${percent(a.covered.before, 1)} and ${percent(b.covered.before, 1)} of their squared length. What is left out changes the similarity by at most ${fixed(worst, 3)}.`);
}
