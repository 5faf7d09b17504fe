// Every view has its address: #/dim/17?run=1&stage=after.
const VIEWS = {
  "": viewOverview, dims: viewList, dim: viewDimension, image: viewImage, images: viewImages, pair: viewPair,
  compare: viewCompare, class: viewClass, classes: viewClasses, gallery: viewGallery,
};
const route = { run: 0, stage: "before", name: "", args: [], params: new URLSearchParams(), tail: {} };
let view = null; // what is on the page now
let visit = 0;
let travelled = false; // the last change of address came from a link, not from the back button
const scrolls = new Map();

const current = () => {
  const run = runs[route.run];
  return { run, stage: hasStage(run, route.stage) ? route.stage : "before", args: route.args, params: route.params };
};

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query || "");
  const [name, ...args] = path.split("/");
  const run = Number(params.get("run"));
  route.run = Number.isInteger(run) && runs[run] ? run : 0;
  route.stage = params.get("stage") === "after" ? "after" : "before";
  Object.assign(route, { name, args, params });
  route.tail = Object.fromEntries([...params].filter(([key]) => key !== "run" && key !== "stage"));
}

async function show() {
  const before = `${route.run} ${route.name}/${route.args.join("/")}`;
  const drawn = view !== null;
  read();
  const mine = ++visit;
  hideCard();
  switches();
  if (drawn && view.update && before === `${route.run} ${route.name}/${route.args.join("/")}`) {
    view.update(current());
    return;
  }
  const main = document.getElementById("main");
  try {
    const make = VIEWS[route.name];
    if (!make) throw new Error(`There is no view “${clip(route.name)}”.`);
    const slow = setTimeout(() => main.setAttribute("aria-busy", "true"), 150);
    const next = await make(current()).finally(() => clearTimeout(slow));
    if (mine !== visit) return; // somebody has gone on meanwhile
    view = next;
  } catch (error) {
    if (mine !== visit) return;
    view = { title: "Not here", node: h("div", {}, heading("Not here", h("p", { class: "lede" }, error.message)), h("p", {}, h("a", { class: "button", href: "#/" }, "To the overview"))) };
  }
  main.removeAttribute("aria-busy");
  main.replaceChildren(view.node);
  document.title = route.name ? `${view.title} · ${atlas.title}` : atlas.title;
  if (drawn) {
    scrollTo({ top: travelled ? 0 : scrolls.get(location.hash) || 0, behavior: "instant" });
    main.querySelector("h1")?.focus({ preventScroll: true });
    say(view.title);
  }
  travelled = false;
  main.dataset.view = location.hash || "#/";
}

// Which run, and before or after its gates: the same view again with another answer.
function switches() {
  const path = [route.name, ...route.args].join("/");
  const { run, stage } = current();
  const choice = (label, options) => h("div", { class: "switch", role: "group", "aria-label": label }, options.map((o) => h("a", { href: o.href, "aria-current": o.on ? "true" : null }, o.text)));
  const alone = route.name === "compare"; // shows both runs anyway
  document.getElementById("switches").replaceChildren(...[
    runs.length > 1 && !alone && choice("Run", runs.map((r) => ({ text: r.name, on: r === run, href: link(path, { ...route.tail, run: r.number || null }) }))),
    (alone ? runs.some((r) => r.after) : run.after) && !["pair", "images"].includes(route.name) && choice("Features", ["before", "after"].map((s) => ({ text: `${s === "before" ? "Before" : "After"} gates`, on: s === (alone ? route.stage : stage), href: link(path, { ...route.tail, stage: s === "after" ? "after" : null }) }))),
  ].filter(Boolean));
  const entries = [["", "Overview"], ["dims", "Dimensions"], atlas.classes && ["classes", "Classes"], ["images", "Images"], ["gallery/entropy", "Galleries"], ["pair", "Why similar?"], runs.length > 1 && ["compare", "Compare"]].filter(Boolean);
  const here = { dim: "dims", class: "classes", image: "images", gallery: "gallery/entropy" }[route.name] ?? route.name;
  const picking = route.name === "images" && (route.params.has("with") || route.params.has("pick"));
  document.getElementById("nav").replaceChildren(...entries.map(([to, text]) =>
    h("a", { href: to === "pair" ? link("images", { pick: "1" }) : link(to), "aria-current": (picking ? "pair" : here) === to ? "page" : null }, text)));
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest", behavior: "instant" });
}

function themeButton() {
  const button = document.getElementById("theme");
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`); };
  if (remember("theme")) document.documentElement.dataset.theme = remember("theme");
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    remember("theme", document.documentElement.dataset.theme);
    name();
  });
  name();
}

function keyboard() {
  const box = h("input", { type: "checkbox", id: "keys" });
  box.checked = remember("keys") !== "off";
  box.addEventListener("change", () => remember("keys", box.checked ? "on" : "off"));
  const rows = [["/", "search"], ["n, p", "next and previous dimension, image or class"], ["o, d, c", "overview, dimensions, classes"], ["arrows", "on the map: from dot to dot; Home and End: the rarest and the most common"], ["Enter", "open"], ["?", "this help"]];
  const dialog = h("dialog", { "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keyboard"),
    h("dl", { class: "keys" }, rows.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
    h("label", { for: "keys", class: "check" }, box, "Single-key shortcuts"),
    h("form", { method: "dialog" }, h("button", { class: "button" }, "Close")));
  document.body.append(dialog);
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || !box.checked) return;
    if (event.target.closest("input, select, textarea")) return;
    const go = { n: view?.next, p: view?.previous, o: link(""), d: link("dims"), c: atlas.classes && link("classes") }[event.key];
    if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); }
    else if (event.key === "?") dialog.showModal();
    else if (go) { travelled = true; location.hash = go; }
  });
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href^='#']");
  if (!anchor) return;
  if (anchor.classList.contains("skip")) { event.preventDefault(); document.getElementById("main").focus(); return; }
  travelled = true;
  scrolls.set(location.hash, scrollY);
});
document.addEventListener("scroll", () => hideCard(), { passive: true });
window.addEventListener("hashchange", show);
if ("scrollRestoration" in history) history.scrollRestoration = "manual";

openAtlas().then(async () => {
  const held = [plural(atlas.count, "image"), ...runs.map((run) => `${run.name}: ${plural(run.dims, "dimension")}`)];
  document.getElementById("foot").textContent = `${held.join(" · ")}. Made with bayesncl; nothing on this page comes from, or goes to, the network.`;
  document.documentElement.classList.toggle("small-images", Math.max(...atlas.sprites.size) <= 48); // enlarged in whole pixels
  themeButton();
  searchField();
  keyboard();
  await show();
  document.documentElement.dataset.ready = Math.round(performance.now());
}).catch((error) => {
  document.getElementById("main").append(h("p", { class: "plain" }, `The atlas could not be opened: ${error.message}.`));
});
