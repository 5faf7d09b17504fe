// Draw an image with the heat map of a dimension over it.
async function paintHeat(canvas, map, [, high, wide, share]) {
  const context = canvas.getContext("2d");
  await draw(context, Number(canvas.dataset.image), 0, canvas.layout);
  if (!map) return;
  // The map covers the central `share` of the image, which the encoder sees. Inside the image, a margin of one
  // transparent cell makes it fade out instead of ending in a sharp edge.
  const margin = share < 1 || canvas.layout.sizes ? 1 : 0;
  const small = h("canvas", { width: wide + 2 * margin, height: high + 2 * margin });
  const cells = new ImageData(wide, high);
  map.forEach((v, p) => cells.data.set([255, 120, 0, 0.75 * v], 4 * p));
  small.getContext("2d").putImageData(cells, margin, margin);
  context.imageSmoothingEnabled = true;
  const square = canvas.layout.sizes && Math.min(canvas.width, canvas.height); // of a whole photo
  const [width, height] = [(square || canvas.width) * share * small.width / wide, (square || canvas.height) * share * small.height / high];
  context.drawImage(small, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
}

// A button per dimension that shows its map, one at a time. targets() returns [canvas, image] pairs.
function heatButtons(targets) {
  let pressed = null;
  return (run, k, images) => {
    if (!run.heat || !images.some((image) => image.heat.has(k))) return null;
    const button = h("button", { type: "button", class: "where", "aria-pressed": "false", "aria-label": `Where dimension ${k} fires`,
      onclick: () => {
        const on = pressed !== button;
        pressed?.setAttribute("aria-pressed", "false");
        pressed = on ? button : null;
        button.setAttribute("aria-pressed", String(on));
        for (const [canvas, image] of targets()) paintHeat(canvas, on ? image.heat.get(k) : null, run.heat);
        if (on) targets()[0][0].scrollIntoView({ block: "nearest", behavior: "instant" });
      } }, "where?");
    return button;
  };
}

// On the page of a dimension: the maps of all its images.
function heatSwitch(run, stage, k, wall) {
  if (!run.heat) return null;
  const box = h("input", { type: "checkbox", id: "heat", onchange: () => paint() });
  const paint = () => wall.querySelectorAll("canvas").forEach(async (canvas) => {
    const image = await loadImage(run, stage, Number(canvas.dataset.image));
    paintHeat(canvas, box.checked ? image.heat.get(k) : null, run.heat);
  });
  new MutationObserver(() => box.checked && paint()).observe(wall, { childList: true });
  return h("label", { for: "heat", class: "check" }, box, "Show where it fires");
}

function heatNote(run) {
  if (!run.heat) {
    return note(`No heat maps: ${run.no_heat || "the features have no positions"}.`);
  }
  const [hottest, chance] = run.check.map((share) => percent(share));
  return note(`“where?” shows how strongly each part of the image, taken alone, activates a dimension; it is there for the `,
    `${run.heat[0]} strongest. Check: graying out the hottest quarter of an image lowers its strongest dimension by ${hottest}, `,
    `a random quarter by ${chance}.`);
}
