async function viewImage({ run, stage, args }) {
  const i = imageNumber(args[0]);
  const [image, name, root] = await Promise.all([loadImage(run, stage, i), imageName(i), photoRoot()]);
  const { features, near } = image;
  const size = (f) => Math.max(Math.abs(f.before), Math.abs(f.after));
  const largest = Math.max(1e-6, ...features.map(size));
  features.sort((a, b) => Math.abs(b[stage]) - Math.abs(a[stage]) || size(b) - size(a));
  const portrait = picture(i, true);
  const where = heatButtons(() => [[portrait, image]]);
  const row = (f) => featureRow(run, stage, f, largest, where(run, f.dim, [image]));
  const groups = run.groups ? [...new Set(run.groups)].sort() : [0]; // codes may come in groups, each with its own list
  const lists = groups.map((g) => [groups.length > 1 && h("h3", {}, `Group ${g + 1}`),
    growingTwins(run, h("ol", { class: "features" }), features.filter((f) => !run.groups || run.groups[f.dim] === g), row, 16,
      { dimOf: (f) => f.dim })]);
  const active = whole(features.filter((f) => f.before).length);
  const y = atlas.labels && atlas.labels[i];

  const about = facts([
    y && ["Class", h("a", { href: link(`class/${y - 1}`) }, labelOf(i))],
    backgroundOf(i) && ["Background", backgroundOf(i)],
    name && (root ? ["File", fileLink(root, name)] : ["Name", name]),
    ["Active dimensions", run.whole ? active : `${active} stored`],
    run.gated && ["Closed by gates", whole(features.filter((f) => !f.open).length)],
  ], "facts few");
  const bars = run.after ? " Upper bar: before gates. Lower bar: after gates." : "";
  const neighbor = (n) => h("div", { class: "pairing" },
    thumb(n.image, { caption: [clip(labelOf(n.image) || "", 16), fixed(n.similarity, 2)].filter(Boolean).join(" · ") }),
    h("a", { class: "why", href: link(`pair/${i}/${n.image}`), "aria-label": `Why similar to image ${n.image}?` }, "why?"));

  const wall = h("div", { class: "wall large" }, near.map(neighbor));
  const further = h("button", { type: "button", class: "more", onclick: async () => {
    const known = new Set(near.map((n) => n.image));
    const found = (await findImages(run, stage, { image: i })).filter((f) => !known.has(f.image)).slice(0, FOUND - near.length);
    further.replaceWith(growing(wall, found, (f) => neighbor({ image: f.image, similarity: f.score }), 24, false)[1]);
  } }, "Show more");

  const { steps, ...keys } = neighbors(i, atlas.count, "image");
  const node = h("div", {},
    h("div", { class: "portrait" },
      framed(run, portrait),
      h("div", {},
        h("div", { class: "with-steps" }, heading(`Image ${i}`), steps),
        about,
        actions(
          button("Find images like this", link("find", { image: String(i) })),
          button("Compare with another image", link("images", { with: String(i) }))))),
    section("Strongest dimensions",
      features.length
        ? [intro(`Each with its strongest images.${bars}`), lists]
        : note("No dimension fires on this image."),
      heatNote(run), coverage(run)),
    section(run.after ? `Nearest images, ${stage} gates` : "Nearest images",
      wall, atlas.count > near.length + 1 && further));
  return { title: `Image ${i}`, node, ...keys };
}

// The folder of the photos, unless the page was made to be shared.
const photoRoot = async () => (atlas.rooted && !single ? (await load("root")).root : null);

// The path of a photo; a link from a page on disk.
function fileLink(root, name) {
  const path = `${root}/${name}`.replaceAll("\\", "/");
  if (location.protocol !== "file:") return path;
  return h("a", { href: `file://${path.startsWith("/") ? "" : "/"}${encodeURI(path).replace(/[?#]/g, encodeURIComponent)}` }, path);
}

// A whole photo, with a frame around the central square if the encoder saw no more.
function framed(run, canvas) {
  const { width, height } = canvas;
  const side = (run.seen || 0) * Math.min(width, height);
  if (!canvas.layout.sizes || !side || side > 0.99 * Math.max(width, height)) return canvas;
  return h("figure", { class: "framed" },
    h("div", {}, canvas, h("span", { class: "frame", "--x": side / width, "--y": side / height })),
    h("figcaption", {}, "The encoder saw the framed part only."));
}

function imageNumber(text) {
  const i = Number(text);
  if (!text) throw new Error("The address has no image number.");
  if (!Number.isInteger(i) || i < 0 || i >= atlas.count) {
    throw new Error(`There is no image ${clip(text)}; the last one is ${atlas.count - 1}.`);
  }
  return i;
}

function featureRow(run, stage, f, largest, where = null) {
  return dimensionRow(run, stage, f.dim, f.open, gateBars(run, f, largest, 3),
    (run.gated || where) && h("span", { class: "last" }, run.gated && gate(f.open), where));
}

const picking = () => (route.name === "images" ? ["with", "pick", "find"].find((key) => route.params.has(key)) : null);

// All images, or those of a class; a click picks the second image of a pair (?with=I), the first (?pick) or one to
// search for (?find).
async function viewImages({ params }) {
  const first = params.has("with") ? imageNumber(params.get("with")) : null;
  const [title, words, address] = {
    with: [`Image ${first} and …`, "Pick the second image to see which dimensions they share.", (i) => link(`pair/${first}/${i}`)],
    pick: ["Why are two images similar?", "Pick the first image.", (i) => link("images", { with: String(i) })],
    find: ["Find images", "Pick an image to find more like it.", (i) => link("find", { image: String(i) })],
  }[picking()] || ["Images", "", (i) => link(`image/${i}`)];
  const wanted = params.has("class") && atlas.classes ? Number(params.get("class")) : null;
  const images = [...Array(atlas.count).keys()]
    .filter((i) => i !== first && (wanted === null || atlas.labels[i] === wanted + 1));
  const select = atlas.classes && choices("images-class", "Class", [["", "all"], ...atlas.classes.entries()], wanted ?? "",
    (value) => goTo(here({ class: value })));
  const top = heading(title, words && lede(words));
  const node = h("div", {},
    first === null ? top : h("div", { class: "portrait small" }, picture(first), top),
    h("div", { class: "controls" }, select, note(plural(images.length, "image"))),
    growing(h("div", { class: "wall" }), images, (i) => thumb(i, { href: address(i) }), 120));
  return { title, node };
}
