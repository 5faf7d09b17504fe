// Parts shared by several views.
function topOf(run, stage, k) {
  const { top, shown } = run[stage];
  return [...rowOf(top, k, run.dims).subarray(0, shown[k])];
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

// A growing list of rows; a row has a button that shows its twins below it.
function growingTwins(run, list, items, draw, step, { auto = true, dimOf } = {}) {
  const group = ({ first, rest }) => withTwins(draw(first), rest, draw);
  return growing(list, foldTwins(run, items, dimOf), group, step, auto);
}

// A row with a button in its first cell that shows the `rows` of its twins below it.
function withTwins(row, rest, draw, rows = rest, place = row.tagName === "DIV" ? row : row.firstChild) {
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

// A row of a list: a dimension, its strongest images, and what else is known.
function dimensionRow(run, stage, k, open, ...rest) {
  return h("li", { class: open ? null : "shut", "data-dim": k },
    h("div", {}, dimensionName(run, stage, k)), linkedStrip(run, "before", k, 6), rest);
}

// One or two bars, for [word, value] each; the word is spoken.
function twoBars(pairs, largest, show) {
  const bar = ([word, value], n) => h("span", { class: "feature-bar" },
    h("span", { class: "track", "aria-hidden": "true" }, meter(Math.abs(value) / largest, n ? "open" : "")),
    h("span", { class: "bar-text" }, pairs.length > 1 && h("span", { class: "unseen" }, `${word} `), show(value)));
  return h("span", { class: "feature-bars" }, pairs.map(bar));
}

// The same numbers before and, with gates, after the gates.
const gateBars = (run, { before, after }, largest, digits) => twoBars(
  run.after ? [["before", before], ["after", after]] : [["", before]], largest, (value) => fixed(value, digits));

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

// The items of a class before and after i: targets of the keys p and n, and links to them.
function neighbors(i, count, path) {
  const previous = i > 0 && link(`${path}/${i - 1}`);
  const next = i < count - 1 && link(`${path}/${i + 1}`);
  const steps = h("p", { class: "steps" }, previous && h("a", { href: previous, rel: "prev" }, "← Previous"),
    next && h("a", { href: next, rel: "next" }, "Next →"));
  return { previous, next, steps };
}

// Statistics of a dimension; some need labels or gates.
function columnsOf(run, stage) {
  const s = run[stage];
  const share = (v) => percent(v);
  const nats = (v) => fixed(v, 2);
  const entropy = (key, name, what) => s[key] && [key, name, `entropy over classes of the ${what} (nats)`, (k) => s[key][k], nats];
  return [
    ["clarity", "Clarity", "similarity of its strongest images × concentration on few images × strength; without labels",
      (k) => s.clarity[k], nats],
    s.consistency && ["consistency", "Consistency", "share of the most frequent class among the images it fires on",
      (k) => s.consistency[k], share],
    ["support", "Support", "images it fires on", (k) => s.support[k], whole],
    ["prevalence", "Prevalence", "share of images it fires on", (k) => s.support[k] / atlas.count, share],
    entropy("entropy_freq", "Entropy, firing", "images it fires on"),
    entropy("entropy_sum", "Entropy, sum", "summed activation"),
    entropy("entropy_mean", "Entropy, mean", "mean activation"),
    ["mass", "Mass", "share of all activation", (k) => s.mass[k] / s.total, (v) => percent(v, 2)],
    run.gated && ["closed", "Gate closed", "share of the images it fires on where the gate is closed", (k) => run.closed_rate[k], share],
    run.gated && ["open", "Gate open", "share of all images where the gate is open", (k) => run.open_rate[k], share],
  ].filter(Boolean).map(([key, name, help, of, show]) => ({ key, name, help, of, show }));
}

// Which share of the features the page stores; nothing if it is all of them.
function coverage(run) {
  if (run.whole) return null;
  const share = percent(run.covered[run.after ? 1 : 0], 1);
  return note(`The page stores the ${run.keep} strongest features of each image, `,
    `on average ${share} of the squared length.`);
}
