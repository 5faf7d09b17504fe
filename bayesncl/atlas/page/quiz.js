// The intruder quiz: four images that a dimension fires on strongly, and one that it does not.
const ROUND = 20;
const quizKey = () => `quiz-${runs.map((run) => run.fingerprint).join("-").slice(0, 200)}`;
let answers = null;

function openAnswers() {
  const number = (x, most) => Number.isInteger(x) && x >= 0 && x < most;
  answers ??= recall(quizKey(), (found) => found.filter((a) => number(a?.chosen, 5) && number(a.intruder, 5) && number(a.dim, 1e7)
    && runs.some((run) => run.fingerprint === a.codes)));
  return answers;
}

const shuffled = (list) => {
  const all = [...list];
  for (let i = all.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [all[i], all[j]] = [all[j], all[i]];
  }
  return all;
};

// The same number of questions per run, shuffled; new questions first.
async function drawRound() {
  const parts = await Promise.all(runs.map((run) => load(`${run.key}-quiz`)));
  const known = new Set(openAnswers().map((a) => `${a.codes} ${[...a.images].sort()}`));
  const pools = parts.map((part, r) => {
    const all = shuffled([...part.dims.keys()]).map((q) => {
      const images = [...part.images.subarray(5 * q, 5 * q + 5)];
      return { run: runs[r], dim: part.dims[q], images, odd: part.odd[q], asked: known.has(`${runs[r].fingerprint} ${[...images].sort()}`) };
    });
    return all.sort((a, b) => a.asked - b.asked);
  }).filter((pool) => pool.length);
  if (!pools.length) throw new Error("No dimension fires on enough images for a quiz.");
  const each = Math.ceil(ROUND / pools.length);
  return shuffled(pools.flatMap((pool) => pool.slice(0, each))).slice(0, ROUND);
}

// 95 % Wilson interval of a share.
function wilson(right, asked) {
  if (!asked) return [0, 1];
  const z = 1.959964;
  const p = right / asked;
  const middle = (p + (z * z) / (2 * asked)) / (1 + (z * z) / asked);
  const half = (z / (1 + (z * z) / asked)) * Math.sqrt((p * (1 - p)) / asked + (z * z) / (4 * asked * asked));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

async function viewQuiz({ args }) {
  if (args[0] === "results") return { title: "Quiz results", node: quizResults() };
  const round = await drawRound();
  let at = 0;
  let begun = 0;
  const stage = h("div", { class: "quiz" });
  const node = h("div", {},
    heading("Which one does not belong?"),
    note("Four of these images strongly activate the same dimension, one does not. Click that one or press 1 to 5; guess if ",
      "unsure. The results name the dimensions."),
    storageHint(), stage);

  function ask() {
    const { images } = round[at];
    const order = shuffled([0, 1, 2, 3, 4]);
    begun = performance.now();
    stage.replaceChildren(
      h("div", { class: "five" }, order.map((o, place) =>
        h("button", { type: "button", class: "choice", "aria-label": `Image ${place + 1}`,
          "data-image": images[o], onclick: () => answer(order, place) }, picture(images[o], true)))),
      h("p", { class: "note", role: "status" }, `Question ${at + 1} of ${round.length}`));
    at > 0 && stage.querySelector("button").focus({ preventScroll: true });
  }
  function answer(order, chosen) {
    const { run, dim, images, odd } = round[at];
    openAnswers().push({
      codes: run.fingerprint, run: run.name, dim, images: order.map((o) => images[o]), intruder: order.indexOf(odd), chosen,
      seconds: Math.round((performance.now() - begun) / 100) / 10, time: new Date().toISOString(),
    });
    remember(quizKey(), JSON.stringify(answers));
    at++;
    if (at < round.length) ask();
    else goTo(link("quiz/results"));
  }
  ask();
  const press = (key) => /^[1-5]$/.test(key) && stage.querySelectorAll(".choice")[Number(key) - 1]?.click();
  return { title: "Quiz", node, press };
}

function quizResults() {
  const all = openAnswers();
  const share = (list) => {
    const right = list.filter((a) => a.chosen === a.intruder).length;
    const [low, high] = wilson(right, list.length);
    return [`${whole(right)} of ${whole(list.length)}`, percent(right / list.length), `${percent(low)} to ${percent(high)}`];
  };
  const head = ["#Found", "#Share", "#95 % interval"];
  const methods = runs.map((run) => [run, all.filter((a) => a.codes === run.fingerprint)]).filter(([, list]) => list.length);
  const dims = methods.flatMap(([run, list]) => [...new Set(list.map((a) => a.dim))].map((k) =>
    ({ run, k, list: list.filter((a) => a.dim === k) })))
    .sort((a, b) => b.list.length - a.list.length || a.k - b.k);
  const byDim = longTable("By dimension", ["Dimension", "Strongest images", ...head], dims, ({ run, k, list }) => tableRow(k,
    [h("a", { href: dimensionLink(run, k) }, dimensionLabel(run, k)), runs.length > 1 && h("small", {}, ` ${run.name}`)],
    [linkedStrip(run, "before", k, 5)], share(list)), 20);
  const forget = () => {
    if (!confirm("Delete all answers stored in this browser?")) return;
    answers = [];
    remember(quizKey(), "[]");
    show();
  };
  return h("div", {},
    heading("Quiz results", lede(all.length ? `${plural(all.length, "answer")}. Chance is 20 %.` : "No answers yet.")),
    storageHint(),
    methods.length > 0 && section("By method",
      table("By method", ["Method", ...head], h("tbody", {}, methods.map(([run, list]) => tableRow(null, run.name, [], share(list)))))),
    actions(button("Another round", link("quiz")),
      all.length > 0 && h("button", { type: "button", onclick: () => download("quiz.json",
        { format: "bayesncl-quiz-1", atlas: atlas.title, author: me, answers: all }) }, "Export quiz.json"),
      all.length > 0 && h("button", { type: "button", onclick: forget }, "Delete the answers")),
    all.length > 0 && note("To merge the results of several people: bayesncl quiz FILE…"),
    dims.length > 0 && section("By dimension", byDim));
}
