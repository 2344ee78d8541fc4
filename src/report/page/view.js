// The view: drawing when something changed, zoom, what is brought into sight, the address.

const canvas = document.getElementById("canvas"), pane = document.getElementById("pane"), bar = document.getElementById("bar");
let width = 0, height = 0, waiting = false, pen = null;
// The pointer on the canvas: {x, y, down, drag, lastX, lastY}.
let pointer = null;

// Where the canvas sticks while the page scrolls, and what covers its lower end.
const stuckAt = () => getComputedStyle(bar).position === "sticky" ? bar.offsetHeight : 0;

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    if (!gone.aborted) drawNow();
  });
}
function drawNow() {
  const ratio = window.devicePixelRatio || 1, stuck = stuckAt();
  if (pane.clientWidth !== width) { width = pane.clientWidth; gutters(width); }
  height = Math.round(Math.min(contentHeight, Math.max(160, window.innerHeight - stuck - card.offsetHeight)));
  pane.style.height = contentHeight + "px";
  view.top = Math.max(0, Math.min(stuck - pane.getBoundingClientRect().top, contentHeight - height));
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    pen = null;
  }
  canvas.style.top = stuck + "px";
  const context = canvas.getContext("2d", { alpha: false }), color = colors();
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (!pen || pen.ratio !== ratio || pen.ground !== color.ground) pen = Object.assign(new CanvasPen(context, color, ratio), { ground: color.ground });
  pen.fill = "";
  paint(pen, width, height, color);
  remember();
}

// Zooms by `factor` around `share` of the visible time.
function zoom(factor, share) {
  const length = view.to - view.from, next = Math.min(1, Math.max(1e-7, length * factor));
  view.from += (length - next) * share;
  view.to = view.from + next;
  pan(0);
}
function pan(share) {
  const length = view.to - view.from;
  view.from = Math.max(0, Math.min(1 - length, view.from + share * length));
  view.to = view.from + length;
  redraw();
}
const shareAt = x => Math.min(1, Math.max(0, (x - GUTTER) / plotWidth(width)));
function reset() {
  Object.assign(view, { from: 0, to: 1, scale: 1 });
  select(null);
  arrange();
  redraw();
}
function rowHeight(factor) {
  view.scale = Math.min(4, Math.max(0.2, view.scale * factor));
  arrange();
  redraw();
}

// Brings an op into sight, in time and by scrolling the page.
function reveal(ref) {
  const from = ref.panel.start(ref) / ref.panel.end, to = ref.panel.end_(ref) / ref.panel.end, length = view.to - view.from;
  if (from < view.from || to > view.to) {
    view.from = Math.max(0, Math.min(1 - length, (from + to) / 2 - length / 2));
    view.to = view.from + length;
  }
  revealBand(bandOf(ref));
  redraw();
}
function revealBand(band) {
  if (!band) return;
  const top = pane.getBoundingClientRect().top, upper = stuckAt() + 8, lower = window.innerHeight - card.offsetHeight - 8;
  const from = top + band.top, to = top + band.bottom;
  if (from < upper || to > lower) window.scrollBy({ top: (from + to) / 2 - (upper + lower) / 2, behavior: "instant" });
}
// The same, and zooms in on it where it is too narrow to be read.
function closeUp(ref) {
  const { panel } = ref, share = (panel.end_(ref) - panel.start(ref)) / panel.end, wide = share / (view.to - view.from) * plotWidth(width);
  if (share > 0 && wide < 28) {
    const length = Math.min(1, share * plotWidth(width) / 72), middle = (panel.start(ref) + panel.end_(ref)) / 2 / panel.end;
    view.from = Math.max(0, Math.min(1 - length, middle - length / 2));
    view.to = view.from + length;
  }
  reveal(ref);
}

// The address holds the view, so that a link shows the same.
let remembering = 0;
function remember() {
  clearTimeout(remembering);
  if (!gone.aborted) remembering = setTimeout(writeAddress, 150);
}
gone.addEventListener("abort", writeAddress);
function writeAddress() {
  clearTimeout(remembering);
  const parts = [];
  if (view.from > 0 || view.to < 1) parts.push("v=" + view.from.toPrecision(8) + "," + view.to.toPrecision(8));
  if (view.top > 0) parts.push("y=" + Math.round(view.top));
  if (view.scale !== 1) parts.push("h=" + view.scale.toFixed(2));
  const off = [...data.classes.map((_, i) => "c" + i).filter((_, i) => !shown.classes[i]), ...Object.keys(shown).filter(key => shown[key] === false && !["path", "why", "workers"].includes(key))];
  if (off.length) parts.push("off=" + off.join(","));
  if (shown.path) parts.push("path");
  if (shown.why) parts.push("why");
  if (shown.workers) parts.push("workers");
  if (selected && selected.queue === 0) parts.push("op=" + panels.indexOf(selected.panel) + "." + encodeURIComponent(selected.panel.name(selected)));
  const hash = parts.length ? "#" + parts.join("&") : "#";
  document.documentElement.dataset.view = hash; // for the explorer, in whose frame a page has no address
  if (hash !== (location.hash || "#")) try { history.replaceState(null, "", hash); } catch { /* some browsers forbid it for files */ }
}
function recall() {
  let op = null, top = 0;
  for (const part of (location.hash || document.documentElement.dataset.view || "").slice(1).split("&")) {
    const [key, value = ""] = part.split("=");
    if (key === "v") {
      const [from, to] = value.split(",").map(Number);
      if (from >= 0 && to <= 1.0000001 && to > from) Object.assign(view, { from, to: Math.min(1, to) });
    }
    if (key === "y") top = Math.max(0, Number(value) || 0);
    if (key === "h") view.scale = Math.min(4, Math.max(0.2, Number(value) || 1));
    if (key === "path") shown.path = true;
    if (key === "why") shown.why = explained;
    if (key === "workers") shown.workers = hasWorkers;
    if (key === "off") for (const name of value.split(",")) {
      if (/^c\d+$/.test(name) && +name.slice(1) < shown.classes.length) shown.classes[+name.slice(1)] = false;
      else if (typeof shown[name] === "boolean") shown[name] = false;
    }
    if (key === "op") { try { op = [panels[parseInt(value, 10)], decodeURIComponent(value.slice(value.indexOf(".") + 1))]; } catch { op = null; } }
  }
  arrange();
  if (op && op[0]) { const ref = op[0].byName(op[1]); if (ref) selected = { ...ref, panel: op[0] }; }
  return top;
}
