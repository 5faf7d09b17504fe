// Pieces that several views share.
function topOf(run, stage, k) {
  const s = run[stage];
  const width = s.top.length / run.dims;
  return [...s.top.subarray(k * width, k * width + s.shown[k])];
}

function bestClass(run, stage, k) {
  const s = run[stage];
  return s.best && s.support[k] ? atlas.classes[s.best[k]] : null;
}

function shortNumbers(run, stage, k) {
  const s = run[stage];
  if (!s.support[k]) return "never fires";
  return [
    `fires on ${percent(s.support[k] / atlas.count)}`,
    s.consistency && `${percent(s.consistency[k])} ${clip(bestClass(run, stage, k), 24)}`,
    run.gated && `gate closes it ${percent(run.closed_rate[k])}`,
  ].filter(Boolean).join(" · ");
}

const dimensionTitle = (run, stage, k) => `Dimension ${k}: ${shortNumbers(run, stage, k)}`;

function dimensionStrip(run, stage, k, most = 8) {
  const images = topOf(run, stage, k).slice(0, most);
  return strip(images, images.length ? `Top images of dimension ${k}` : `No image activates dimension ${k}`);
}

// A dimension as a tile: pictures first, then its name and a line of numbers.
function dimensionTile(run, stage, k, line, most = 8) {
  return h("a", { class: "tile", href: link(`dim/${k}`, { run: run.number || null }) },
    dimensionStrip(run, stage, k, most),
    h("span", { class: "tile-name" }, `Dimension ${k}`),
    h("span", { class: "tile-line" }, line ?? shortNumbers(run, stage, k)));
}

function heading(title, ...below) {
  return h("div", { class: "heading" }, h("h1", { tabindex: -1 }, title), below);
}

function section(title, ...content) {
  return h("section", {}, h("h2", {}, title), content);
}

const note = (...text) => h("p", { class: "note" }, ...text);

function gate(open) {
  return h("span", { class: open ? "gate" : "gate shut" }, open ? "open" : "closed");
}

// The numbers of a dimension that can be listed, sorted and shown; those that need labels or gates come only with them.
function columnsOf(run, stage) {
  const s = run[stage];
  const all = [
    s.consistency && { key: "consistency", name: "Consistency", of: (k) => s.consistency[k], show: (v) => percent(v),
      help: "share of the most frequent class among the images it fires on" },
    { key: "support", name: "Support", of: (k) => s.support[k], show: whole, help: "images it fires on" },
    { key: "prevalence", name: "Prevalence", of: (k) => s.support[k] / atlas.count, show: (v) => percent(v), help: "share of images it fires on" },
    s.entropy_freq && { key: "entropy_freq", name: "Entropy, firing", of: (k) => s.entropy_freq[k], show: (v) => fixed(v, 2), help: "over classes, of firing counts (nats)" },
    s.entropy_sum && { key: "entropy_sum", name: "Entropy, sum", of: (k) => s.entropy_sum[k], show: (v) => fixed(v, 2), help: "over classes, of summed activation (nats)" },
    s.entropy_mean && { key: "entropy_mean", name: "Entropy, mean", of: (k) => s.entropy_mean[k], show: (v) => fixed(v, 2), help: "over classes, of mean activation (nats)" },
    { key: "mass", name: "Mass", of: (k) => s.mass[k] / s.total, show: (v) => percent(v, 2), help: "share of all activation" },
    run.gated && { key: "closed", name: "Gate closes", of: (k) => run.closed_rate[k], show: (v) => percent(v),
      help: "of the images it fires on, the share whose gate is closed" },
    run.gated && { key: "open", name: "Gate open", of: (k) => run.open_rate[k], show: (v) => percent(v), help: "share of all images whose gate is open" },
  ];
  return all.filter(Boolean);
}

// How much of a run's features the page holds, said wherever it matters.
function coverage(run) {
  if (run.whole) return null;
  const share = run.covered[run.after ? 1 : 0];
  return note(`Of each image the page holds the ${run.keep} strongest features, on average ${percent(share, 1)} of their squared length.`);
}
