// Images like another one, or strong in some dimensions and weak in others, from the codes that the page holds.
const FOUND = 60;

// use(image, dims, values) for the stored features of every image.
async function eachImage(run, stage, use) {
  (await loadParts(`${run.key}-images`)).forEach((part, f) => {
    const values = stage === "after" && part.gated ? part.gated : part.z;
    for (let row = 0; row + 1 < part.start.length; row++) {
      const [a, b] = [part.start[row], part.start[row + 1]];
      use(f * atlas.files.images + row, part.dims.subarray(a, b), values.subarray(a, b));
    }
  });
}

// The best images: cosine to `image`, plus each activation of `plus`, minus those of `minus`, relative to the
// largest of its dimension. Only positive scores.
async function findImages(run, stage, { image = null, plus = [], minus = [] }) {
  const weight = new Float64Array(run.dims);
  if (image !== null) for (const f of (await loadImage(run, stage, image)).features) weight[f.dim] += f[stage] / atlas.scale;
  const signs = [...plus.map((k) => [k, 1]), ...minus.map((k) => [k, -1])];
  await Promise.all(signs.map(async ([k, sign]) => {
    const [strongest] = (await loadDimension(run, stage, k)).top;
    weight[k] += sign / (atlas.scale * (strongest?.value || 1));
  }));
  const found = [];
  await eachImage(run, stage, (i, dims, values) => {
    let score = 0;
    for (let e = 0; e < dims.length; e++) score += weight[dims[e]] * values[e];
    if (score > 1e-6 && i !== image) found.push({ image: i, score });
  });
  return found.sort((a, b) => b.score - a.score || a.image - b.image).slice(0, FOUND);
}

// Dimensions with most activation in some images.
async function dimensionsOf(run, stage, images) {
  const wanted = new Set(images);
  const sum = new Map();
  await eachImage(run, stage, (i, dims, values) => wanted.has(i)
    && dims.forEach((k, e) => sum.set(k, (sum.get(k) || 0) + values[e])));
  return [...sum.keys()].sort((a, b) => sum.get(b) - sum.get(a));
}

async function viewFind({ run, stage, params }) {
  const dimsIn = (key) => [...new Set((params.get(key) || "").split(",").filter((t) => /^\d{1,7}$/.test(t)).map(Number))].filter((k) => k < run.dims);
  const query = { image: params.has("image") ? imageNumber(params.get("image")) : null, plus: dimsIn("plus"), minus: dimsIn("minus") };
  const to = (changes) => {
    const { image, plus, minus } = { ...query, ...changes };
    return link("find", { image: image === null ? null : String(image), plus: plus.join(","), minus: minus.join(",") });
  };
  const without = (key, k) => query[key].filter((n) => n !== k);
  const add = (key, k) => to({ plus: without("plus", k), minus: without("minus", k), [key]: [...without(key, k), k] });
  const asked = query.image !== null || query.plus.length > 0 || query.minus.length > 0;
  const found = asked ? await findImages(run, stage, query) : [];
  const used = new Set([...query.plus, ...query.minus]);
  const near = (found.length ? await dimensionsOf(run, stage, found.slice(0, 12).map((f) => f.image)) : byClarity(run))
    .filter((k) => !used.has(k)).slice(0, 8);

  const chip = (key, k) => {
    const other = key === "plus" ? "minus" : "plus";
    const word = dimensionLabel(run, k);
    return h("span", { class: `chip ${key}`, "data-dim": k },
      h("a", { href: add(other, k), class: "sign", "aria-label": `${key === "plus" ? "Subtract" : "Add"} ${word} instead` }, key === "plus" ? "+" : "−"),
      h("a", { href: dimensionLink(run, k) }, clip(word, 32), nameOf(run, k) && h("small", {}, ` ${k}`)),
      h("a", { href: to({ [key]: without(key, k) }), class: "sign", "aria-label": `Remove ${word}` }, "×"));
  };
  const imageChip = query.image !== null && h("span", { class: "chip" },
    h("a", { href: link(`image/${query.image}`), "aria-label": imageTitle(query.image) }, picture(query.image)),
    `like image ${query.image}`,
    h("a", { href: to({ image: null }), class: "sign", "aria-label": "Remove the image" }, "×"));

  const report = h("p", { class: "note", role: "status" });
  const names = annotated(run).filter((k) => nameOf(run, k));
  const field = h("input", { id: "add", list: "dimension-names", autocomplete: "off", placeholder: "name or number" });
  const form = h("form", { class: "controls", onsubmit: (event) => {
    event.preventDefault();
    const text = field.value.trim().toLowerCase().replace(/^(dimension|z)\s*(?=\d)/, "");
    const k = /^\d{1,7}$/.test(text) && Number(text) < run.dims ? Number(text)
      : byClarity(run).find((n) => nameOf(run, n).toLowerCase() === text);
    if (text && k !== undefined) goTo(add(event.submitter?.value === "minus" ? "minus" : "plus", k));
    else report.textContent = text ? `No dimension is called “${clip(field.value)}”.` : "Enter a name or a number.";
  } },
  h("label", { for: "add" }, "Dimension", field),
  h("datalist", { id: "dimension-names" }, [...new Set(names.map((k) => nameOf(run, k)))].map((name) => h("option", { value: name }))),
  h("button", { value: "plus" }, "+ with"), h("button", { value: "minus" }, "− without"), report);

  const caption = (f) => [clip(labelOf(f.image) || "", 16), fixed(f.score, 2)].filter(Boolean).join(" · ");
  const sign = (key, k, text, word) =>
    h("a", { class: "button", href: add(key, k), "aria-label": `${word} ${dimensionLabel(run, k)}` }, text);
  const pick = (k) => dimensionRow(run, stage, k, true,
    h("span", { class: "signs" }, sign("plus", k, "+", "With"), sign("minus", k, "−", "Without")));
  const node = h("div", {},
    heading("Find images"),
    h("p", { class: "chips" }, imageChip, query.plus.map((k) => chip("plus", k)), query.minus.map((k) => chip("minus", k))),
    form,
    asked && section(found.length ? `The best ${whole(found.length)}` : "Nothing found",
      found.length > 0 && growing(h("div", { class: "wall large" }), found, (f) => thumb(f.image, { caption: caption(f) }), 24, false),
      note("Score: ", query.image !== null && "cosine of the codes", query.image !== null && used.size > 0 && " and ",
        used.size > 0 && "the activation of each dimension, relative to its largest, added or subtracted",
        ". Images with a score of 0 or less are left out."), coverage(run)),
    near.length > 0 && section(found.length ? "Dimensions of these images" : "Clearest dimensions",
      intro("Add one to the search, or exclude it."), h("ol", { class: "features picks" }, near.map(pick))),
    actions(button("Choose an image", link("images", { find: "1" })), asked && button("Clear", link("find"))));
  return { title: "Find images", node };
}
