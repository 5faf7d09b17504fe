// What the audit found, one finding at a time, with its two images side by side.
const FINDINGS = { // kind: [title, what it says about a finding, what the second image is]
  "wrong label": ["Wrong labels", (f) => `Labeled ${f.label}. Looks like ${f.suggested}: margin ${fixed(f.score, 2)}.`,
    (f) => `nearest ${f.suggested}`],
  "odd image": ["Odd images", (f) => `Unlike all other images: mean cosine ${fixed(1 - f.score, 2)} to its nearest neighbors.`, () => "nearest image"],
  "exact duplicate": ["Exact duplicates", () => "The same image twice.", () => "copy"],
  "near-duplicate": ["Near-duplicates", (f) => `Almost the same image: cosine ${fixed(f.score, 2)}.`, () => "near-duplicate"],
  "train-test duplicate": ["Train-test duplicates",
    (f) => `One was fitted, the other held out: cosine ${fixed(f.score, 2)}.`, () => "other split"],
};
const TO_SHOW = { all: "all", open: "undecided", accepted: "accepted", dismissed: "dismissed" };

async function viewCheck({ params }) {
  if (!atlas.pages.includes("check")) throw new Error("There is no audit of these codes. Run “bayesncl atlas CODES --audit”.");
  const data = await load("check");
  const number = new Map(data.names.map((name, n) => [name, n]));
  const all = data.findings.map(([kind, image, other, label, suggested, score]) => ({ kind, image, other, label, suggested, score }));
  const kinds = Object.keys(FINDINGS).filter((kind) => data.totals[kind]);
  const kind = kinds.includes(params.get("kind")) ? params.get("kind") : null;
  const wanted = params.get("show") in TO_SHOW ? params.get("show") : "all";
  const state = (f) => decisionOf(f)?.decision || "";
  const ofKind = all.filter((f) => !kind || f.kind === kind);
  const listed = ofKind.filter((f) => wanted === "all" || state(f) === (wanted === "open" ? "" : wanted));
  const cards = new Map();
  let at = Math.max(0, listed.findIndex((f) => !state(f)));

  const side = (name, caption) => {
    const shown = data.shown[number.get(name)];
    const image = picture(number.get(name), true, data.sprites);
    return captioned(shown >= 0 ? h("a", { href: link(`image/${shown}`), "aria-label": `Image ${shown}` }, image) : image, caption, name);
  };
  const choice = (f, decision, word, key) => h("button", { type: "button", "data-decision": decision,
    onclick: () => { at = listed.indexOf(f); choose(decision); } }, word, h("kbd", { "aria-hidden": "true" }, key));
  const card = (f) => {
    const [, reason, second] = FINDINGS[f.kind];
    const node = h("article", { class: "finding", "data-finding": listed.indexOf(f) },
      h("div", { class: "sides" }, side(f.image, f.label || "image"), number.has(f.other) && side(f.other, second(f))),
      h("div", {},
        h("p", { class: "finding-kind" }, f.kind), h("p", {}, reason(f)),
        h("p", { class: "decision", role: "status" }),
        actions(choice(f, "accepted", "Accept", "a"), choice(f, "dismissed", "Dismiss", "x"))));
    cards.set(f, node);
    fill(f);
    return node;
  };
  function fill(f) {
    const d = decisionOf(f);
    const node = cards.get(f);
    if (!node) return;
    node.classList.toggle("decided", Boolean(d?.decision));
    node.classList.toggle("current", f === listed[at]);
    node.querySelector(".decision").textContent = d?.decision ? `${d.decision}${d.author === me ? "" : ` by ${d.author}`}` : "";
    node.querySelectorAll("[data-decision]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.decision === d?.decision)));
  }
  const count = h("p", { class: "lede", role: "status" });
  function progressLine() {
    const counts = DECISIONS.map((word) => ofKind.filter((f) => state(f) === word).length);
    count.textContent = `${whole(counts[0] + counts[1])} of ${whole(ofKind.length)} checked: `
      + `${whole(counts[0])} accepted, ${whole(counts[1])} dismissed.`;
  }
  function go(n, scroll = true) {
    const old = listed[at];
    at = Math.max(0, Math.min(listed.length - 1, n));
    while (!cards.has(listed[at]) && !more.hidden) more.click();
    fill(old);
    fill(listed[at]);
    if (scroll) cards.get(listed[at])?.scrollIntoView({ block: "center", behavior: "instant" });
  }
  function choose(decision) {
    const f = listed[at];
    const again = state(f) === decision; // a second time takes it back
    decide(f, again ? "" : decision);
    fill(f);
    progressLine();
    announce(again ? "undecided" : decision);
    const next = listed.findIndex((g, n) => n > at && !state(g));
    if (!again && next >= 0) go(next);
    else go(at, false);
  }
  const press = (key) => {
    const todo = { a: () => choose("accepted"), x: () => choose("dismissed"), n: () => go(at + 1), p: () => go(at - 1) }[key];
    if (listed.length) todo?.();
    return Boolean(todo);
  };

  const [list, more] = growing(h("div", { class: "findings" }), listed, card, 12);
  const show = choices("check-show", "Show", Object.entries(TO_SHOW), wanted,
    (value) => goTo(here({ show: value === "all" ? null : value })));
  const countOf = (k) => all.filter((f) => !k || f.kind === k).length;
  const tab = (k, text) => button(`${text} (${whole(countOf(k))})`, here({ kind: k }), k === kind);
  const cut = kinds.filter((k) => data.totals[k] > countOf(k));
  progressLine();
  const node = h("div", {},
    heading("To check", count),
    intro("Accept correct findings, dismiss wrong ones. Your files are not changed. Keys: ",
      ["a", " accept, ", "x", " dismiss (again to undo), ", "n", " next, ", "p", " previous."]
        .map((part, j) => (j % 2 ? part : h("kbd", {}, part)))),
    kinds.length > 1 && actions(tab(null, "All"), kinds.map((k) => tab(k, FINDINGS[k][0]))),
    h("div", { class: "controls" }, show, exportButton()), storageHint(),
    listed.length ? [list, more] : note(all.length ? "Nothing here." : "The audit found nothing."),
    cut.map((k) => note(`${FINDINGS[k][0]}: the worst ${whole(countOf(k))} of ${whole(data.totals[k])}.`)),
    note(saves ? "Decisions are saved in names.json in the folder of codes. " : "Decisions are stored in this browser and exported with the names. ",
      h("code", {}, "bayesncl audit CODES -o check.csv"), " writes them into the column decision."));
  return { title: "To check", node, press };
}
