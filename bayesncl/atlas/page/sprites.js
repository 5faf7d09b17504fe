// Images are canvases cut from sprite sheets: crisp when enlarged, and printable.
const sheets = new Map();
const addresses = new Map();

function addressOf(file) {
  if (!single) return file;
  if (!addresses.has(file)) {
    const bytes = decode(inside(file));
    const type = bytes[0] === 0x89 ? "image/png" : "image/jpeg";
    addresses.set(file, URL.createObjectURL(new Blob([bytes], { type })));
  }
  return addresses.get(file);
}

function sheet(file) {
  if (!sheets.has(file)) {
    const image = new Image();
    image.src = addressOf(file);
    sheets.set(file, image.decode().then(() => image));
  }
  return sheets.get(file);
}

// The sheet of image i and its position on it.
function placeOf(i, layout = atlas.sprites) {
  const { columns, rows, tile, size: square, sizes, files, count } = layout;
  const place = layout === atlas.sprites ? atlas.place[i] : i;
  const number = Math.floor(place / (columns * rows));
  const cell = place % (columns * rows);
  const held = Math.min(columns * rows, count - number * columns * rows);
  const size = sizes ? sizes.subarray(2 * place, 2 * place + 2) : square;
  return {
    file: files[number], left: (cell % columns) * tile[1], top: Math.floor(cell / columns) * tile[0], size,
    width: columns * tile[1], height: Math.ceil(held / columns) * tile[0],
  };
}

function draw(context, i, x = 0, layout = atlas.sprites) {
  const { file, left, top, size } = placeOf(i, layout);
  return sheet(file)
    .then((image) => context.drawImage(image, left, top, size[1], size[0], x, 0, size[1], size[0]))
    .catch(() => announce("Cannot read a file with images."));
}

// `large` shows a larger version, if there is one: a photo as a whole, not its central square.
function picture(i, large = false, layout = (large && atlas.large) || atlas.sprites) {
  const [height, width] = placeOf(i, layout).size;
  const canvas = h("canvas", { width, height, class: layout.sizes ? "picture whole" : "picture", "data-image": i });
  canvas.style.setProperty("--wide", width / Math.max(width, height)); // of a square box around it
  canvas.layout = layout;
  draw(canvas.getContext("2d"), i, 0, layout);
  return canvas;
}

// Several images in one canvas.
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

// An image inside an SVG, centered on the origin.
function cutout(i, side) {
  const { file, left, top, size, width, height } = placeOf(i);
  return svg("svg", {
    x: -side / 2, y: -side / 2, width: side, height: side, preserveAspectRatio: "xMidYMid slice",
    viewBox: `${left} ${top} ${size[1]} ${size[0]}`,
  }, svg("image", { href: addressOf(file), width, height }));
}

// A picture with a title and a line of text below it.
const captioned = (content, title, line) => h("figure", {}, content, h("figcaption", {}, h("b", {}, title), h("small", {}, line)));

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

// An image that links to its page, with a caption; a closed gate has a struck circle.
function thumb(i, { caption, href, closed = false } = {}) {
  const title = imageTitle(i) + (closed ? ", gate closed" : "");
  return h("a", { class: closed ? "thumb closed" : "thumb", href: href || link(`image/${i}`), "aria-label": title, title },
    picture(i), caption !== undefined && h("span", { class: "caption" }, caption));
}
