async function viewDimension({ run, stage, args }) {
  const k = Number(args[0]);
  if (!args[0] || !Number.isInteger(k) || k < 0 || k >= run.dims) {
    throw new Error(`There is no dimension ${clip(args[0] || "without a number")}; the last one is ${run.dims - 1}.`);
  }
  const s = run[stage];
  const alive = s.support[k] > 0;
  const [{ top, near, low, high, histogram: counts }, classes, grounds, gates] = await Promise.all([
    loadDimension(run, stage, k), loadCounts(run, stage, "classes", k), loadCounts(run, stage, "backgrounds", k),
    run.gated && gateRates(run, k)]);

  const picked = (t) => thumb(t.image, { caption: fixed(t.value, 2), closed: run.gated && !t.open });
  const [wall, more] = growing(h("div", { class: "wall" }), top, picked, narrow() ? 12 : 48, !narrow());
  const { steps, ...keys } = neighbors(k, run.dims, "dim");
  const fewer = top.length < s.support[k] ? `The ${whole(top.length)} strongest of ${whole(s.support[k])} images. ` : "";
  const closed = run.gated ? " A struck circle marks a closed gate." : "";
  const same = (n) => !run.groups || run.groups[n.dim] === run.groups[k];
  const similar = near.filter((n) => n.cosine > 0.001 && same(n)).slice(0, 6);
  const ends = `Distribution of activations between ${fixed(low, 2)} and ${fixed(high, 2)}`;

  const aside = h("aside", {},
    !narrow() && section("Name this dimension", namingForm(run, k)),
    alive && classes && section("Classes it fires on", shares(classes, atlas.classes, (c) => link(`class/${c}`))),
    alive && grounds && section("Backgrounds it fires on", shares(grounds, atlas.backgrounds, () => null)),
    run.gated && section("Gate", gates),
    alive && section("Activations", histogram(counts, low, high, ends)),
    section("Statistics", facts([run.groups && ["Group", run.groups[k] + 1],
      ...columnsOf(run, stage).map((c) => [c.name, c.show(c.of(k)), c.help])])),
    similar.length > 0 && section("Similar dimensions",
      h("div", { class: "tiles" }, similar.map((n) => dimensionTile(run, stage, n.dim, `cosine ${fixed(n.cosine, 2)}`))),
      note(`Cosine similarity of the activations over all images${run.groups ? ", within its group" : ""}.`)));
  const node = h("div", {},
    h("div", { class: "with-steps" },
      h("div", { class: "heading" },
        h("h1", { tabindex: -1, class: suggestionOf(run, k) ? "dimension-title suggested" : "dimension-title" }, dimensionLabel(run, k)),
        lede(h("span", { class: "dimension-number" }, dimensionNumber(run, k)), dimensionSentence(run, stage, k))),
      steps),
    h("div", { class: top.length < 24 ? "split few" : "split" },
      section("Strongest images", top.length
        ? [heatSwitch(run, stage, k, wall), wall, more, note(`${fewer}The number below an image is its activation.${closed}`)]
        : note(alive ? "All activations are negative." : "None: it fires on no image."),
      narrow() && namingForm(run, k)), // else beside the images
      aside),
    galleryLinks(run, button("Find with other dimensions", link("find", { plus: String(k) }))));
  const next = nextUnnamed(run, k);
  const press = (key) => {
    if (/^[1-4]$/.test(key)) node.querySelectorAll(".mark input")[Number(key) - 1].click();
    if (key === "a") node.querySelector(".use:has(kbd)")?.click();
    if (key === "e") node.querySelector("#name").focus();
    return key === "e";
  };
  return { title: dimensionLabel(run, k), node, press, unnamed: next !== undefined && dimensionLink(run, next), ...keys };
}

const STRONGEST = 50; // images among which a class may stand out

function dimensionSentence(run, stage, k) {
  const s = run[stage];
  if (!s.support[k]) return "Dead: fires on none of these images.";
  const share = percent(s.support[k] / atlas.count);
  const fires = `Fires on ${share} of images (${whole(s.support[k])} of ${whole(atlas.count)}).`;
  const o = prominent(run, stage, k);
  if (!o) return fires;
  const strongest = s.support[k] > STRONGEST ? `of its ${STRONGEST} strongest images` : "of them";
  return `${fires} ${percent(o.share)} ${strongest} are ${o.kind === 2 ? "on " : ""}${clip(o.word)} (${o.lift}).`;
}

// The ten largest shares as bars; the others are folded.
function shares(counts, names, href, most = 10) {
  const total = counts.reduce((a, b) => a + b, 0) || 1;
  const order = [...counts.keys()].filter((c) => counts[c] > 0).sort((a, b) => counts[b] - counts[a]);
  const row = (c) => {
    const value = counts[c] / total;
    return { label: names[c], href: href(c), value, text: percent(value), title: plural(counts[c], "image") };
  };
  const draw = (list) => bars(list.map(row), "Share of the images it fires on");
  return [draw(order.slice(0, most)),
    order.length > most && h("details", {}, h("summary", {}, `${order.length - most} more`), draw(order.slice(most)))];
}

async function gateRates(run, k) {
  const row = (label, rate, href) => ({ label, href, value: rate, text: percent(rate), tone: "open" });
  const overall = [note("Share of images with an open gate."),
    bars([row("All images", run.open_rate[k]), row("Images it fires on", 1 - run.closed_rate[k])], "Gate open")];
  if (!atlas.classes) return overall;

  const open = (await load(`${run.key}-classes`)).open;
  const width = atlas.classes.length;
  const rates = [...atlas.classes.keys()].filter((c) => atlas.sizes[c])
    .map((c) => ({ c, rate: open[k * width + c] / atlas.sizes[c] }))
    .sort((a, b) => b.rate - a.rate);
  const classRow = ({ c, rate }) => row(atlas.classes[c], rate, link(`class/${c}`));
  const draw = (list) => bars(list.map(classRow), "Gate open by class");
  if (rates.length <= 8) return [overall, h("h3", {}, "By class"), draw(rates)];
  return [overall,
    h("h3", {}, "Most and least open classes"), draw([...rates.slice(0, 3), ...rates.slice(-3)]),
    h("details", {}, h("summary", {}, `All ${rates.length} classes`), draw(rates))];
}
