// Why are these two similar? The similarity is a sum over dimensions, z·z' = Σ z_k z'_k; each term can be looked at.
async function viewPair({ run, stage, args }) {
  if (args.length < 2) throw new Error("This address needs two images, such as #/pair/5/8.");
  const [i, j] = [imageNumber(args[0]), imageNumber(args[1])];
  const [a, b] = await Promise.all([loadImage(run, "before", i), loadImage(run, "before", j)]);
  const stages = run.after ? ["before", "after"] : ["before"];
  const shared = sharedDimensions(a, b);
  const largest = Math.max(1e-9, ...shared.map((s) => s.size));
  const sum = (stage, of) => shared.reduce((total, s) => total + of(s[stage]), 0);
  const longest = Math.max(1e-9, ...stages.map((stage) => sum(stage, (v) => Math.max(0, v))));

  const list = h("ol", { class: "features pair-list" });
  const shown = [picture(i, true), picture(j, true)];
  const where = heatButtons(() => [[shown[0], a], [shown[1], b]]);
  const more = growing(list, shared, (s) => pairRow(run, s, largest, where(run, s.dim, [a, b])), 20);
  const side = (n, m) => h("figure", {},
    h("a", { href: link(`image/${n}`), "aria-label": imageTitle(n) }, shown[m]),
    h("figcaption", {}, h("a", { href: link(`image/${n}`) }, `Image ${n}`),
      labelOf(n) && h("span", {}, labelOf(n)), backgroundOf(n) && h("span", {}, `on ${backgroundOf(n)}`)));
  const verdict = stages.map((stage) =>
    figureNumber(fixed(sum(stage, (v) => v), 3), run.after ? `cosine ${stage} gates` : "cosine"));
  const bars = run.after ? " Upper bar: its part before gates; lower bar: after." : "";

  const node = h("div", {},
    heading(`Cosine ${fixed(sum(stage, (v) => v), 2)}${run.after ? ` ${stage} gates` : ""}`),
    h("div", { class: "pair" }, side(i, 0), h("div", { class: "verdict" }, verdict), side(j, 1)),
    lede(bothSentence(run, stage, shared), verdictSentence(run, shared)),
    stages.map((stage) => stack(run, shared, stage, longest, run.after)),
    section("Shared dimensions",
      shared.length
        ? [intro(`Each with images that share it.${bars}`), list, more]
        : note("No stored dimension fires on both images."),
      remainder(run, a, b)),
    actions(
      button("Another second image", link("images", { with: String(i) })),
      button("Swap the two", link(`pair/${j}/${i}`))));
  return { title: `Images ${i} and ${j}`, node };
}

// Dimensions stored for both images, the largest part of the similarity first.
function sharedDimensions(a, b) {
  const other = new Map(b.features.map((g) => [g.dim, g]));
  const shared = [];
  for (const f of a.features) {
    const g = other.get(f.dim);
    if (!g) continue;
    const [before, after] = [f.before * g.before, f.after * g.after];
    const size = Math.max(Math.abs(before), Math.abs(after));
    if (size > 1e-9) shared.push({ dim: f.dim, f, g, before, after, size });
  }
  shared.sort((s, t) => t.size - s.size);
  shared.forEach((s, n) => { s.tone = `p${n % 4}`; });
  return shared;
}

// The dimensions that make up most of the similarity, by name, each with its part.
function bothSentence(run, stage, shared) {
  const parts = shared.filter((s) => s[stage] >= 0.005).sort((s, t) => t[stage] - s[stage]).slice(0, 4)
    .map((s) => `${nameOf(run, s.dim) || `dimension ${s.dim}`} ${fixed(s[stage], 2)}`);
  return parts.length ? `Both: ${parts.join(", ")}. ` : "";
}

function verdictSentence(run, shared) {
  if (!shared.length) return "They share no dimension.";
  const first = `They share ${plural(shared.length, "dimension")}.`;
  if (!run.gated) return first;
  const muted = shared.filter((s) => s.after === 0).length;
  return muted ? `${first} The gates take ${whole(muted)} of them out.` : `${first} The gates leave all of them in.`;
}

function pairRow(run, s, largest, where) {
  const open = s.f.open && s.g.open;
  return h("li", { class: open ? null : "shut", "data-dim": s.dim },
    dimensionName(run, "before", s.dim),
    linkedStrip(run, "before", s.dim, 6),
    twoBars(run, s.before, s.after, largest, 4),
    h("span", { class: "terms" }, `${fixed(s.f.before, 2)} × ${fixed(s.g.before, 2)}`,
      run.gated && h("span", {}, gate(s.f.open), gate(s.g.open)), where));
}

// The similarity as one bar, a segment for each dimension; both bars have one scale, and a dimension one colour.
function stack(run, shared, stage, longest, both) {
  const positive = shared.filter((s) => s[stage] > 0);
  if (!positive.length) return null;
  const spoken = positive.slice(0, 5).map((s) => `${dimensionLabel(run, s.dim)} ${fixed(s[stage], 3)}`).join(", ");
  const piece = (s) => {
    const share = s[stage] / longest;
    const title = `${dimensionLabel(run, s.dim)}: ${fixed(s[stage], 4)}`;
    return h("span", { class: `piece ${s.tone}`, "--share": share, title }, share > 0.05 ? (share > 0.15 && nameOf(run, s.dim)) || s.dim : "");
  };
  return h("div", { class: "stack-row" },
    both && h("span", { class: "stack-name" }, stage),
    h("div", { class: "stack", role: "img", "aria-label": `Largest parts${both ? `, ${stage} gates` : ""}: ${spoken}` },
      positive.slice(0, 40).map(piece)));
}

// What the stored features leave open, by Cauchy and Schwarz on the parts that are not stored.
function remainder(run, a, b) {
  const held = [a, b].map((x) => new Set(x.features.map((f) => f.dim)));
  const bound = (stage) => {
    const rest = (x) => Math.sqrt(Math.max(0, 1 - x.covered[stage]));
    const alone = (x, other) => Math.hypot(...x.features.filter((f) => !other.has(f.dim)).map((f) => f[stage]));
    return alone(a, held[1]) * rest(b) + alone(b, held[0]) * rest(a) + rest(a) * rest(b);
  };
  const worst = Math.max(bound("before"), run.after ? bound("after") : 0);
  if (worst < 5e-4) return note("Every feature of both images is counted.");
  const [p, q] = [a, b].map((x) => percent(x.covered.before, 1));
  return note(`The page holds each image's ${run.keep} strongest features: ${p} and ${q} of their squared length. `,
    `What is left out changes the similarity by at most ${fixed(worst, 3)}.`);
}
