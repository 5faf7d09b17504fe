// Data files are scripts that call atlasData(key, tree), because a page on disk cannot fetch files. In an atlas of a
// single file, data and pictures are elements of the page, with the names of the files as ids.
const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int16: Int16Array, float32: Float32Array };
const inside = (file) => document.getElementById(file)?.textContent;
const loaded = new Map(); // key -> Promise of its data
const arriving = new Map(); // key -> resolve

window.atlasData = (key, tree) => {
  arriving.get(key)?.(unpack(tree));
  arriving.delete(key);
};

// Turn {array: type, base64: text} into typed arrays, in place.
function unpack(tree) {
  if (typeof tree !== "object" || tree === null) return tree;
  if (typeof tree.base64 === "string") return new ARRAYS[tree.array](decode(tree.base64).buffer);
  for (const [key, value] of Object.entries(tree)) tree[key] = unpack(value);
  return tree;
}

const decode = (text) => Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function load(key) {
  if (!loaded.has(key)) {
    loaded.set(key, new Promise((resolve, reject) => {
      arriving.set(key, resolve);
      const text = inside(`data/${key}`);
      if (text) {
        window.atlasData(...JSON.parse(text));
        return;
      }
      const script = document.createElement("script");
      script.src = `data/${key}.js`;
      script.onerror = () => {
        loaded.delete(key);
        reject(new Error(`cannot read data/${key}.js`));
      };
      script.onload = () => script.remove();
      document.head.append(script);
    }));
  }
  return loaded.get(key);
}

const single = Boolean(inside("data/atlas"));
let atlas; // the images and the list of runs
const runs = []; // per run: its numbers by dimension

async function openAtlas() {
  atlas = await load("atlas");
  const parts = await Promise.all(atlas.runs.map((_, r) => load(`run${r}`)));
  parts.forEach((part, r) => runs.push({ ...atlas.runs[r], ...part, key: `run${r}`, number: r }));
  for (const run of runs) {
    for (const s of stagesOf(run).map((stage) => run[stage])) {
      s.total = s.mass.reduce((a, b) => a + b, 0) || 1;
      s.heaviest = s.mass.reduce((a, b) => Math.max(a, b), 0) || 1;
    }
  }
  if (single && !inside(atlas.large?.files[0])) atlas.large = null;
  if (atlas.classes) atlas.sizes = tally(atlas.labels, atlas.classes.length);
  if (atlas.backgrounds) atlas.grounds = tally(atlas.backs, atlas.backgrounds.length);
}

// Images per class; label 0 is none.
function tally(labels, width) {
  const sizes = new Array(width).fill(0);
  for (const y of labels) if (y) sizes[y - 1]++;
  return sizes;
}

const bit = (bytes, i) => (bytes[i >> 3] >> (i & 7)) & 1;
const stagesOf = (run) => (run.after ? ["before", "after"] : ["before"]);
const stageOf = (run) => (run.after ? route.stage : "before");
const rowOf = (a, row, height) => a.subarray((row * a.length) / height, ((row + 1) * a.length) / height);

// The file of item i, and its row there.
async function loadFile(key, i, size) {
  const part = await load(`${key}-${Math.floor(i / size)}`);
  return [part, i % size];
}

// All files of images.
const loadParts = (key) => Promise.all([...Array(Math.ceil(atlas.count / atlas.files.images)).keys()].map((f) => load(`${key}-${f}`)));

// Strongest images, distribution and similar dimensions of dimension k.
async function loadDimension(run, stage, k) {
  const [file, row] = await loadFile(`${run.key}-dims`, k, atlas.files.dims);
  const part = file[stage];
  const of = (key) => rowOf(part[key], row, part.edges.length / 2);
  const [index, value, cosine, [low, high]] = ["index", "value", "cosine", "edges"].map(of);
  const top = [...index].map((image, j) => ({
    image, value: value[j] / atlas.scale, open: part.open ? bit(part.open, row * index.length + j) : 1,
  })).filter((t) => t.value > 0);
  const near = [...of("near")].map((dim, j) => ({ dim, cosine: cosine[j] / atlas.scale }));
  return { top, near, low, high, histogram: of("histogram") };
}

// The stored features of image i, strongest first, and its nearest images.
async function loadImage(run, stage, i) {
  const [part, row] = await loadFile(`${run.key}-images`, i, atlas.files.images);
  const count = part.start.length - 1;
  const of = (tree, key) => rowOf(tree[key], row, count);
  const features = [];
  for (let e = part.start[row]; e < part.start[row + 1]; e++) {
    const before = part.z[e] / atlas.scale;
    const after = part.gated ? part.gated[e] / atlas.scale : before;
    features.push({ dim: part.dims[e], before, after, open: part.open ? bit(part.open, e) : 1 });
  }
  const similarity = of(part[stage], "similarity");
  const near = [...of(part[stage], "near")].map((image, j) => ({ image, similarity: similarity[j] / atlas.scale }));
  const hot = run.heat ? [...of(part.hot, "dims")] : [];
  // dimension -> map of where it fires, 0 to 255, row by row
  const heat = new Map(hot.map((k, j) => [k, rowOf(of(part.hot, "maps"), j, hot.length)]));
  return { features, near, heat, covered: { before: part.covered[row], after: part.covered[count + row] } };
}

async function imageName(i) {
  if (!atlas.named) return null;
  const [part, row] = await loadFile("names", i, atlas.files.images);
  return part.names[row];
}

// Images per class ("classes") or background ("backgrounds") that dimension k fires on; null without labels.
async function loadCounts(run, stage, what, k) {
  return atlas[what] && rowOf((await load(`${run.key}-classes`))[stage][what], k, run.dims);
}
