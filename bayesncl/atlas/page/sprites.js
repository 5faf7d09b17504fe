// Pictures are canvases cut from sprite sheets: crisp when enlarged, and printed like any image.
const sheets = new Map();

function sheet(s) {
  if (!sheets.has(s)) {
    const image = new Image();
    image.src = atlas.sprites.files[s];
    sheets.set(s, image.decode().then(() => image));
  }
  return sheets.get(s);
}

function draw(context, i, x = 0) {
  const { columns, rows, tile, size } = atlas.sprites;
  const place = i % (columns * rows);
  return sheet(Math.floor(i / (columns * rows))).then((image) => {
    const left = (place % columns) * tile[1];
    const top = Math.floor(place / columns) * tile[0];
    context.drawImage(image, left, top, size[1], size[0], x, 0, size[1], size[0]);
  }).catch(() => say("A sheet of pictures could not be read."));
}

function picture(i) {
  const [height, width] = atlas.sprites.size;
  const canvas = h("canvas", { width, height, class: "picture", "data-image": i });
  draw(canvas.getContext("2d"), i);
  return canvas;
}

// Several pictures in one canvas, for rows where they are seen in passing.
function strip(images, label) {
  if (!images.length) return h("span", { class: "none" }, "–");
  const [height, width] = atlas.sprites.size;
  const gap = Math.max(1, Math.round(width / 16));
  const canvas = h("canvas", {
    width: Math.max(1, images.length * (width + gap) - gap), height, class: "strip", role: "img", "aria-label": label,
  });
  const context = canvas.getContext("2d");
  canvas.style.setProperty("--n", images.length);
  canvas.style.aspectRatio = `${canvas.width} / ${height}`;
  images.forEach((i, j) => draw(context, i, j * (width + gap)));
  return canvas;
}

// A picture inside a drawing, centred on its origin.
function cutout(i, side) {
  const { columns, rows, tile, size, files } = atlas.sprites;
  const number = Math.floor(i / (columns * rows));
  const place = i % (columns * rows);
  const held = Math.min(columns * rows, atlas.count - number * columns * rows);
  return svg("svg", {
    x: -side / 2, y: -side / 2, width: side, height: side, preserveAspectRatio: "xMidYMid slice",
    viewBox: `${(place % columns) * tile[1]} ${Math.floor(place / columns) * tile[0]} ${size[1]} ${size[0]}`,
  }, svg("image", { href: files[number], width: columns * tile[1], height: Math.ceil(held / columns) * tile[0] }));
}

function labelOf(i) {
  const y = atlas.classes && atlas.labels[i];
  return y ? atlas.classes[y - 1] : null;
}

function backgroundOf(i) {
  const b = atlas.backgrounds && atlas.backs[i];
  return b ? atlas.backgrounds[b - 1] : null;
}

function imageTitle(i) {
  return [`Image ${i}`, labelOf(i), backgroundOf(i) && `on ${backgroundOf(i)}`].filter(Boolean).join(", ");
}

// A picture that leads to its page, with a line below; a closed gate is marked by a slash and in words.
function thumb(i, { caption, href, closed = false } = {}) {
  const title = imageTitle(i) + (closed ? ", gate closed" : "");
  return h("a", { class: closed ? "thumb closed" : "thumb", href: href || link(`image/${i}`), "aria-label": title, title },
    picture(i), caption !== undefined && h("span", { class: "caption" }, caption));
}
