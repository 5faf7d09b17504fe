// Every view has an address, such as #/dim/17?run=1&stage=after: its function, its entry in the navigation, and whether
// it shows features before or after the gates.
const VIEWS = {
  "": [viewOverview, "", true], dims: [viewList, "dims", true], dim: [viewDimension, "dims", true],
  classes: [viewClasses, "classes", true], class: [viewClass, "classes", true],
  image: [viewImage, "images", true], images: [viewImages, "images"], pair: [viewPair, "pair", true],
  find: [viewFind, "find", true], gallery: [viewGallery, "gallery/entropy", true], names: [viewNames, "names"],
  check: [viewCheck, "check"], new: [viewNew, "new"], explain: [viewExplain, "explain", true],
  quiz: [viewQuiz, "quiz"], compare: [viewCompare, "compare", true],
};
const route = { run: 0, stage: "before", name: "", args: [], params: new URLSearchParams(), tail: {} };
let view = null; // the current view
let visit = 0;
let travelled = false; // the address changed by a link, not by the back button
const scrolls = new Map();

const current = () => {
  const run = runs[route.run];
  return { run, stage: stageOf(run), args: route.args, params: route.params };
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
  const where = () => `${route.run} ${route.name}/${route.args.join("/")}`;
  const before = where();
  const drawn = view !== null;
  read();
  const mine = ++visit;
  hideCard();
  switches();
  if (drawn && view.update && before === where()) {
    view.update(current());
    return;
  }
  const main = document.getElementById("main");
  try {
    const [make] = VIEWS[route.name] || [];
    if (!make) throw new Error(`There is no page “${clip(route.name)}”.`);
    const slow = setTimeout(() => main.setAttribute("aria-busy", "true"), 150);
    const next = await make(current()).finally(() => clearTimeout(slow));
    if (mine !== visit) return; // the user has moved on
    view = next;
  } catch (error) {
    if (mine !== visit) return;
    const node = h("div", {}, heading("Not found", lede(error.message)), actions(button("Go to the overview", "#/")));
    view = { title: "Not found", node };
  }
  main.removeAttribute("aria-busy");
  main.replaceChildren(view.node);
  document.title = route.name ? `${view.title} · ${atlas.title}` : atlas.title;
  if (drawn) {
    scrollTo({ top: travelled ? 0 : scrolls.get(location.hash) || 0, behavior: "instant" });
    const field = naming && main.querySelector("#name");
    (field || main.querySelector("h1"))?.focus({ preventScroll: !field });
    announce(view.title);
  }
  naming = false;
  cutTables();
  travelled = false;
  main.dataset.view = location.hash || "#/";
}

// Mark tables that are wider than the page.
function cutTables() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.toggle("cut", box.scrollWidth > box.clientWidth + 1);
  }
}

// Links to the same view of another run, or before or after the gates, and to the other views.
function switches() {
  const { run, stage } = current();
  const two = route.name === "compare"; // shows two runs
  const [, home, staged] = VIEWS[route.name] || [];
  const choice = (label, options) => options.length > 1 && h("div", { class: "switch", role: "group", "aria-label": label },
    options.map(([text, on, changes]) =>
      h("a", { href: here(changes), "aria-current": on ? "true" : null }, text)));
  const shown = two ? runs.slice(1) : runs;
  const chosen = two ? runs[route.run || 1] : run;
  const after = (two ? route.stage : stage) === "after";
  document.getElementById("switches").replaceChildren(...[
    route.name !== "quiz" && choice(two ? "Second run" : "Run", shown.map((r) => [r.name, r === chosen, { run: r.number || null }])),
    staged && (two ? runs.some((r) => r.after) : run.after) && choice("Features", [
      ["Before gates", !after, { stage: null }], ["After gates", after, { stage: "after" }]]),
  ].filter(Boolean));

  const entry = { with: "pair", pick: "pair", find: "find" }[picking()] ?? home;
  document.getElementById("nav").replaceChildren(...[
    ["", "Overview"], ["dims", "Dimensions"], atlas.classes && ["classes", "Classes"], ["images", "Images"], ["find", "Find"],
    ["gallery/entropy", "Galleries"], ["names", "Names"], atlas.pages.includes("check") && ["check", "To check"],
    atlas.pages.includes("new") && ["new", "New here"], run.explain && ["explain", "Classifier"], ["quiz", "Quiz"],
    ["pair", "Why similar?"], runs.length > 1 && ["compare", "Compare"],
  ].filter(Boolean).map(([to, text]) =>
    h("a", { href: to === "pair" ? link("images", { pick: "1" }) : link(to), "aria-current": entry === to ? "page" : null }, text)));
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest", behavior: "instant" });
}

function themeButton() {
  const toggle = document.getElementById("theme");
  const root = document.documentElement;
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const other = () => ((root.dataset.theme || system()) === "dark" ? "light" : "dark");
  const name = () => {
    toggle.textContent = other() === "dark" ? "Dark" : "Light";
    toggle.setAttribute("aria-label", `Switch to ${other()} colors`);
  };
  if (["light", "dark"].includes(remember("theme"))) root.dataset.theme = remember("theme");
  toggle.addEventListener("click", () => {
    root.dataset.theme = other();
    remember("theme", root.dataset.theme);
    name();
  });
  name();
}

const KEYS = [
  ["/", "search"],
  ["n, p", "next and previous dimension, image, class or finding"],
  ["u", "next unnamed dimension, clearest first"],
  ["e", "edit the name of a dimension"],
  ["a", "use the suggested name"],
  ["a, x", "accept or dismiss a finding to check"],
  ["1, 2, 3, 4", "mark as readable, mixed, noise or irrelevant; in the quiz, 1 to 5 choose an image"],
  ["o, d, c", "overview, dimensions, classes"],
  ["arrows", "on the map: move between dimensions; Home and End: least and most frequent"],
  ["Enter", "open"],
  ["?", "this help"],
];

function keyboard() {
  const box = h("input", { type: "checkbox", id: "keys", checked: remember("keys") !== "off",
    onchange: () => remember("keys", box.checked ? "on" : "off") });
  const dialog = h("dialog", { "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keyboard"),
    facts(KEYS.map(([key, what]) => [h("kbd", {}, key), what]), "keys"),
    h("label", { for: "keys", class: "check" }, box, "Single-key shortcuts"),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  document.getElementById("help").addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || !box.checked) return;
    if (event.target.closest("input, select, textarea")) return;
    const next = nextUnnamed(current().run, -1);
    const unnamed = view?.unnamed || (next !== undefined && dimensionLink(current().run, next));
    const targets = { u: unnamed, n: view?.next, p: view?.previous, o: link(""), d: link("dims"), c: atlas.classes && link("classes") };
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("find").focus();
    } else if (event.key === "?") {
      dialog.showModal();
    } else if (targets[event.key]) {
      travelled = true;
      goTo(targets[event.key]);
    } else if (view?.press?.(event.key)) {
      event.preventDefault(); // the key must not be typed into the field that gets the focus
    }
  });
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href^='#']");
  if (!anchor) return;
  if (anchor.classList.contains("skip")) {
    event.preventDefault();
    document.getElementById("main").focus();
    return;
  }
  travelled = true;
  scrolls.set(location.hash, scrollY);
});
document.addEventListener("scroll", () => hideCard(), { passive: true });
window.addEventListener("hashchange", show);
window.addEventListener("resize", () => cutTables());
if ("scrollRestoration" in history) history.scrollRestoration = "manual";

openAtlas().then(async () => {
  const counts = [plural(atlas.count, "image"), ...runs.map((run) => `${run.name}: ${plural(run.dims, "dimension")}`)];
  document.getElementById("foot").textContent =
    `${counts.join(" · ")}. Made with bayesncl. ${saves ? "Names are saved on this computer" : "This page works offline and sends no data"}.`;
  const small = Math.max(...atlas.sprites.size) <= 48;
  document.documentElement.classList.toggle("small-images", small); // enlarge in whole pixels
  await openNames();
  themeButton();
  searchField();
  keyboard();
  await show();
  document.documentElement.dataset.ready = Math.round(performance.now());
}).catch((error) => {
  const text = `Cannot open the atlas: ${error.message}.`;
  document.getElementById("main").append(h("p", { class: "plain" }, text));
});
