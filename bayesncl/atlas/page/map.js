// The map of all dimensions: prevalence against consistency.
const TICKS = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 1];

// A square-root scale between the ticks around the values, because most dimensions are rare.
function rootScale(values, length, gap) {
  const high = TICKS.find((t) => t >= values.reduce((a, b) => Math.max(a, b), 0) - 1e-9) || 1;
  const least = TICKS.findLast((t) => t <= values.reduce((a, b) => Math.min(a, b), 1)) ?? 0;
  const low = least === high ? 0 : least;
  const from = Math.sqrt(low);
  const span = Math.sqrt(high) - from;
  const at = (v) => length * Math.max(0, Math.min(1, (Math.sqrt(Math.max(0, v)) - from) / span));
  const ticks = [];
  for (const t of TICKS.filter((x) => x >= low && x <= high).reverse()) {
    if (!ticks.length || at(ticks.at(-1)) - at(t) >= gap) ticks.push(t);
  }
  return { at, ticks };
}

function dimensionMap(run, stage, compact = false) {
  const [width, height] = narrow() ? [390, 400] : compact ? [560, 440] : [1040, 540];
  const largest = narrow() ? 13 : compact ? 16 : 21;
  const pad = { left: 48 + largest, right: 34, top: 40, bottom: 64 }; // room for a dot at the left edge
  const across = width - pad.left - pad.right;
  const down = height - pad.top - pad.bottom;
  let now = stage;
  let dots = [];

  const height01 = (k, s = run[now]) => {
    if (s.consistency) return s.consistency[k];
    return s.support[k] ? s.mass[k] / s.support[k] : 0; // without labels: mean activation where it fires
  };
  // One scale for both stages, from dimensions with 10 or more images; rarer ones may lie on the edge.
  const firing = (least) => stagesOf(run).map((name) => run[name])
    .flatMap((s) => [...s.support.keys()].filter((k) => s.support[k] >= least).map((k) => [s, k]));
  const alive = firing(10).length ? firing(10) : firing(1);
  const wide = rootScale(alive.map(([s, k]) => s.support[k] / atlas.count), across, 52);
  const tall = rootScale(alive.map(([s, k]) => height01(k, s)), down, 26);
  const x = (prevalence) => pad.left + wide.at(prevalence);
  const y = (share) => pad.top + down - tall.at(share);
  const place = (k) => {
    const s = run[now];
    const r = 2 + largest * Math.sqrt(s.mass[k] / s.heaviest);
    return { k, r, dead: !s.support[k], x: x(s.support[k] / atlas.count), y: y(height01(k)) };
  };

  const right = pad.left + across;
  const share = (t) => `${Number((100 * t).toFixed(1))} %`;
  const grid = svg("g", { class: "grid", "aria-hidden": "true" },
    wide.ticks.map((t) => [
      svg("line", { x1: x(t), x2: x(t), y1: pad.top, y2: pad.top + down + 14 }),
      svg("text", { x: x(t), y: pad.top + down + 32, "text-anchor": "middle" }, share(t))]),
    tall.ticks.map((t) => [
      svg("line", { x1: pad.left - largest, x2: right, y1: y(t), y2: y(t) }),
      svg("text", { x: pad.left - largest - 10, y: y(t) + 4, "text-anchor": "end" }, run[now].consistency ? share(t) : t)]),
    svg("text", { x: right, y: height - 8, "text-anchor": "end", class: "axis-name" }, "images it fires on →"),
    svg("text", { x: 8, y: 16, class: "axis-name" },
      run[now].consistency ? "↑ consistency: share of its most frequent class" : "↑ mean activation"));
  const points = svg("g", { class: "dots" });
  const node = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, class: "map", role: "group",
    "aria-label": `Map of ${plural(run.dims, "dimension")}. Arrow keys move between dimensions, Enter opens one.`,
  }, grid, points);

  const { mass } = run.before;
  const order = [...mass.keys()].sort((a, b) => mass[b] - mass[a]); // small ones on top
  const anchors = new Map();
  for (const k of order) {
    const dot = svg("g", {}, svg("circle", { r: 3 }), svg("circle", { r: 11, class: "near" })); // small dots are easy to hit
    const anchor = svg("a", { href: dimensionLink(run, k), tabindex: -1, "data-dim": k }, dot);
    if (run.gated) dot.style.setProperty("--closed", run.closed_rate[k]);
    anchors.set(k, { anchor, dot });
    points.append(anchor);
  }

  function update(next) {
    now = next;
    dots = [];
    for (const [k, { anchor, dot }] of anchors) {
      const p = place(k);
      anchor.classList.toggle("gone", p.dead);
      dot.style.transform = `translate(${p.x.toFixed(1)}px, ${p.y.toFixed(1)}px)`;
      dot.firstChild.style.r = `${p.r.toFixed(1)}px`;
      anchor.setAttribute("href", dimensionLink(run, k));
      if (!p.dead) dots.push(p);
    }
    hang();
    if (dots.length) roam(least((p) => -p.x).k, false);
  }

  // The dimensions with most mass show their strongest image, where there is room.
  function hang() {
    points.querySelectorAll(".hung").forEach((old) => old.remove());
    const hung = [];
    for (const p of dots) {
      const side = Math.max(narrow() ? 18 : 22, 1.9 * p.r);
      const free = hung.every((o) => Math.max(Math.abs(o.x - p.x), Math.abs(o.y - p.y)) > 0.65 * (side + o.side));
      if (!free || !run[now].shown[p.k]) continue;
      p.side = side;
      hung.push(p);
      anchors.get(p.k).dot.append(svg("g", { class: "hung" }, cutout(topOf(run, now, p.k)[0], side),
        svg("rect", { x: -side / 2, y: -side / 2, width: side, height: side, rx: 2 })));
    }
    label(hung);
    hung.reverse().forEach((p) => points.append(anchors.get(p.k).anchor)); // images above the dots
  }

  // Names to the right or left of the dots, clearest first, where there is room.
  function label(hung) {
    points.querySelectorAll(".dot-name").forEach((old) => old.remove());
    const taken = hung.map(({ k, x, y, side }) => ({ k, x: x - side / 2, y, w: side, h: side })); // y: of the center
    for (const k of byClarity(run).filter((n) => nameOf(run, n))) {
      const p = dots.find((dot) => dot.k === k);
      if (!p || taken.length - hung.length >= 40) continue;
      const words = clip(nameOf(run, k), 22);
      const w = 7 * words.length;
      const reach = Math.max(p.r, (p.side || 0) / 2) + 5;
      const free = (x) => x >= 0 && x + w <= width
        && taken.every((o) => o.k === k || o.x >= x + w || x >= o.x + o.w || Math.abs(o.y - p.y) >= (o.h + 16) / 2);
      const x = [p.x + reach, p.x - reach - w].find(free);
      if (x === undefined) continue;
      taken.push({ k, x, y: p.y, w, h: 16 });
      anchors.get(k).dot.append(svg("text",
        { class: "dot-name", x: x > p.x ? reach : -reach, y: 4, "text-anchor": x > p.x ? "start" : "end" }, words));
      if (!hung.includes(p)) points.append(anchors.get(k).anchor);
    }
  }

  // One tab stop for the whole map; the arrow keys move it.
  let here = -1;
  function roam(k, focus = true) {
    anchors.get(here)?.anchor.setAttribute("tabindex", -1);
    here = k;
    const { anchor } = anchors.get(k);
    anchor.setAttribute("tabindex", 0);
    anchor.setAttribute("aria-label", dimensionTitle(run, now, k));
    if (focus) anchor.focus({ preventScroll: true });
  }
  const least = (cost) => dots.reduce((best, p) => (cost(p) < (best ? cost(best) : Infinity) ? p : best), null);
  const WAYS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  node.addEventListener("keydown", (event) => {
    const way = WAYS[event.key];
    const end = { Home: 1, End: -1 }[event.key];
    if ((!way && !end) || here < 0) return;
    event.preventDefault();
    const from = place(here);
    const cost = (p) => {
      const along = (p.x - from.x) * way[0] + (p.y - from.y) * way[1];
      const aside = Math.abs((p.x - from.x) * way[1]) + Math.abs((p.y - from.y) * way[0]);
      return p.k !== here && along > 0.01 ? along + 2.5 * aside : Infinity;
    };
    const next = least(end ? (p) => end * p.x : cost);
    if (next) roam(next.k);
  });

  let lit = -1;
  const light = (event) => {
    const k = Number(event.target.closest("a")?.dataset.dim ?? -1);
    if (k === lit && !document.getElementById("card").hidden) return;
    anchors.get(lit)?.anchor.classList.remove("lit");
    lit = k;
    anchors.get(k)?.anchor.classList.add("lit");
    if (k < 0) hideCard();
    else showCard(run, now, k, anchors.get(k).dot.firstChild.getBoundingClientRect());
  };
  const dark = () => light({ target: node });
  node.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") light(event); });
  node.addEventListener("pointerleave", dark);
  node.addEventListener("focusin", light);
  node.addEventListener("focusout", dark);

  update(stage);
  requestAnimationFrame(() => node.classList.add("moving")); // animate from the second position on
  return { node, update };
}

function showCard(run, stage, k, box) {
  const card = document.getElementById("card");
  card.replaceChildren(
    h("p", { class: "card-title" }, dimensionLabel(run, k)),
    strip(topOf(run, stage, k).slice(0, 8), ""),
    h("p", {}, shortNumbers(run, stage, k)));
  card.hidden = false;
  const width = card.offsetWidth;
  const left = Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2));
  const above = box.top - card.offsetHeight - 10;
  card.style.left = `${left}px`;
  card.style.top = `${above > 8 ? above : box.bottom + 10}px`;
}

function hideCard() {
  document.getElementById("card").hidden = true;
}

function mapLegend(run) {
  const part = (...content) => h("span", { class: "legend-part" }, ...content);
  return h("div", { class: "legend" },
    run.gated && part(h("span", {}, "gate never closed"), h("span", { class: "ramp", "aria-hidden": "true" }),
      h("span", {}, "always closed where it fires")),
    part(h("span", { class: "sizes", "aria-hidden": "true" }, h("i"), h("i"), h("i")),
      h("span", {}, "size: activation mass")));
}
