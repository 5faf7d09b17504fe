// The similarity of two images as a sum over dimensions, z·z' = Σ z_k z'_k.
async function viewPair({ run, stage, args }) {
  if (args.length < 2) throw new Error("The address needs two images, such as #/pair/5/8.");
  const [i, j] = [imageNumber(args[0]), imageNumber(args[1])];
  const [a, b] = await Promise.all([loadImage(run, "before", i), loadImage(run, "before", j)]);
  const stages = stagesOf(run);
  const shared = sharedDimensions(a, b);
  const groups = foldShared(run, shared);
  const largest = Math.max(1e-9, ...groups.map((s) => s.size));
  const sum = (stage, of) => shared.reduce((total, s) => total + of(s[stage]), 0);
  const longest = Math.max(1e-9, ...stages.map((stage) => sum(stage, (v) => Math.max(0, v))));

  const shown = [picture(i, true), picture(j, true)];
  const where = heatButtons(() => [[shown[0], a], [shown[1], b]]);
  const row = (s) => pairRow(run, s, largest, where(run, s.dim, [a, b]));
  const list = growing(h("ol", { class: "features pair-list" }), groups,
    (s) => withTwins(row(s), s.twins.slice(1), row, s.twins), 20);
  const side = (n, m) => h("figure", {},
    h("a", { href: link(`image/${n}`), "aria-label": imageTitle(n) }, shown[m]),
    h("figcaption", {}, h("a", { href: link(`image/${n}`) }, `Image ${n}`),
      labelOf(n) && h("span", {}, labelOf(n)), backgroundOf(n) && h("span", {}, `on ${backgroundOf(n)}`)));
  const verdict = stages.map((stage) =>
    figureNumber(fixed(sum(stage, (v) => v), 3), run.after ? `cosine ${stage} gates` : "cosine"));
  const bars = run.after ? " Upper bar: contribution before gates. Lower bar: after gates." : "";

  const node = h("div", {},
    heading(`Cosine ${fixed(sum(stage, (v) => v), 2)}${run.after ? ` ${stage} gates` : ""}`),
    h("div", { class: "pair" }, side(i, 0), h("div", { class: "verdict" }, verdict), side(j, 1)),
    lede(pairSentence(run, stage, shared, groups)),
    stages.map((stage) => stack(run, groups, stage, longest, run.after)),
    shared.length > 0 && section("Shared dimensions", intro(`Each with its strongest images.${bars}`), list),
    remainder(run, a, b),
    actions(
      button("Pick another image", link("images", { with: String(i) })),
      button("Swap the images", link(`pair/${j}/${i}`))));
  return { title: `Images ${i} and ${j}`, node };
}

// Dimensions stored for both images, largest contribution first.
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
  return shared.sort((s, t) => t.size - s.size);
}

// Twins as one, with the sum of their contributions.
function foldShared(run, shared) {
  const sum = (list, key) => list.reduce((total, s) => total + s[key], 0);
  const groups = foldTwins(run, shared, (s) => s.dim).map(({ first, rest }) => {
    const twins = [first, ...rest];
    return { ...first, twins, before: sum(twins, "before"), after: sum(twins, "after"), size: sum(twins, "size") };
  }).sort((s, t) => t.size - s.size);
  groups.forEach((s, n) => { s.tone = `p${n % 4}`; });
  return groups;
}

function pairSentence(run, stage, shared, groups) {
  if (!shared.length) return "No dimension is active on both.";
  const largest = groups.filter((s) => s[stage] >= 0.005).sort((s, t) => t[stage] - s[stage]).slice(0, 4)
    .map((s) => `${nameOf(run, s.dim) || `dimension ${s.dim}`} (${fixed(s[stage], 2)})`).join(", ");
  const folded = groups.length < shared.length ? `, ${whole(groups.length)} with twins folded` : "";
  const closed = shared.filter((s) => s.after === 0).length;
  return [largest && `Largest contributions: ${largest}.`, `They share ${plural(shared.length, "dimension")}${folded}.`,
    run.gated && `The gates close ${closed ? whole(closed) : "none"} of them.`].filter(Boolean).join(" ");
}

function pairRow(run, s, largest, where) {
  return dimensionRow(run, "before", s.dim, s.f.open && s.g.open, gateBars(run, s, largest, 4),
    h("span", { class: "terms" }, s.twins?.length > 1 ? `sum of ${s.twins.length}` : `${fixed(s.f.before, 2)} × ${fixed(s.g.before, 2)}`,
      run.gated && h("span", {}, gate(s.f.open), gate(s.g.open)), where));
}

// The similarity as a bar with a segment per dimension; both stages share scale and colors.
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
    h("div", { class: "stack", role: "img", "aria-label": `Largest contributions${both ? `, ${stage} gates` : ""}: ${spoken}` },
      positive.slice(0, 40).map(piece)));
}

// A bound on the contribution of features that are not stored, by Cauchy-Schwarz.
function remainder(run, a, b) {
  const held = [a, b].map((x) => new Set(x.features.map((f) => f.dim)));
  const bound = (stage) => {
    const rest = (x) => Math.sqrt(Math.max(0, 1 - x.covered[stage]));
    const alone = (x, other) => Math.hypot(...x.features.filter((f) => !other.has(f.dim)).map((f) => f[stage]));
    return alone(a, held[1]) * rest(b) + alone(b, held[0]) * rest(a) + rest(a) * rest(b);
  };
  const worst = Math.max(bound("before"), run.after ? bound("after") : 0);
  if (worst < 5e-4) return note("All active dimensions of both images are included.");
  const [p, q] = [a, b].map((x) => percent(x.covered.before, 1));
  return note(`The page stores the ${run.keep} strongest dimensions of each image: ${p} and ${q} of the squared length. `,
    `The others change the similarity by at most ${fixed(worst, 3)}.`);
}
