// Pictures to keep: the whole timeline or the view, as SVG and PNG, and the whole page on paper.

const LEGEND_ROW = 20;
// Pixels that every browser's canvas may be high.
const LONGEST = 16000;

// The legend as rows of [draw, text], at most `room` wide.
function legendRows(room, color) {
  const items = [], square = fill => (pen, x, y) => pen.box(x, y - 9, 11, 11, fill), tile = name => (pen, x, y) => pen.hatch(x, y - 9, 11, 11, name);
  data.classes.forEach((cls, i) => {
    if (!occurring[i] || !shown.classes[i]) return;
    items.push([cls.hatch ? tile(`class${i}.0`) : square(cls.shades[0][0]), cls.name]);
  });
  if (shown.idle) items.push([tile("idle"), "idle"]);
  if (explained && shown.why) data.causes.forEach((cause, c) => { if (causesOccurring[c]) items.push([tile("cause" + c), "idle: " + cause.name]); });
  if (shown.memory) items.push([square(color.memory), "activations held"]);
  if (shown.memory && panels.some(p => p.cap)) items.push([(pen, x, y) => pen.line(x, y - 4, x + 11, y - 4, color.path, 1, true), "cap"]);
  if (shown.path) items.push([(pen, x, y) => pen.frame(x, y - 9, 11, 11, color.path, 1.6), "critical path"]);
  const rows = [[]];
  let x = 0;
  for (const [draw, text] of items) {
    const wide = 16 + textWidth(text, 12) * 1.05 + 16;
    if (x + wide > room && x > 0) { rows.push([]); x = 0; }
    rows[rows.length - 1].push([draw, text, x]);
    x += wide;
  }
  return rows;
}

// Runs `inside` with everything in view, `wide` wide, and puts the view back. Rows are lower where they would be too many for a canvas.
function withEverything(wide, inside) {
  const kept = { ...view }, seen = hovered;
  Object.assign(view, { from: 0, to: 1, top: 0 });
  hovered = null;
  try {
    gutters(wide);
    arrange();
    if (contentHeight > LONGEST / 2 - 300) { view.scale = Math.max(0.2, view.scale * (LONGEST / 2 - 300) / contentHeight); arrange(); }
    return inside();
  }
  finally { Object.assign(view, kept); hovered = seen; gutters(width); arrange(); }
}

// A picture with title, legend and where it is from: `make(wide, high)` gives the pen, the rest draws with it. Heights are in
// CSS pixels; `top` to `bottom` is the part of the rows that is drawn.
function compose(make, wide, top, bottom, color) {
  const margin = 12, room = wide - 2 * margin, rows = legendRows(room, color), source = [data.provenance.program, data.provenance.commit, data.provenance.command].filter(Boolean).join(" · ");
  const titled = data.title ? 26 : 0, under = data.subtitle ? 18 : 0, head = 10 + titled + under + rows.length * LEGEND_ROW + 6, high = bottom - top;
  const total = Math.ceil(head + high + (source ? 22 : 4)), pen = make(wide, total);
  pen.box(0, 0, wide, total, color.ground);
  if (data.title) pen.text(margin, 28, shorten(data.title, room * 0.95, 18), color.text, 18, "start", true);
  if (data.subtitle) pen.text(margin, 10 + titled + 12, shorten(data.subtitle, room, 12), color.muted, 12);
  rows.forEach((row, r) => {
    const y = 10 + titled + under + r * LEGEND_ROW + 13;
    for (const [draw, text, x] of row) { draw(pen, margin + x, y); pen.text(margin + x + 16, y, text, color.text, 12); }
  });
  pen.shift(0, head, () => pen.clip(0, 0, wide, high, () => {
    const kept = view.top;
    view.top = top;
    paint(pen, wide, high, color);
    view.top = kept;
  }));
  if (source) pen.text(margin, total - 8, shorten(source, room, 10), color.muted, 10);
  return { pen, total };
}

// Everything, or what is seen of it: calls `draw(wide, top, bottom)`.
function extent(draw) {
  if (document.getElementById("extent").value === "view") return draw(width, view.top, view.top + height);
  const wide = Math.max(1200, width);
  return withEverything(wide, () => draw(wide, 0, contentHeight));
}

function asSvg() {
  const color = colors();
  return extent((wide, top, bottom) => {
    const { pen, total } = compose(() => new SvgPen(color), wide, top, bottom, color);
    return pen.finish(wide, total, color.ground, data.title || "timeline");
  });
}

// Two pixels a CSS pixel, fewer only where browsers have no canvas that large.
function asCanvas() {
  const color = colors();
  return extent((wide, top, bottom) => {
    const sheet = document.createElement("canvas");
    compose((w, h) => {
      const ratio = Math.min(2, LONGEST / w, LONGEST / h);
      sheet.width = Math.round(w * ratio);
      sheet.height = Math.round(h * ratio);
      const context = sheet.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      return new CanvasPen(context, color, ratio);
    }, wide, top, bottom, color);
    return sheet;
  });
}

function save(name, type, content) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function connectSaving() {
  const on = (id, action) => document.getElementById(id).addEventListener("click", action);
  on("save-svg", () => save("timeline.svg", "image/svg+xml", asSvg()));
  on("save-png", () => asCanvas().toBlob(blob => save("timeline.png", "image/png", blob)));
  on("print", () => window.print());
  window.addEventListener("beforeprint", beforePrint, { signal: gone });
  window.addEventListener("afterprint", afterPrint, { signal: gone });
}

// On paper each schedule is a picture of its own, whole; tables are unfolded; the ground is white.
let unprinted = null;
function beforePrint() {
  if (unprinted) return;
  const root = document.documentElement, opened = [...document.querySelectorAll("details:not([open])")];
  unprinted = { theme: root.dataset.theme, opened };
  root.dataset.theme = "light";
  for (const details of opened) details.open = true;
  const color = colors(), wide = 1200, into = document.getElementById("printed"), drawing = new DOMParser();
  const add = (svg) => { const box = element("div", { class: "schedule" }); box.append(document.importNode(drawing.parseFromString(svg, "image/svg+xml").documentElement, true)); into.append(box); };
  const rows = legendRows(wide - 24, color), legend = new SvgPen(color, "l");
  rows.forEach((row, r) => { for (const [draw, text, x] of row) { draw(legend, 12 + x, 14 + r * LEGEND_ROW); legend.text(28 + x, 14 + r * LEGEND_ROW, text, color.text, 12); } });
  add(legend.finish(wide, rows.length * LEGEND_ROW + 4, color.ground, "legend"));
  withEverything(wide, () => blocks.forEach((block, b) => {
    const pen = new SvgPen(color, "s" + b + "-"), high = Math.ceil(block.bottom - block.top);
    view.top = block.top;
    pen.clip(0, 0, wide, high, () => paint(pen, wide, high, color));
    add(pen.finish(wide, high, color.ground, block.entry.name));
  }));
}
function afterPrint() {
  if (!unprinted) return;
  const { theme, opened } = unprinted;
  unprinted = null;
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
  for (const details of opened) details.open = false;
  document.getElementById("printed").replaceChildren();
  redraw();
}
