// All elements are created here. Names come from other people and only become text nodes.
const h = (tag, ...content) => furnish(document.createElement(tag), ...content);
const svg = (tag, ...content) => furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), ...content);
const given = (value) => value !== null && value !== undefined && value !== false;

function furnish(element, attributes, ...children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (!given(value)) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(given));
  return element;
}

const percent = (x, digits = 0) => {
  if (!Number.isFinite(x)) return "–";
  if (digits === 0 && x > 0 && x < 0.01) return x < 0.001 ? "<0.1\u00a0%" : `${(100 * x).toFixed(1)}\u00a0%`;
  return `${(100 * x).toFixed(digits)}\u00a0%`;
};
const fixed = (x, digits = 3) => (Number.isFinite(x) ? x.toFixed(digits).replace("-", "−") : "–");
const whole = (x) => Math.round(x).toLocaleString("en-US");
const plural = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
const clip = (text, most = 40) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The address of a view, with the current run and stage.
function link(path, changes = {}) {
  const query = new URLSearchParams();
  const wanted = { run: route.run || null, stage: route.stage === "after" ? "after" : null, ...changes };
  for (const [name, value] of Object.entries(wanted)) if (value) query.set(name, value);
  const tail = query.toString();
  return `#/${path}${tail ? `?${tail}` : ""}`;
}

// The address of this view with changes.
const here = (changes) => link([route.name, ...route.args].join("/"), { ...route.tail, ...changes });
const goTo = (address) => { location.hash = address; };

const narrow = () => matchMedia("(max-width: 640px)").matches;
// A select with a label; options: [value, text].
function choices(id, label, options, chosen, onchoose) {
  const select = h("select", { id, onchange: () => onchoose(select.value) },
    options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
  return h("label", { for: id }, label, select);
}
const announce = (text) => { document.getElementById("status").textContent = text; };

// A list and the button below it: it grows by the button, or while its end is visible.
function growing(list, items, draw, step = 48, auto = true) {
  let shown = 0;
  const button = h("button", { type: "button", class: "more", onclick: () => more() });
  const more = () => {
    const from = shown;
    shown = Math.min(items.length, shown + step);
    list.append(...items.slice(from, shown).map(draw));
    button.textContent = `Show more (${whole(items.length - shown)} left)`;
    button.hidden = shown >= items.length;
    if (button.hidden) watch.disconnect();
  };
  const watch = new IntersectionObserver((seen) => {
    if (!seen.some((s) => s.isIntersecting)) return;
    more();
    watch.unobserve(button); // observe again: a button that stays visible reports nothing
    if (!button.hidden) watch.observe(button);
  }, { rootMargin: "200px" });
  more();
  if (auto) watch.observe(button);
  return [list, button];
}
