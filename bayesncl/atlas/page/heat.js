// Where in the picture a dimension fires: its map laid over the image.
async function paintHeat(canvas, map, [, high, wide, share]) {
  const context = canvas.getContext("2d");
  await draw(context, Number(canvas.dataset.image), 0, canvas.layout);
  if (!map) return;
  const small = h("canvas", { width: wide, height: high });
  const cells = new ImageData(wide, high);
  map.forEach((v, p) => cells.data.set([255, 120, 0, 0.75 * v], 4 * p));
  small.getContext("2d").putImageData(cells, 0, 0);
  context.imageSmoothingEnabled = true;
  const edge = (1 - share) / 2; // the encoder sees the middle of a picture
  context.drawImage(small, edge * canvas.width, edge * canvas.height, share * canvas.width, share * canvas.height);
}

// A button for each dimension that lays its map over the pictures; one at a time. targets() gives [canvas, image] pairs.
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

// On a dimension's page: all its pictures at once.
function heatSwitch(run, stage, k, wall) {
  if (!run.heat) return null;
  const box = h("input", { type: "checkbox", id: "heat", onchange: () => paint() });
  const paint = () => wall.querySelectorAll("canvas").forEach(async (canvas) => {
    const image = await loadImage(run, stage, Number(canvas.dataset.image));
    paintHeat(canvas, box.checked ? image.heat.get(k) : null, run.heat);
  });
  new MutationObserver(() => box.checked && paint()).observe(wall, { childList: true });
  return h("label", { for: "heat", class: "check" }, box, "Show where in the picture it fires");
}

function heatNote(run) {
  if (!run.heat) {
    return note(`Where in the picture a dimension fires is not shown: ${run.coldness || "these features came without positions"}.`);
  }
  const [hottest, chance] = run.check.map((share) => percent(share));
  return note(`“where?” shows how much each part of the picture, seen alone, drives the dimension, for the ${run.heat[0]} `,
    `strongest. Checked: without its hottest quarter a picture loses ${hottest} of its strongest dimension, without a `,
    `random quarter ${chance}.`);
}
