// What people type stays in this browser: names, notes and marks by the fingerprint of the codes, and answers to the quiz.
const FORMAT = "bayesncl-names-1";
const MARKS = ["readable", "mixed", "noise"];
const LENGTHS = { name: 120, note: 2000, author: 60, time: 40 };
const MOST_ENTRIES = 64;
const MOST_BYTES = 64 * 1024 * 1024;
let keeps = true; // whether the browser keeps anything; a page opened from disk may be refused storage

function remember(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`atlas-${name}`);
    localStorage.setItem(`atlas-${name}`, value);
  } catch {
    if (value !== undefined) keeps = false;
  }
  return null;
}

function testStorage() {
  remember("test", "1");
  keeps = remember("test") === "1";
}

const storageHint = () => (keeps ? null
  : h("p", { class: "warning", role: "alert" }, "This browser keeps nothing for this page. Export before you close it."));

const said = new Map(); // fingerprint -> Map of dimension -> entries {name, note, mark, author, time}
let me = "";

function openNames() {
  testStorage();
  me = remember("author") || `someone ${Math.random().toString(36).slice(2, 6)}`;
  remember("author", me);
  for (const run of runs) said.set(run.fingerprint, stored(run));
}

// What the browser holds of a run; damaged or foreign text counts as nothing.
function stored(run) {
  try {
    return checkDimensions(JSON.parse(remember(`names-${run.fingerprint}`) || "{}"), run.dims);
  } catch {
    return new Map();
  }
}

const asText = (value, length) => {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") throw new Error("it holds something else than text");
  return value.slice(0, length);
};

function checkEntry(entry) {
  if (typeof entry !== "object" || entry === null) throw new Error("an entry is not an object");
  const clean = Object.fromEntries(Object.entries(LENGTHS).map(([key, length]) => [key, asText(entry[key], length)]));
  return { ...clean, mark: MARKS.includes(entry.mark) ? entry.mark : "" };
}

function checkDimensions(found, dims) {
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error("dimensions are missing");
  const dimensions = new Map();
  for (const [key, entries] of Object.entries(found)) {
    if (!/^\d{1,7}$/.test(key) || Number(key) >= dims) throw new Error(`there is no dimension ${clip(key)}`);
    if (!Array.isArray(entries)) throw new Error("entries must be a list");
    dimensions.set(Number(key), joinEntries(entries.slice(0, MOST_ENTRIES).map(checkEntry)));
  }
  return dimensions;
}

// One entry an author, the newest; what different people said stands side by side.
function joinEntries(entries) {
  const newest = new Map();
  for (const e of entries) if (e.time >= (newest.get(e.author) ?? "")) newest.set(e.author, e.time);
  const held = new Map();
  for (const e of entries) if (e.time === newest.get(e.author)) held.set(JSON.stringify(Object.values(e)), e);
  return [...held.values()].sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : a.author < b.author ? -1 : 1));
}

function mergeInto(dimensions, other) {
  for (const [k, entries] of other) dimensions.set(k, joinEntries([...(dimensions.get(k) || []), ...entries]));
}

// Another page may have written meanwhile: what is stored is joined first.
function saveNames(run) {
  const dimensions = said.get(run.fingerprint);
  mergeInto(dimensions, stored(run));
  remember(`names-${run.fingerprint}`, JSON.stringify(Object.fromEntries(dimensions)));
}

// An entry without words is kept as one that takes back what was said before.
const entriesOf = (run, k) => (said.get(run.fingerprint).get(k) || []).filter((e) => e.name || e.note || e.mark);
const ownEntry = (run, k) => entriesOf(run, k).find((e) => e.author === me);

function setEntry(run, k, changes) {
  const dimensions = said.get(run.fingerprint);
  const old = dimensions.get(k) || [];
  const own = old.find((e) => e.author === me) || { name: "", note: "", mark: "" };
  const entry = checkEntry({ ...own, ...changes, author: me, time: new Date().toISOString() });
  dimensions.set(k, [...old.filter((e) => e.author !== me), entry]);
  saveNames(run);
}

// One's own name first, else the newest of another's.
function nameOf(run, k) {
  const entries = entriesOf(run, k).filter((e) => e.name.trim());
  return (entries.find((e) => e.author === me) || entries.at(-1))?.name.trim() || "";
}

const markOf = (run, k) => (ownEntry(run, k)?.mark || entriesOf(run, k).findLast((e) => e.mark)?.mark || "");
const isNamed = (run, k) => Boolean(nameOf(run, k) || markOf(run, k));
const namedCount = (run) => [...said.get(run.fingerprint).keys()].filter((k) => isNamed(run, k)).length;

function conflictsOf(run) {
  const differ = (entries, key) => new Set(entries.map((e) => e[key].trim().toLowerCase()).filter(Boolean)).size > 1;
  return [...said.get(run.fingerprint).keys()].sort((a, b) => a - b)
    .filter((k) => differ(entriesOf(run, k), "name") || differ(entriesOf(run, k), "mark"));
}

function renameMe(name) {
  const wanted = name.trim().slice(0, LENGTHS.author);
  if (!wanted || wanted === me) return;
  const former = me;
  for (const run of runs) {
    const dimensions = said.get(run.fingerprint);
    mergeInto(dimensions, stored(run));
    for (const [k, entries] of dimensions) {
      dimensions.set(k, joinEntries(entries.map((e) => (e.author === former ? { ...e, author: wanted } : e))));
    }
    remember(`names-${run.fingerprint}`, JSON.stringify(Object.fromEntries(dimensions)));
  }
  me = wanted;
  remember("author", me);
}

function exportNames() {
  const codes = runs.map((run) => ({
    fingerprint: run.fingerprint, run: run.name, dims: run.dims,
    dimensions: Object.fromEntries([...said.get(run.fingerprint)].filter(([k]) => entriesOf(run, k).length)),
  }));
  return { format: FORMAT, codes };
}

// Returns how many dimensions were spoken of, and how many codes in the file are not of this atlas.
function importNames(content) {
  const found = JSON.parse(content);
  if (found?.format !== FORMAT || !Array.isArray(found.codes)) throw new Error("it is no names.json of an atlas");
  let taken = 0;
  let strange = 0;
  const checked = found.codes.map((codes) => {
    const run = runs.find((r) => r.fingerprint === codes?.fingerprint && r.dims === codes?.dims);
    if (!run) strange++;
    return run && [run, checkDimensions(codes.dimensions, run.dims)];
  });
  for (const [run, dimensions] of checked.filter(Boolean)) { // all of it is checked before any of it is taken
    taken += dimensions.size;
    mergeInto(said.get(run.fingerprint), dimensions);
    saveNames(run);
  }
  return { taken, strange };
}

function download(name, data) {
  const url = URL.createObjectURL(new Blob([`${JSON.stringify(data, null, 1)}\n`], { type: "application/json" }));
  const anchor = h("a", { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
