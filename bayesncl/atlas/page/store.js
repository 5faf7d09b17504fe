// Names, notes, marks and decisions by fingerprint of the codes: those in names.json beside the codes, and those of this browser,
// which are stored here and, if the server of bayesncl shows the page, merged into that file.
const FORMAT = "bayesncl-names-1";
const MARKS = ["readable", "mixed", "noise", "irrelevant"];
const DECISIONS = ["accepted", "dismissed"];
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

let unsaved = ""; // why names.json could not be written

function storageHint() {
  const text = persistent ? unsaved : "This browser does not store data for this page. Export your work before you close it.";
  return text ? h("p", { class: "warning", role: "alert" }, text) : null;
}

const annotations = new Map(); // fingerprint -> Map of dimension -> entries {name, note, mark, author, time, filed}
const decided = new Map(); // finding of the audit -> decisions {kind, image, other, decision, author, time}
const saves = "saves" in document.documentElement.dataset; // the server writes names.json
let me = "";

async function openNames() {
  testStorage();
  me = remember("author") || `anonymous ${Math.random().toString(36).slice(2, 6)}`;
  remember("author", me);
  let inFile = runs.map((run) => run.names);
  if (saves) inFile = await fetch("names.json").then((reply) => reply.json()).then((found) => found.codes, () => inFile);
  for (const run of runs) {
    const found = inFile.find((codes) => codes?.fingerprint === run.fingerprint);
    annotations.set(run.fingerprint, new Map());
    addEntries(run, checkDimensions(found?.dimensions || {}, run.dims, true));
    addEntries(run, storedEntries(run));
    if (run === runs[0]) addDecisions([...(found?.checks || []), ...storedDecisions()]);
  }
}

// The newest of each author, oldest first.
function newest(list) {
  const held = new Map();
  for (const e of list) if (e.time >= (held.get(e.author)?.time ?? "")) held.set(e.author, e);
  return [...held.values()].sort((a, b) => (a.time < b.time ? -1 : 1));
}

// What was stored in this browser; nothing if it is damaged.
function recall(key, check) {
  try {
    return check(JSON.parse(remember(key)) ?? undefined);
  } catch {
    return check();
  }
}

const findingKey = (f) => JSON.stringify([f.kind, f.image, f.other]);
const decisionsKey = () => `checks-${runs[0].fingerprint}`;
const storedDecisions = () => recall(decisionsKey(), (found = []) => found.map(checkDecision));

function checkDecision(found) {
  if (typeof found !== "object" || found === null) throw new Error("a decision is not an object");
  const clean = Object.fromEntries(["kind", "image", "other", "author", "time"].map((key) => [key, asText(found[key], 1000)]));
  return { ...clean, decision: DECISIONS.includes(found.decision) ? found.decision : "" };
}

function addDecisions(list) {
  for (const found of list) {
    const key = findingKey(found);
    decided.set(key, newest([...(decided.get(key) || []), found]));
  }
}

// Your own decision on a finding, or else the newest.
function decisionOf(finding) {
  const all = decided.get(findingKey(finding)) || [];
  return all.find((d) => d.author === me) || all.at(-1);
}

function decide(finding, decision) {
  const { kind, image, other } = finding;
  addDecisions(storedDecisions()); // of another tab
  addDecisions([{ kind, image, other, decision, author: me, time: new Date().toISOString() }]);
  saveDecisions();
}

function saveDecisions() {
  remember(decisionsKey(), JSON.stringify([...decided.values()].flat()));
  saveSoon();
}

let saving = 0;

// Post what this browser holds, after a pause in typing.
function saveSoon() {
  if (!saves) return;
  clearTimeout(saving);
  saving = setTimeout(saveNow, 500);
}

function saveNow() {
  clearTimeout(saving);
  saving = 0;
  return fetch("names.json", { method: "POST", body: JSON.stringify(namesTree(ownEntries)), keepalive: true })
    .then((reply) => { unsaved = reply.ok ? "" : "The server could not save names.json. Export your names."; },
      () => { unsaved = "The server has stopped: names.json is not saved. Export your names."; })
    .then(() => document.querySelectorAll(".saved").forEach((box) => box.replaceChildren(...[storageHint()].filter(Boolean))));
}
window.addEventListener("pagehide", () => saving && saveNow());

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

// `filed` entries are those of names.json, which this browser does not store.
function checkDimensions(found, dims, filed = false) {
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error("dimensions are missing");
  return new Map(Object.entries(found).map(([key, entries]) => {
    if (!/^\d{1,7}$/.test(key) || Number(key) >= dims) throw new Error(`there is no dimension ${clip(key)}`);
    if (!Array.isArray(entries)) throw new Error("entries must be a list");
    return [Number(key), entries.map((entry) => ({ ...checkEntry(entry), filed }))];
  }));
}

const storedEntries = (run) => recall(`names-${run.fingerprint}`, (found = {}) => checkDimensions(found, run.dims));

function addEntries(run, dimensions) {
  const all = annotations.get(run.fingerprint);
  for (const [k, entries] of dimensions) all.set(k, newest([...(all.get(k) || []), ...entries]));
}

// The entries of all dimensions that `wanted` keeps, as JSON has them.
function entriesTree(run, wanted) {
  const lists = [...annotations.get(run.fingerprint)].map(([k, entries]) =>
    [k, entries.filter(wanted).map(({ filed, ...entry }) => entry)]);
  return Object.fromEntries(lists.filter(([, entries]) => entries.length));
}
const ownEntries = (e) => !e.filed; // an empty one too: it replaces an older one
const filled = (e) => e.name || e.note || e.mark;

function saveNames(run) {
  addEntries(run, storedEntries(run)); // of another tab
  remember(`names-${run.fingerprint}`, JSON.stringify(entriesTree(run, ownEntries)));
  saveSoon();
}

const isProgram = (e) => e.author.startsWith("bayesncl:");

// What people and programs wrote about dimension k.
const entriesOf = (run, k) => (annotations.get(run.fingerprint).get(k) || []).filter(filled);
const annotated = (run) => [...annotations.get(run.fingerprint).keys()];
const ownEntry = (run, k) => entriesOf(run, k).find((e) => e.author === me);

function setEntry(run, k, changes) {
  const entry = checkEntry({ ...ownEntry(run, k), ...changes, author: me, time: new Date().toISOString() });
  addEntries(run, [[k, [entry]]]);
  saveNames(run);
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
  const [former, time] = [me, new Date().toISOString()];
  for (const run of runs) {
    addEntries(run, storedEntries(run));
    for (const k of annotated(run)) {
      const own = ownEntry(run, k); // an empty entry deletes the old one in the file
      if (own) addEntries(run, [[k, [{ ...own, author: wanted, filed: false }, checkEntry({ author: former, time })]]]);
    }
    saveNames(run);
  }
  for (const list of [...decided.values()]) {
    const own = list.find((d) => d.author === former);
    if (own) addDecisions([{ ...own, author: wanted }, { ...own, decision: "", time }]);
  }
  me = wanted;
  remember("author", me);
  saveDecisions();
}

const namesTree = (wanted) => ({
  format: FORMAT,
  codes: runs.map((run) => ({
    fingerprint: run.fingerprint, run: run.name, dims: run.dims, dimensions: entriesTree(run, wanted),
    checks: run === runs[0] ? [...decided.values()].flat() : [],
  })),
});

const exportNames = () => namesTree(filled);

// Returns the numbers of imported dimensions and of skipped sets, which are for other codes.
function importNames(content) {
  const found = JSON.parse(content);
  if (found?.format !== FORMAT || !Array.isArray(found.codes)) throw new Error("it is not a names.json of an atlas");
  let imported = 0;
  let skipped = 0;
  const checked = found.codes.map((codes) => {
    const run = runs.find((r) => r.fingerprint === codes?.fingerprint && r.dims === codes?.dims);
    if (!run) skipped++;
    return run && [run, checkDimensions(codes.dimensions, run.dims), (codes.checks || []).map(checkDecision)];
  });
  for (const [run, dimensions, decisions] of checked.filter(Boolean)) { // after everything was checked
    imported += dimensions.size;
    if (run === runs[0]) addDecisions(decisions);
    saveDecisions();
    addEntries(run, dimensions);
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
