// The naming form of a dimension, and the page of all names.
const dimensionLabel = (run, k) => nameOf(run, k) || `Dimension ${k}`;

function byClarity(run) {
  const s = run.before;
  run.order ??= [...Array(run.dims).keys()].filter((k) => s.support[k] > 0)
    .sort((a, b) => s.clarity[b] - s.clarity[a] || s.mass[b] - s.mass[a]);
  return run.order;
}

// The next unnamed dimension after k, in order of clarity; wraps around.
function nextUnnamed(run, k) {
  const order = byClarity(run);
  const at = order.indexOf(k);
  return [...order.slice(at + 1), ...order.slice(0, Math.max(at, 0))].find((n) => !isNamed(run, n));
}

function progress(run) {
  const more = suggestedCount(run);
  return `${whole(namedCount(run))} of ${whole(byClarity(run).length)} named or marked${more ? `, ${whole(more)} more suggested` : ""}`;
}

function namingForm(run, k) {
  const own = ownEntry(run, k) || { name: "", note: "", mark: "" };
  const count = h("span", { class: "progress", role: "status" }, progress(run));
  const others = entriesOf(run, k).filter((e) => e.author !== me);
  const keep = (changes) => {
    setEntry(run, k, changes);
    count.textContent = progress(run);
    const title = document.querySelector(".dimension-title");
    if (!title) return;
    title.textContent = dimensionLabel(run, k);
    title.classList.toggle("suggested", Boolean(suggestionOf(run, k)));
    document.querySelector(".dimension-number").textContent = dimensionNumber(run, k);
  };
  const use = (e) => h("button", { type: "button", class: "quiet use", "aria-label": `Use the name ${e.name}`, onclick: () => {
    name.value = e.name;
    keep({ name: e.name });
  } }, "use", isProgram(e) && h("kbd", { "aria-hidden": "true" }, "a"));
  const name = h("input", {
    id: "name", class: "name-field", maxlength: LENGTHS.name, autocomplete: "off", value: own.name,
    placeholder: "What do these images share?", oninput: () => keep({ name: name.value }),
    onkeydown: (event) => {
      if (event.key === "Escape") name.blur();
      if (event.key !== "Enter") return;
      const next = nextUnnamed(run, k);
      if (next === undefined) return;
      naming = true;
      goTo(dimensionLink(run, next));
    },
  });
  const noted = h("textarea", { id: "note", rows: 2, maxlength: LENGTHS.note, oninput: () => keep({ note: noted.value }) });
  noted.value = own.note;
  const marks = MARKS.map((mark, n) => h("label", { class: "mark" },
    h("input", { type: "radio", name: "mark", value: mark, checked: own.mark === mark, onchange: () => keep({ mark }) }),
    mark, h("kbd", { "aria-hidden": "true" }, n + 1)));
  const next = nextUnnamed(run, k);
  const form = h("form", { class: "naming", "aria-label": "Name this dimension", onsubmit: (e) => e.preventDefault() },
    h("label", { for: "name" }, "Name"), name,
    h("fieldset", {}, h("legend", {}, "Mark"), marks,
      h("button", { type: "button", class: "quiet", onclick: () => {
        form.querySelectorAll("[type=radio]").forEach((radio) => { radio.checked = false; });
        keep({ mark: "" });
      } }, "clear")),
    h("label", { for: "note" }, "Note"), noted,
    others.length > 0 && h("ul", { class: "others" }, others.map((e) =>
      h("li", {}, h("b", { class: isProgram(e) && "suggested" }, e.name || e.mark || "note"), " ",
        isProgram(e) ? h("small", {}, suggestionText(e))
          : [[e.name && e.mark, e.note].filter(Boolean).join(", "), h("small", {}, ` by ${e.author || "someone"}`)],
        " ", e.name && use(e)))),
    storageHint(),
    h("p", { class: "after" }, count,
      next !== undefined && h("a", { href: dimensionLink(run, next) }, "Next unnamed →"),
      h("a", { href: link("names") }, "All names")));
  return form;
}

// What stands before the sentence of a named dimension.
function dimensionNumber(run, k) {
  const suggested = suggestionOf(run, k);
  return (nameOf(run, k) && `Dimension ${k}. `) + (suggested && `Name ${suggested}. `);
}

let naming = false; // move the focus to the name field of the next dimension

async function viewNames({ run }) {
  const author = h("input", { id: "author", value: me, maxlength: LENGTHS.author, autocomplete: "off",
    onchange: () => { renameMe(author.value); author.value = me; } });
  const report = h("p", { class: "note", role: "status" });
  const file = h("input", { type: "file", id: "import", accept: ".json,application/json", class: "unseen",
    "aria-label": "Import names.json", tabindex: -1 });
  file.addEventListener("change", async () => {
    try {
      const { imported, skipped } = importNames(await file.files[0].text());
      fill();
      report.textContent = `Imported names of ${plural(imported, "dimension")}.`
        + (skipped ? ` Skipped ${plural(skipped, "set")} of names for other codes.` : "");
    } catch (error) {
      report.textContent = `Import failed: ${error.message}.`;
    }
    file.value = "";
  });
  const list = h("div", {});
  const saying = (e, all) => h("div", {}, h("b", { class: isProgram(e) && "suggested" }, e.name || "–"), e.mark && ` ${e.mark}`,
    isProgram(e) ? h("small", {}, ` ${suggestionText(e)}`)
      : [e.note && h("small", {}, ` ${e.note}`), (all || e.author !== me) && h("small", {}, ` ${e.author}`)]);
  const chief = (k) => ownEntry(run, k) || namingEntry(run, k) || entriesOf(run, k).at(-1);
  const names = (dims, all) => longTable(all ? "Conflicts" : "Names", ["Dimension", "Strongest images", "Name"], dims, (k) =>
    tableRow(k, h("a", { href: dimensionLink(run, k) }, k), [linkedStrip(run, "before", k, 5),
      h("div", { class: "said" }, (all ? entriesOf(run, k) : [chief(k)]).map((e) => saying(e, all)))]), 40);
  function fill() {
    const conflicts = conflictsOf(run);
    const done = byClarity(run).filter((k) => isNamed(run, k));
    const guesses = byClarity(run).filter((k) => !isNamed(run, k) && nameOf(run, k));
    const next = nextUnnamed(run, -1);
    list.replaceChildren(...[
      h("p", { class: "lede" }, `${progress(run)}. `,
        next !== undefined && h("a", { href: dimensionLink(run, next) }, "Name the next dimension →")),
      conflicts.length > 0 && section(plural(conflicts.length, "conflict"),
        intro("Dimensions that people named or marked differently. Open one to enter your own name."),
        names(conflicts, true)),
      done.length > 0 && section("Names", names(done, false)),
      guesses.length > 0 && section("Suggestions", intro("Suggested by a program. Open one and press ", h("kbd", {}, "a"), " to accept its name."), names(guesses, false)),
    ].filter(Boolean));
  }
  fill();
  const node = h("div", {},
    heading("Names"),
    h("div", { class: "controls" },
      h("label", { for: "author" }, "Your name", author),
      exportButton(),
      h("button", { type: "button", onclick: () => file.click() }, "Import names.json"), file),
    storageHint(), report,
    saves
      ? note("Names are saved in names.json in the folder of codes, and in this browser.")
      : note("Names are stored in this browser only. To keep them, export names.json and add it to the codes: ",
        h("code", {}, "bayesncl names CODES names.json"), ". Import a file to merge its names with yours."),
    list);
  return { title: "Names", node };
}
