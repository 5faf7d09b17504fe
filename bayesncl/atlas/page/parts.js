// Parts shared by several views.
function topOf(run, stage, k) {
  const s = run[stage];
  const width = s.top.length / run.dims;
  return [...s.top.subarray(k * width, k * width + s.shown[k])];
}

// The class or background that stands out among the strongest images, its share, and its lift over chance.
function prominent(run, stage, k) {
  const s = run[stage];
  const kind = s.kind[k];
  if (!kind || !s.support[k]) return null;
  const [names, sizes] = kind === 1 ? [atlas.classes, atlas.sizes] : [atlas.backgrounds, atlas.grounds];
  const word = names[s.word[k]];
  const chance = sizes[s.word[k]] / sizes.reduce((a, b) => a + b, 0);
  const lift = s.share[k] / chance;
  return { word, kind, share: s.share[k], lift: `${lift < 10 ? lift.toFixed(1) : whole(lift)}× chance` };
}

function shortWords(run, stage, k) {
  const o = prominent(run, stage, k);
  return o && `${percent(o.share)} ${o.kind === 2 ? "on " : ""}${clip(o.word, 28)}, ${o.lift}`;
}

function shortNumbers(run, stage, k) {
  const s = run[stage];
  if (!s.support[k]) return "dead";
  return [
    `fires on ${percent(s.support[k] / atlas.count)} of images`,
    shortWords(run, stage, k),
    run.gated && `gate closed ${percent(run.closed_rate[k])}`,
  ].filter(Boolean).join(" · ");
}

function dimensionTitle(run, stage, k) {
  const name = nameOf(run, k);
  return `Dimension ${k}${name ? `, ${name}` : ""}: ${shortNumbers(run, stage, k)}`;
}
const dimensionLink = (run, k) => link(`dim/${k}`, { run: run.number || null });

function dimensionStrip(run, stage, k, most = 8) {
  return strip(topOf(run, stage, k).slice(0, most), `Strongest images of dimension ${k}`);
}

// A link for the pointer; keyboards and screen readers use the name beside it.
function linkedStrip(run, stage, k, most) {
  return h("a", { href: dimensionLink(run, k), tabindex: -1, "aria-hidden": "true" }, dimensionStrip(run, stage, k, most));
}

// A dimension as a tile: images, name, and a line of numbers.
function dimensionTile(run, stage, k, line) {
  return h("a", { class: "tile", href: dimensionLink(run, k) },
    dimensionStrip(run, stage, k),
    h("span", { class: suggestionOf(run, k) ? "tile-name suggested" : "tile-name" }, dimensionLabel(run, k)),
    h("span", { class: "tile-line" }, nameOf(run, k) && `Dimension ${k} · `, suggestionOf(run, k) && `${suggestionOf(run, k)} · `,
      line ?? shortWords(run, stage, k) ?? shortNumbers(run, stage, k)));
}

// A dimension as the head of a row: its name, or its number and prominent class.
function dimensionName(run, stage, k) {
  const name = nameOf(run, k);
  const word = (prominent(run, stage, k) || prominent(run, "before", k))?.word;
  return h("a", { class: "feature-name", href: dimensionLink(run, k) },
    h("b", { class: suggestionOf(run, k) && "suggested" }, name || k), h("span", {}, name ? `dimension ${k}` : word || ""));
}

// Items whose dimensions are twins (cosine above 0.9) as one entry: the first item, and the rest.
function foldTwins(run, items, dimOf = (item) => item) {
  const groups = new Map();
  for (const item of items) {
    const twin = run.before.twin[dimOf(item)];
    if (groups.has(twin)) groups.get(twin).rest.push(item);
    else groups.set(twin, { first: item, rest: [] });
  }
  return [...groups.values()];
}

// A row with a button at `place` that shows the `rows` of its twins below it.
function withTwins(row, place, rest, draw, rows = rest) {
  if (!rest.length) return row;
  let shown = [];
  const button = h("button", { type: "button", class: "quiet twins", "aria-expanded": "false",
    title: "dimensions with a cosine above 0.9", onclick: () => {
      const open = !shown.length;
      if (open) row.after(...(shown = rows.map(draw)));
      else shown.splice(0).forEach((each) => each.remove());
      shown.forEach((each) => each.classList.add("twin"));
      button.setAttribute("aria-expanded", String(open));
    } }, `+ ${plural(rest.length, "twin")}`);
  place.append(button);
  return row;
}

// A number before and, with gates, after the gates, as two bars.
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

// rows: [name, value, help]; falsy rows are left out.
function facts(rows, kind = "facts") {
  return h("dl", { class: kind }, rows.filter(Boolean).map(([name, value, help]) =>
    h("div", { title: help }, h("dt", {}, name), h("dd", {}, value))));
}

function steps(i, count, path) {
  return h("p", { class: "steps" },
    i > 0 && h("a", { href: link(`${path}/${i - 1}`), rel: "prev" }, "← Previous"),
    i < count - 1 && h("a", { href: link(`${path}/${i + 1}`), rel: "next" }, "Next →"));
}

// Targets of the keys p and n.
function neighbors(i, count, path) {
  return { previous: i > 0 && link(`${path}/${i - 1}`), next: i < count - 1 && link(`${path}/${i + 1}`) };
}

// Statistics of a dimension; some need labels or gates.
function columnsOf(run, stage) {
  const s = run[stage];
  const column = (key, name, help, of, show) => ({ key, name, help, of, show });
  const share = (v) => percent(v);
  const nats = (v) => fixed(v, 2);
  return [
    column("clarity", "Clarity", "similarity of its strongest images × concentration on few images × strength; without labels",
      (k) => s.clarity[k], nats),
    s.consistency && column("consistency", "Consistency",
      "share of the most frequent class among the images it fires on", (k) => s.consistency[k], share),
    column("support", "Support", "images it fires on", (k) => s.support[k], whole),
    column("prevalence", "Prevalence", "share of images it fires on", (k) => s.support[k] / atlas.count, share),
    s.entropy_freq && column("entropy_freq", "Entropy, firing",
      "entropy over classes of the images it fires on (nats)", (k) => s.entropy_freq[k], nats),
    s.entropy_sum && column("entropy_sum", "Entropy, sum",
      "entropy over classes of the summed activation (nats)", (k) => s.entropy_sum[k], nats),
    s.entropy_mean && column("entropy_mean", "Entropy, mean",
      "entropy over classes of the mean activation (nats)", (k) => s.entropy_mean[k], nats),
    column("mass", "Mass", "share of all activation", (k) => s.mass[k] / s.total, (v) => percent(v, 2)),
    run.gated && column("closed", "Gate closed",
      "share of the images it fires on where the gate is closed", (k) => run.closed_rate[k], share),
    run.gated && column("open", "Gate open", "share of all images where the gate is open", (k) => run.open_rate[k], share),
  ].filter(Boolean);
}

// Which share of the features the page stores; nothing if it is all of them.
function coverage(run) {
  if (run.whole) return null;
  const share = percent(run.covered[run.after ? 1 : 0], 1);
  return note(`The page stores the ${run.keep} strongest features of each image, `,
    `on average ${share} of the squared length.`);
}
