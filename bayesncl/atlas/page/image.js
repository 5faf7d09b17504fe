async function viewImage({ run, stage, args }) {
  const i = imageNumber(args[0]);
  const [image, name] = await Promise.all([loadImage(run, stage, i), imageName(i)]);
  const strongest = Math.max(1e-6, ...image.features.map((f) => Math.max(Math.abs(f.before), Math.abs(f.after))));
  const list = h("ol", { class: "features" });
  const features = [...image.features].sort((a, b) => Math.abs(b[stage]) - Math.abs(a[stage]) || Math.abs(b.before) - Math.abs(a.before));
  const button = growing(list, features, (f) => featureRow(run, stage, f, strongest), 16);
  const y = atlas.labels && atlas.labels[i];
  const closed = image.features.filter((f) => !f.open).length;
  const node = h("div", {},
    h("div", { class: "portrait" },
      picture(i),
      h("div", {},
        h("div", { class: "with-steps" }, heading(`Image ${i}`), steps(i, atlas.count, "image")),
        h("dl", { class: "facts few" },
          y ? h("div", {}, h("dt", {}, "Class"), h("dd", {}, h("a", { href: link(`class/${y - 1}`) }, labelOf(i)))) : null,
          backgroundOf(i) && h("div", {}, h("dt", {}, "Background"), h("dd", {}, backgroundOf(i))),
          name && h("div", {}, h("dt", {}, "Name"), h("dd", { class: "file" }, name)),
          h("div", {}, h("dt", {}, "Active dimensions"), h("dd", {}, whole(image.features.filter((f) => f.before).length), run.whole ? "" : " stored")),
          run.gated && h("div", {}, h("dt", {}, "Closed by gates"), h("dd", {}, whole(closed)))),
        h("p", { class: "actions" }, h("a", { class: "button", href: link("images", { with: String(i) }) }, "Compare with another image")))),
    section("Dimensions that describe it",
      image.features.length ? [h("p", { class: "intro" }, run.after ? "Each with images that share it. Upper bar: the feature before gates; lower bar: after." : "Each with images that share it."), list, button] : note("No dimension fires on this image."),
      coverage(run)),
    section(run.after && stage === "after" ? "Nearest images, after gates" : "Nearest images",
      h("div", { class: "wall large" }, image.near.map((n) => h("div", { class: "pairing" },
        thumb(n.image, { caption: labelOf(n.image) ? `${fixed(n.similarity, 2)} ${clip(labelOf(n.image), 14)}` : fixed(n.similarity, 2) }),
        h("a", { class: "why", href: link(`pair/${i}/${n.image}`), "aria-label": `Why is image ${n.image} similar?` }, "why?"))))));
  return { title: `Image ${i}`, node, previous: i > 0 && link(`image/${i - 1}`), next: i < atlas.count - 1 && link(`image/${i + 1}`) };
}

function imageNumber(text) {
  const i = Number(text);
  if (!Number.isInteger(i) || i < 0 || i >= atlas.count) throw new Error(`There is no image ${text}; they go from 0 to ${atlas.count - 1}.`);
  return i;
}

function featureRow(run, stage, f, strongest) {
  return h("li", { class: f.open ? null : "shut", "data-dim": f.dim },
    h("a", { class: "feature-name", href: link(`dim/${f.dim}`, { run: run.number || null }) }, h("b", {}, f.dim), h("span", {}, bestClass(run, stage, f.dim) || bestClass(run, "before", f.dim) || "")),
    dimensionStrip(run, "before", f.dim, 6),
    h("span", { class: "feature-bars" },
      h("span", { class: "feature-bar" }, h("span", { class: "track", "aria-hidden": "true" }, meter(Math.abs(f.before) / strongest)),
        h("span", { class: "bar-text" }, run.after && h("span", { class: "unseen" }, "before "), fixed(f.before))),
      run.after && h("span", { class: "feature-bar" }, h("span", { class: "track", "aria-hidden": "true" }, meter(Math.abs(f.after) / strongest, "open")),
        h("span", { class: "bar-text" }, h("span", { class: "unseen" }, "after "), fixed(f.after)))),
    run.gated && gate(f.open));
}

// All images, by class; with ?with=I a click picks the second image of a pair.
async function viewImages({ params }) {
  const first = params.has("with") ? imageNumber(params.get("with")) : null;
  const wanted = params.has("class") && atlas.classes ? Number(params.get("class")) : null;
  const pick = params.has("pick") ? "pick" : null;
  const images = [...Array(atlas.count).keys()].filter((i) => i !== first && (wanted === null || atlas.labels[i] === wanted + 1));
  const wall = h("div", { class: "wall" });
  const href = (i) => (first !== null ? link(`pair/${first}/${i}`) : pick ? link("images", { with: String(i) }) : link(`image/${i}`));
  const button = growing(wall, images, (i) => thumb(i, { href: href(i) }), 120);
  const tail = { with: first === null ? null : String(first), pick };
  const select = atlas.classes && h("select", { id: "images-class", onchange: () => { location.hash = link("images", { ...tail, class: select.value }); } },
    h("option", { value: "" }, "every class"), atlas.classes.map((name, c) => h("option", { value: c, selected: c === wanted }, name)));
  const title = first !== null ? `Image ${first} and which other?` : pick ? "Pick the first of two images" : "Images";
  const node = h("div", {},
    first !== null ? h("div", { class: "portrait small" }, picture(first), heading(title, h("p", { class: "lede" }, "Pick a second image to see what the two share."))) : heading(title),
    h("div", { class: "controls" }, select && h("label", { for: "images-class" }, "Of", select), note(plural(images.length, "image"))),
    wall, button);
  return { title, node };
}
