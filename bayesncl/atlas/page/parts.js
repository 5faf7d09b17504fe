// Pieces that several views share.
function topOf(run, stage, k) {
  const s = run[stage];
  const width = s.top.length / run.dims;
  return [...s.top.subarray(k * width, k * width + s.shown[k])];
}

// What stands out among its strongest images beyond chance: the class or background, its share, and how many times chance.
function outstanding(run, stage, k) {
  const s = run[stage];
  const kind = s.kind[k];
  if (!kind || !s.support[k]) return null;
  const [names, sizes] = kind === 1 ? [atlas.classes, atlas.sizes] : [atlas.backgrounds, atlas.grounds];
  const word = names[s.word[k]];
  const chance = sizes[s.word[k]] / sizes.reduce((a, b) => a + b, 0);
  const times = s.share[k] / chance;
  return { word, kind, share: s.share[k], times: `${times < 10 ? times.toFixed(1) : whole(times)} times chance` };
}

function shortWords(run, stage, k) {
  const o = outstanding(run, stage, k);
  return o && `${percent(o.share)} ${o.kind === 2 ? "on " : ""}${clip(o.word, 28)}, ${o.times}`;
}

function shortNumbers(run, stage, k) {
  const s = run[stage];
  if (!s.support[k]) return "never fires";
  return [
    `fires on ${percent(s.support[k] / atlas.count)} of images`,
    shortWords(run, stage, k),
    run.gated && `gate closes it ${percent(run.closed_rate[k])}`,
  ].filter(Boolean).join(" · ");
}

function dimensionTitle(run, stage, k) {
  const name = nameOf(run, k);
  return `Dimension ${k}${name ? `, ${name}` : ""}: ${shortNumbers(run, stage, k)}`;
}
const dimensionLink = (run, k) => link(`dim/${k}`, { run: run.number || null });

function dimensionStrip(run, stage, k, most = 8) {
  return strip(topOf(run, stage, k).slice(0, most), `Top images of dimension ${k}`);
}

// For the pointer the pictures lead to the dimension; keyboards and readers have the name beside them.
function linkedStrip(run, stage, k, most) {
  return h("a", { href: dimensionLink(run, k), tabindex: -1, "aria-hidden": "true" }, dimensionStrip(run, stage, k, most));
}

// A dimension as a tile: pictures first, then its name and a line of numbers.
function dimensionTile(run, stage, k, line) {
  return h("a", { class: "tile", href: dimensionLink(run, k) },
    dimensionStrip(run, stage, k),
    h("span", { class: "tile-name" }, dimensionLabel(run, k)),
    h("span", { class: "tile-line" }, nameOf(run, k) && `Dimension ${k} · `,
      line ?? shortWords(run, stage, k) ?? shortNumbers(run, stage, k)));
}

// A dimension as the head of a row: its name, or its number and what stands out among its images.
function dimensionName(run, stage, k) {
  const name = nameOf(run, k);
  const word = (outstanding(run, stage, k) || outstanding(run, "before", k))?.word;
  return h("a", { class: "feature-name", href: dimensionLink(run, k) },
    h("b", {}, name || k), h("span", {}, name ? `dimension ${k}` : word || ""));
}

// A number before gates and, where there are gates, after, as one bar above the other.
function twoBars(run, before, after, largest, digits) {
  const bar = (word, value, tone) => h("span", { class: "feature-bar" },
    h("span", { class: "track", "aria-hidden": "true" }, meter(Math.abs(value) / largest, tone)),
    h("span", { class: "bar-text" }, run.after && h("span", { class: "unseen" }, `${word} `), fixed(value, digits)));
  return h("span", { class: "feature-bars" }, bar("before", before, ""), run.after && bar("after", after, "open"));
}

function gate(open) {
  return h("span", { class: open ? "gate" : "gate shut" }, open ? "open" : "closed");
}

function heading(title, ...below) {
  return h("div", { class: "heading" }, h("h1", { tabindex: -1 }, title), below);
}

const section = (title, ...content) => h("section", {}, h("h2", {}, title), content);
const lede = (...text) => h("p", { class: "lede" }, ...text);
const intro = (...text) => h("p", { class: "intro" }, ...text);
const note = (...text) => h("p", { class: "note" }, ...text);
const button = (text, href, on) => h("a", { class: "button", href, "aria-current": on ? "true" : null }, text);
const actions = (...buttons) => h("p", { class: "actions" }, ...buttons);

// rows: [name, value, help]; a row that is false is left out.
function facts(rows, kind = "facts") {
  return h("dl", { class: kind }, rows.filter(Boolean).map(([name, value, help]) =>
    h("div", { title: help }, h("dt", {}, name), h("dd", {}, value))));
}

function steps(i, count, path) {
  return h("p", { class: "steps" },
    i > 0 && h("a", { href: link(`${path}/${i - 1}`), rel: "prev" }, "← Previous"),
    i < count - 1 && h("a", { href: link(`${path}/${i + 1}`), rel: "next" }, "Next →"));
}

// Where the keys p and n lead.
function neighbours(i, count, path) {
  return { previous: i > 0 && link(`${path}/${i - 1}`), next: i < count - 1 && link(`${path}/${i + 1}`) };
}

// The numbers of a dimension that can be listed, sorted and shown; those that need labels or gates come only with them.
function columnsOf(run, stage) {
  const s = run[stage];
  const column = (key, name, help, of, show) => ({ key, name, help, of, show });
  const share = (v) => percent(v);
  const nats = (v) => fixed(v, 2);
  return [
    column("telling", "Telling", "how alike its strongest images are, how few it fires on, how strongly; needs no labels",
      (k) => s.telling[k], nats),
    s.consistency && column("consistency", "Consistency",
      "share of the most frequent class among the images it fires on", (k) => s.consistency[k], share),
    column("support", "Support", "images it fires on", (k) => s.support[k], whole),
    column("prevalence", "Prevalence", "share of images it fires on", (k) => s.support[k] / atlas.count, share),
    s.entropy_freq && column("entropy_freq", "Entropy, firing",
      "over classes, of firing counts (nats)", (k) => s.entropy_freq[k], nats),
    s.entropy_sum && column("entropy_sum", "Entropy, sum",
      "over classes, of summed activation (nats)", (k) => s.entropy_sum[k], nats),
    s.entropy_mean && column("entropy_mean", "Entropy, mean",
      "over classes, of mean activation (nats)", (k) => s.entropy_mean[k], nats),
    column("mass", "Mass", "share of all activation", (k) => s.mass[k] / s.total, (v) => percent(v, 2)),
    run.gated && column("closed", "Gate closes",
      "of the images it fires on, the share whose gate is closed", (k) => run.closed_rate[k], share),
    run.gated && column("open", "Gate open", "share of all images whose gate is open", (k) => run.open_rate[k], share),
  ].filter(Boolean);
}

// How much of a run's features the page holds, said wherever it matters.
function coverage(run) {
  if (run.whole) return null;
  const share = percent(run.covered[run.after ? 1 : 0], 1);
  return note(`Of each image the page holds the ${run.keep} strongest features, `,
    `on average ${share} of their squared length.`);
}
