// What people and programs said about each run, in the form of names.json: what is in that file beside the codes, and what
// this browser holds, which is stored here and, if the server of bayesncl shows the page, merged into the file.
// run.said has lists by key: of a dimension, its number; of a finding of the audit (first run only), a text.
const FORMAT = "bayesncl-names-1";
const MARKS = ["readable", "mixed", "noise", "irrelevant"];
const DECISIONS = ["accepted", "dismissed"];
const LENGTHS = { name: 120, note: 2000, image: 1000, other: 1000, author: 60 }; // others: 40
const ENTRY = ["name", "note", "mark", "author", "time"];
const DECISION = ["kind", "image", "other", "decision", "author", "time"];
const saves = "saves" in document.documentElement.dataset; // the server writes names.json
let persistent = true; // a browser may refuse storage to a page on disk
let unsaved = ""; // why names.json could not be written
let saving = 0; // timer
let me = "";

function remember(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`atlas-${name}`);
    localStorage.setItem(`atlas-${name}`, value);
  } catch {
    if (value !== undefined) persistent = false;
  }
  return null;
}

// What was stored in this browser; `none` if there is nothing or it is damaged.
function recall(name, check, none = []) {
  try {
    return check(JSON.parse(remember(name))) ?? none;
  } catch {
    return none;
  }
}

function storageHint() {
  const text = persistent ? unsaved : "This browser does not store data for this page. Export your work before you close it.";
  return h("div", { class: "saved" }, text && h("p", { class: "warning", role: "alert" }, text));
}
const refreshHints = () => document.querySelectorAll(".saved").forEach((box) => box.replaceWith(storageHint()));

async function openNames() {
  remember("test", "1");
  persistent = remember("test") === "1";
  me = remember("author") || `anonymous ${Math.random().toString(36).slice(2, 6)}`;
  remember("author", me);
  let inFile = runs.map((run) => run.names);
  if (saves) inFile = await fetch("names.json").then((reply) => reply.json()).then((found) => found.codes, () => inFile);
  for (const run of runs) {
    const found = inFile.find((codes) => codes?.fingerprint === run.fingerprint);
    run.said = new Map();
    if (found) addAll(run, parseSet(found, run, true));
    addStored(run);
  }
}

function checked(found, fields) {
  if (typeof found !== "object" || found === null) throw new Error("an entry is not an object");
  const choices = { mark: MARKS, decision: DECISIONS };
  return Object.fromEntries(fields.map((field) => {
    const text = found[field] ?? "";
    if (typeof text !== "string") throw new Error(`${field} is not a text`);
    const known = !choices[field] || choices[field].includes(text);
    return [field, known ? text.slice(0, LENGTHS[field] ?? 40) : ""];
  }));
}

// One of the `codes` of a names.json as pairs of key and list. What is `filed` is not stored in this browser.
function parseSet({ dimensions, checks = [] }, run, filed = false) {
  if (typeof dimensions !== "object" || dimensions === null || Array.isArray(dimensions)) throw new Error("dimensions are missing");
  const named = Object.entries(dimensions).map(([k, entries]) => {
    if (!/^\d{1,7}$/.test(k) || Number(k) >= run.dims) throw new Error(`there is no dimension ${clip(k)}`);
    return [Number(k), entries.map((entry) => ({ ...checked(entry, ENTRY), filed }))];
  });
  const decided = checks.map((found) => [findingKey(found), [{ ...checked(found, DECISION), filed }]]);
  return [...named, ...decided];
}

// The newest of each author, oldest first.
function add(run, key, list) {
  const newest = new Map();
  for (const e of [...(run.said.get(key) || []), ...list]) {
    if (e.time >= (newest.get(e.author)?.time ?? "")) newest.set(e.author, e);
  }
  run.said.set(key, [...newest.values()].sort((a, b) => (a.time < b.time ? -1 : 1)));
}
const addAll = (run, pairs) => pairs.forEach(([key, list]) => add(run, key, list));
const addStored = (run) => addAll(run, recall(`names-${run.fingerprint}`, (found) => parseSet(found, run)));

// One of the `codes` of a names.json, with what `wanted` keeps.
function setOf(run, wanted) {
  const bare = (list) => list.filter(wanted).map(({ filed, ...e }) => e);
  const lists = [...run.said].map(([key, list]) => [key, bare(list)]).filter(([, list]) => list.length);
  const isDimension = ([key]) => Number.isInteger(key);
  return {
    fingerprint: run.fingerprint, run: run.name, dims: run.dims,
    dimensions: Object.fromEntries(lists.filter(isDimension)),
    checks: lists.filter((pair) => !isDimension(pair)).flatMap(([, list]) => list),
  };
}
const ownWords = (e) => !e.filed; // an empty entry too: it replaces an older one
const filled = (e) => e.name || e.note || e.mark || e.kind;
const namesTree = (wanted) => ({ format: FORMAT, codes: runs.map((run) => setOf(run, wanted)) });

function save(run) {
  addStored(run); // of another tab
  remember(`names-${run.fingerprint}`, JSON.stringify(setOf(run, ownWords)));
  refreshHints();
  clearTimeout(saving);
  if (saves) saving = setTimeout(post, 500); // after a pause in typing
}

function post() {
  clearTimeout(saving);
  saving = 0;
  return fetch("names.json", { method: "POST", body: JSON.stringify(namesTree(ownWords)), keepalive: true })
    .then((reply) => { unsaved = reply.ok ? "" : "The server could not save names.json. Export your names."; },
      () => { unsaved = "The server has stopped: names.json is not saved. Export your names."; })
    .then(refreshHints);
}
window.addEventListener("pagehide", () => saving && post());

const now = () => new Date().toISOString();
const findingKey = (f) => JSON.stringify([f.kind, f.image, f.other]);

// Your own decision on a finding, or else the newest.
function decisionOf(finding) {
  const all = runs[0].said.get(findingKey(finding)) || [];
  return all.find((d) => d.author === me) || all.at(-1);
}

function decide(finding, decision) {
  const { kind, image, other } = finding;
  add(runs[0], findingKey(finding), [{ kind, image, other, decision, author: me, time: now() }]);
  save(runs[0]);
}

const isProgram = (e) => e.author.startsWith("bayesncl:");

// What people and programs wrote about dimension k.
const entriesOf = (run, k) => (run.said.get(k) || []).filter(filled);
const annotated = (run) => [...run.said.keys()].filter(Number.isInteger);
const ownEntry = (run, k) => entriesOf(run, k).find((e) => e.author === me);

function setEntry(run, k, changes) {
  add(run, k, [{ ...checked({ ...ownEntry(run, k), ...changes }, ENTRY), author: me, time: now() }]);
  save(run);
}

// The entry that names k: your own, or else the newest by a person, or else the newest suggestion.
function namingEntry(run, k) {
  const entries = entriesOf(run, k).filter((e) => e.name.trim());
  return entries.find((e) => e.author === me) || entries.findLast((e) => !isProgram(e)) || entries.at(-1);
}
const nameOf = (run, k) => namingEntry(run, k)?.name.trim() || "";

// Source and score of the name of k, if a program suggested it.
function suggestionOf(run, k) {
  const e = namingEntry(run, k);
  return e && isProgram(e) ? suggestionText(e) : "";
}
const suggestionText = (e) => `${e.note || "suggested"}, from ${e.author.slice("bayesncl:".length)}`;

const markOf = (run, k) => (ownEntry(run, k)?.mark || entriesOf(run, k).findLast((e) => e.mark)?.mark || "");
const isNamed = (run, k) => Boolean(markOf(run, k) || (nameOf(run, k) && !suggestionOf(run, k)));
const namedCount = (run) => annotated(run).filter((k) => isNamed(run, k)).length;
const suggestedCount = (run) => annotated(run).filter((k) => !isNamed(run, k) && nameOf(run, k)).length;

function conflictsOf(run) {
  const differ = (k, key) => new Set(entriesOf(run, k).filter((e) => !isProgram(e))
    .map((e) => e[key].trim().toLowerCase()).filter(Boolean)).size > 1;
  return annotated(run).sort((a, b) => a - b).filter((k) => differ(k, "name") || differ(k, "mark"));
}

function renameMe(name) {
  const wanted = name.trim().slice(0, LENGTHS.author);
  if (!wanted || wanted === me) return;
  for (const run of runs) {
    addStored(run);
    for (const [key, list] of run.said) {
      const own = list.find((e) => e.author === me && filled(e));
      if (!own) continue;
      const empty = own.kind ? { decision: "" } : { name: "", note: "", mark: "" }; // deletes the old one in the file
      add(run, key, [{ ...own, author: wanted, filed: false }, { ...own, ...empty, filed: false, time: now() }]);
    }
  }
  me = wanted;
  remember("author", me);
  runs.forEach(save);
}

// Returns the numbers of imported dimensions and of skipped sets, which are for other codes.
function importNames(content) {
  const found = JSON.parse(content);
  if (found?.format !== FORMAT || !Array.isArray(found.codes)) throw new Error("it is not a names.json of an atlas");
  const known = found.codes.map((codes) => [runs.find((r) => r.fingerprint === codes?.fingerprint && r.dims === codes?.dims), codes])
    .filter(([run]) => run);
  const parsed = known.map(([run, codes]) => [run, parseSet(codes, run)]); // before anything is added
  for (const [run, pairs] of parsed) {
    addAll(run, pairs);
    save(run);
  }
  const imported = parsed.flatMap(([, pairs]) => pairs.filter(([key]) => Number.isInteger(key))).length;
  return { imported, skipped: found.codes.length - known.length };
}

function download(name, data) {
  const url = URL.createObjectURL(new Blob([`${JSON.stringify(data, null, 1)}\n`], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
const exportButton = () => h("button", { type: "button", onclick: () => download("names.json", namesTree(filled)) }, "Export names.json");
