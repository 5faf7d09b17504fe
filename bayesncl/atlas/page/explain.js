// The dimensions that a classifier uses, as `bayesncl explain` found them.
async function viewExplain({ run, stage }) {
  if (!run.explain) throw new Error("Run bayesncl explain on these codes, then bayesncl atlas again.");
  const { scores, weights, group_share: share } = run.explain;
  const one = (value) => (value === null ? "–" : `${fixed(value, 1)} %`);
  const accuracy = table("Accuracy on held-out images", ["Classifier", "#All images", share === null ? "#Worst class" : "#Worst group"],
    h("tbody", {}, Object.entries(scores).map(([name, score]) => tableRow(null, name, [], [one(score.average),
      one(score.worst) + (score.where ? ` (${score.where})` : "")]))));
  const line = (w) => [`weight ${w.weight > 0 ? "+" : "−"}${fixed(Math.abs(w.weight), 2)}`,
    w.group && `about ${w.group}`, markOf(run, w.dimension) === "irrelevant" && "irrelevant"]
    .filter(Boolean).join(" · ");
  const tiles = (title, found) => found.length > 0 && [h("h3", {}, title),
    h("div", { class: "tiles" }, found.slice(0, 6).map((w) => dimensionTile(run, stage, w.dimension, line(w))))];
  const classes = [...new Set(weights.map((w) => w.label))];
  const part = (label) => {
    const own = weights.filter((w) => w.label === label && Math.abs(w.weight) >= 0.005); // others show as 0.00
    return section(label, tiles("For", own.filter((w) => w.weight > 0)), tiles("Against", own.filter((w) => w.weight < 0)));
  };
  const node = h("div", {},
    heading("Classifier", lede("A sparse linear classifier on these codes, and the dimensions it uses.")),
    section("Accuracy on held-out images", accuracy,
      share !== null && note(`Dimensions about a group carry ${fixed(share, 0)} % of the weight.`),
      note("To switch a dimension off, mark it as irrelevant on its page and run bayesncl explain again.")),
    growing(h("div", {}), classes, part, 10));
  return { title: "Classifier", node };
}
