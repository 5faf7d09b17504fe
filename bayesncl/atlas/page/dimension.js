async function viewDimension({ run, stage, args }) {
  const k = Number(args[0]);
  if (!Number.isInteger(k) || k < 0 || k >= run.dims) throw new Error(`There is no dimension ${args[0]}; they go from 0 to ${run.dims - 1}.`);
  const s = run[stage];
  const [more, classes, grounds] = await Promise.all([
    loadDimension(run, stage, k), loadCounts(run, stage, "classes", k), loadCounts(run, stage, "backgrounds", k)]);
  const best = bestClass(run, stage, k);
  const lede = s.support[k]
    ? `Fires on ${plural(s.support[k], "image")} of ${whole(atlas.count)} (${percent(s.support[k] / atlas.count)})` +
      (best ? `; ${percent(s.consistency[k])} of them are ${clip(best)}.` : ".")
    : "Never fires on these images: a dead dimension.";

  const grid = h("div", { class: "wall" });
  const button = growing(grid, more.top, (t) => thumb(t.image, { caption: fixed(t.value, 2), closed: run.gated && !t.open }), 48, !narrow());
  const facts = h("dl", { class: "facts" }, columnsOf(run, stage).map((c) =>
    h("div", { title: c.help }, h("dt", {}, c.name), h("dd", {}, c.show(c.of(k))))));
  const firing = more.histogram.reduce((a, b) => a + b, 0);

  const alive = s.support[k] > 0;
  const near = more.near.filter((n) => n.cosine > 0.001).slice(0, 6);
  const node = h("div", {},
    h("div", { class: "with-steps" }, heading(`Dimension ${k}`, h("p", { class: "lede" }, lede)), steps(k, run.dims, "dim")),
    h("div", { class: "split" },
      section("Images that activate it most", more.top.length
        ? [grid, button, note(
          more.top.length < s.support[k] ? `The ${whole(more.top.length)} strongest of ${whole(s.support[k])}. ` : "",
          "Below each image, its activation.", run.gated ? " A struck circle marks images whose gate is closed." : "")]
        : note(alive ? "Its activations are all negative." : "None.")),
      h("aside", {},
        alive && classes && section("Classes it fires on", shares(classes, atlas.classes, (c) => link(`class/${c}`))),
        alive && grounds && section("Backgrounds it fires on", shares(grounds, atlas.backgrounds, () => null)),
        run.gated && section("Its gate", await gateBars(run, k)),
        alive && section("How strongly it fires", histogram(more.histogram, more.low, more.high, `Distribution of ${plural(firing, "activation")} between ${fixed(more.low, 2)} and ${fixed(more.high, 2)}`)),
        section("In numbers", facts),
        near.length > 0 && section("Dimensions most like it",
          h("div", { class: "tiles" }, near.map((n) => dimensionTile(run, stage, n.dim, `cosine ${fixed(n.cosine, 2)}`))),
          note("Cosine of the two dimensions' activations over all images.")))),
    galleryLinks(run));
  return { title: `Dimension ${k}`, node, previous: k > 0 && link(`dim/${k - 1}`), next: k < run.dims - 1 && link(`dim/${k + 1}`) };
}

function steps(i, count, path) {
  return h("p", { class: "steps" },
    i > 0 && h("a", { href: link(`${path}/${i - 1}`), rel: "prev" }, "← Previous"),
    i < count - 1 && h("a", { href: link(`${path}/${i + 1}`), rel: "next" }, "Next →"));
}

function shares(counts, names, href, most = 10) {
  const total = counts.reduce((a, b) => a + b, 0) || 1;
  const order = [...counts.keys()].filter((c) => counts[c] > 0).sort((a, b) => counts[b] - counts[a]);
  const rows = (list) => bars(list.map((c) => ({
    label: names[c], href: href(c), value: counts[c] / total, text: percent(counts[c] / total), title: plural(counts[c], "image"),
  })), "Share of firing images");
  return [rows(order.slice(0, most)),
    order.length > most && h("details", {}, h("summary", {}, `${order.length - most} more`), rows(order.slice(most)))];
}

async function gateBars(run, k) {
  const rate = run.open_rate[k];
  const overall = bars([
    { label: "All images", value: rate, text: percent(rate), tone: "open" },
    { label: "Where it fires", value: 1 - run.closed_rate[k], text: percent(1 - run.closed_rate[k]), tone: "open" },
  ], "Gate open");
  if (!atlas.classes) return [note("Share of images whose gate is open."), overall];
  const open = (await load(`${run.key}-classes`)).open;
  const width = atlas.classes.length;
  const order = [...atlas.classes.keys()].filter((c) => atlas.sizes[c]).map((c) => ({ c, rate: open[k * width + c] / atlas.sizes[c] })).sort((a, b) => b.rate - a.rate);
  const row = ({ c, rate: r }) => ({ label: atlas.classes[c], href: link(`class/${c}`), value: r, text: percent(r), tone: "open" });
  const ends = order.length > 8 ? [...order.slice(0, 3), ...order.slice(-3)] : order;
  return [note("Share of images whose gate is open."), overall,
    h("h3", {}, order.length > 8 ? "Most and least open classes" : "By class"), bars(ends.map(row), "Gate open by class"),
    order.length > 8 && h("details", {}, h("summary", {}, `All ${order.length} classes`), bars(order.map(row), "Gate open by class"))];
}
