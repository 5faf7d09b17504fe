// Names, notes, marks and quiz answers, in the storage of the browser, by fingerprint of the codes.
const FORMAT = "bayesncl-names-1";
const MARKS = ["readable", "mixed", "noise", "irrelevant"];
const LENGTHS = { name: 120, note: 2000, author: 60, time: 40 };
let persistent = true; // a browser may refuse storage to a page on disk

function remember(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`atlas-${name}`);
    localStorage.setItem(`atlas-${name}`, value);
  } catch {
    if (value !== undefined) persistent = false;
  }
  return null;
}

function testStorage() {
  remember("test", "1");
  persistent = remember("test") === "1";
}

const storageHint = () => (persistent ? null
  : h("p", { class: "warning", role: "alert" }, "This browser does not store data for this page. Export your work before you close it."));

const annotations = new Map(); // fingerprint -> Map of dimension -> entries {name, note, mark, author, time}
let me = "";

function openNames() {
  testStorage();
  me = remember("author") || `anonymous ${Math.random().toString(36).slice(2, 6)}`;
  remember("author", me);
  for (const run of runs) annotations.set(run.fingerprint, stored(run));
}

// Stored entries of a run; none if they are damaged.
function stored(run) {
  try {
    return checkDimensions(JSON.parse(remember(`names-${run.fingerprint}`) || "{}"), run.dims);
  } catch {
    return new Map();
  }
}

const asText = (value, length) => {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") throw new Error("expected text");
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
    dimensions.set(Number(key), joinEntries(entries.map(checkEntry)));
  }
  return dimensions;
}

// The newest entry of each author.
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

// Merge with what another tab may have stored.
function saveNames(run) {
  const dimensions = annotations.get(run.fingerprint);
  mergeInto(dimensions, stored(run));
  remember(`names-${run.fingerprint}`, JSON.stringify(Object.fromEntries(dimensions)));
}

// An empty entry is stored too: it replaces an older one.
const entriesOf = (run, k) => (annotations.get(run.fingerprint).get(k) || []).filter((e) => e.name || e.note || e.mark);
const ownEntry = (run, k) => entriesOf(run, k).find((e) => e.author === me);

function setEntry(run, k, changes) {
  const dimensions = annotations.get(run.fingerprint);
  const old = dimensions.get(k) || [];
  const own = old.find((e) => e.author === me) || { name: "", note: "", mark: "" };
  const entry = checkEntry({ ...own, ...changes, author: me, time: new Date().toISOString() });
  dimensions.set(k, [...old.filter((e) => e.author !== me), entry]);
  saveNames(run);
}

// Your own name, or else the newest one.
function nameOf(run, k) {
  const entries = entriesOf(run, k).filter((e) => e.name.trim());
  return (entries.find((e) => e.author === me) || entries.at(-1))?.name.trim() || "";
}

const markOf = (run, k) => (ownEntry(run, k)?.mark || entriesOf(run, k).findLast((e) => e.mark)?.mark || "");
const isNamed = (run, k) => Boolean(nameOf(run, k) || markOf(run, k));
const namedCount = (run) => [...annotations.get(run.fingerprint).keys()].filter((k) => isNamed(run, k)).length;

function conflictsOf(run) {
  const differ = (entries, key) => new Set(entries.map((e) => e[key].trim().toLowerCase()).filter(Boolean)).size > 1;
  return [...annotations.get(run.fingerprint).keys()].sort((a, b) => a - b)
    .filter((k) => differ(entriesOf(run, k), "name") || differ(entriesOf(run, k), "mark"));
}

function renameMe(name) {
  const wanted = name.trim().slice(0, LENGTHS.author);
  if (!wanted || wanted === me) return;
  const former = me;
  for (const run of runs) {
    const dimensions = annotations.get(run.fingerprint);
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
    dimensions: Object.fromEntries([...annotations.get(run.fingerprint)].filter(([k]) => entriesOf(run, k).length)),
  }));
  return { format: FORMAT, codes };
}

// Returns the numbers of imported dimensions and of skipped sets, which are for other codes.
function importNames(content) {
  const found = JSON.parse(content);
  if (found?.format !== FORMAT || !Array.isArray(found.codes)) throw new Error("it is not a names.json of an atlas");
  let imported = 0;
  let skipped = 0;
  const checked = found.codes.map((codes) => {
    const run = runs.find((r) => r.fingerprint === codes?.fingerprint && r.dims === codes?.dims);
    if (!run) skipped++;
    return run && [run, checkDimensions(codes.dimensions, run.dims)];
  });
  for (const [run, dimensions] of checked.filter(Boolean)) { // after everything was checked
    imported += dimensions.size;
    mergeInto(annotations.get(run.fingerprint), dimensions);
    saveNames(run);
  }
  return { imported, skipped };
}

function download(name, data) {
  const url = URL.createObjectURL(new Blob([`${JSON.stringify(data, null, 1)}\n`], { type: "application/json" }));
  const anchor = h("a", { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
