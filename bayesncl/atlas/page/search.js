// Search over dimensions, classes, backgrounds and images.
async function find(text) {
  const q = text.trim().toLowerCase();
  if (!q) return [];
  const { run, stage } = current();
  const has = (name) => name.toLowerCase().includes(q);
  const [, what = "", digits] = q.match(/^(dim(?:ension)?|image|img|class)?\s*(\d+)$/) || [];
  const n = Number(digits ?? -1);
  const found = [
    n >= 0 && n < run.dims && ["", "d"].includes(what.slice(0, 1))
      && { text: dimensionLabel(run, n), hint: shortNumbers(run, stage, n), href: link(`dim/${n}`) },
    n >= 0 && n < atlas.count && ["", "i"].includes(what.slice(0, 1))
      && { text: `Image ${n}`, hint: labelOf(n) || "", href: link(`image/${n}`) },
    ...annotated(run).filter((k) => has(nameOf(run, k))).map((k) =>
      ({ text: nameOf(run, k), hint: `dimension ${k}${suggestionOf(run, k) && ", suggested"}`, href: link(`dim/${k}`) })),
    ...(atlas.classes || []).map((name, c) => (has(name) || (what === "class" && n === c))
      && { text: name, hint: "class", href: link(`class/${c}`) }),
    ...(atlas.backgrounds || []).map((name) => has(name) && { text: name, hint: "background", href: link("dims", { q: name }) }),
  ].filter(Boolean);
  if (found.some((f) => f.hint === "class")) {
    found.splice(10);
    found.push({ text: `Dimensions for “${text.trim()}”`, hint: "list", href: link("dims", { q: text.trim() }) });
  }
  if (atlas.named && q.length > 1 && found.length < 12) {
    const names = (await loadParts("names")).flatMap((part) => part.names);
    found.push(...names.map((name, i) => has(name) && { text: name, hint: `image ${i}`, href: link(`image/${i}`) }).filter(Boolean));
  }
  return found.slice(0, 12);
}

const shortest = (words) => words.reduce((a, b) => (b.length < a.length ? b : a));

function searchField() {
  const list = h("ul", { id: "found", role: "listbox", "aria-label": "Results", hidden: true });
  const field = h("input", {
    type: "search", id: "find", role: "combobox", autocomplete: "off",
    "aria-controls": "found", "aria-expanded": "false", "aria-autocomplete": "list",
    "aria-label": atlas.classes ? "Search names, classes, dimensions, images" : "Search names, dimensions, images",
    placeholder: narrow() ? "Search" : atlas.classes?.length ? `Search: ${clip(shortest(atlas.classes), 10)} …` : "Search",
  });
  let chosen = -1;
  let searching = Promise.resolve(); // for the last input

  const show = (open) => {
    list.hidden = !open;
    field.setAttribute("aria-expanded", String(open));
    if (!open) field.removeAttribute("aria-activedescendant");
  };
  const choose = (n) => {
    chosen = n;
    [...list.children].forEach((item, j) => item.setAttribute("aria-selected", String(j === n)));
    if (n >= 0) field.setAttribute("aria-activedescendant", `found-${n}`);
    list.children[n]?.scrollIntoView({ block: "nearest" });
  };
  const open = (item) => {
    show(false);
    field.value = "";
    field.blur();
    goTo(item.dataset.href);
  };
  const option = (f, n) => h("li", {
    role: "option", id: `found-${n}`, "aria-selected": "false", "data-href": f.href,
    onmousedown: (event) => event.preventDefault(), // the field keeps the focus
    onclick: (event) => open(event.currentTarget),
  }, h("span", {}, f.text), h("small", {}, f.hint));

  async function answer() {
    const text = field.value;
    const found = await find(text);
    if (text !== field.value) return; // the input has changed
    const none = h("li", { role: "option", "aria-disabled": "true" }, "No results");
    list.replaceChildren(...(found.length ? found.map(option) : [none]));
    show(text.trim() !== "");
    choose(found.length ? 0 : -1);
  }
  field.addEventListener("input", () => { searching = answer(); });
  field.addEventListener("keydown", async (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const count = list.querySelectorAll("[data-href]").length;
      if (count) choose((chosen + (event.key === "ArrowDown" ? 1 : count - 1)) % count);
    } else if (event.key === "Escape") {
      show(false);
      field.blur();
    } else if (event.key === "Enter") {
      await searching;
      const item = list.querySelectorAll("[data-href]")[chosen];
      if (item && !list.hidden) open(item);
    }
  });
  field.addEventListener("blur", () => show(false));
  document.getElementById("search").replaceChildren(field, list);
}
