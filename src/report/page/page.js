// State and input: zoom, pan, keys, hover, selection, switches, export, the address.

const canvas = document.getElementById("canvas"), card = document.getElementById("card"), pane = document.getElementById("pane");
let width = 0, height = 0, waiting = false, mouse = null, pen = null;

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const ratio = window.devicePixelRatio || 1;
    width = pane.clientWidth;
    height = Math.round(Math.max(140, Math.min(contentHeight + 4, Math.max(360, window.innerHeight - 190))));
    view.top = Math.max(0, Math.min(view.top, contentHeight - height));
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
    }
    const context = canvas.getContext("2d"), color = colors();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (!pen || pen.ratio !== ratio || pen.hatchColor !== color.hatch) pen = Object.assign(new CanvasPen(context, color.hatch), { ratio, hatchColor: color.hatch });
    paint(pen, width, height, color);
    remember();
  });
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
function scroll(by) {
  view.top = Math.max(0, Math.min(Math.max(0, contentHeight - height), view.top + by));
  redraw();
}
function reset() {
  Object.assign(view, { from: 0, to: 1, top: 0, scale: 1 });
  select(null);
  arrange();
  redraw();
}

// What lies under a point: {band, ref, time, part}.
function under(x, y) {
  const at = y + view.top, band = bands.find(b => at >= b.top && at < b.bottom);
  if (!band || x < GUTTER || x > GUTTER + plotWidth(width)) return null;
  const time = toTime(band.panel, x, width), near = toTime(band.panel, x + 1, width) - time;
  const part = band.memory && at >= band.memory - 1 ? "memory" : band.receive && at >= band.receive - 0.5 ? "receive" : band.send && at >= band.send - 0.5 ? "send" : "compute";
  if (part === "memory") return { band, time, part };
  const queue = part === "compute" ? 0 : part === "send" ? 1 : 2, spans = band.panel.queues[band.device][queue];
  let best = null;
  for (let i = spans.from(time - near); i < spans.n && spans.start[i] <= time + near; i++) {
    const inside = spans.start[i] <= time && spans.end[i] > time;
    const laneOk = queue !== 0 || spans.laneCount(i) < 2 || Math.floor((at - band.compute) / band.high * spans.laneCount(i)) === spans.lane(i);
    const cls = queue === 0 ? classOf(spans.code[i]) : queue === 1 ? SEND : RECEIVE;
    if (shown.classes[cls] && laneOk && (inside || !best)) best = { panel: band.panel, device: band.device, queue, i };
    if (inside && laneOk) break;
  }
  return { band, time, part, ref: best };
}

function rowsOf(pairs) {
  const list = element("dl");
  for (const [key, value] of pairs) if (value !== undefined && value !== "") list.append(element("dt", {}, key), element("dd", {}, value));
  return list;
}

function describe(found) {
  const { band, time, part, ref } = found, panel = band.panel, unit = panel.unit;
  const where = "device " + band.device + " · " + panel.entry.name + (panel.entry.panels.length > 1 ? " · " + panel.source : "");
  if (part === "memory") {
    const curve = panel.memory[band.device];
    let i = 0;
    while (i + 1 < curve.time.length && curve.time[i + 1] <= time) i++;
    return [element("b", {}, number(curve.held[i]) + " activations"), rowsOf([["where", where], ["at", panel.at(time) + " " + unit], ["highest", number(Math.max(0, ...curve.held))]])];
  }
  if (!ref) return part === "compute" ? describeIdle(panel, band, time, where) : null;
  const spans = panel.queues[ref.device][ref.queue], i = ref.i, code = spans.code[i], name = panel.name(ref);
  const times = [["start", panel.at(spans.start[i]) + " " + unit], ["end", panel.at(spans.end[i]) + " " + unit], ["duration", quantity(spans.end[i] - spans.start[i], unit)]];
  if (ref.queue !== 0) {
    const partner = spans.partner(i), other = partner ? panel.opName(...partner) : "", peer = spans.peer(i) >= 0 ? "device " + spans.peer(i) : "";
    const title = ref.queue === 1 ? "send " + name : name + " waits" + (other ? " for " + other : "");
    return [element("b", {}, title), rowsOf([["where", where], [ref.queue === 1 ? "to" : "from", peer], [ref.queue === 1 ? "used by" : "data of", other], ...times])];
  }
  const facts = [["where", where]];
  if (code < 4) {
    facts.push(["kind", data.classes[classOf(code)].name], ["stage", String(spans.stage[i])], ["micro-batch", String(spans.microbatch[i])]);
    if (spans.phase(i) >= 0) facts.push(["phase", panel.phases[spans.phase(i)]]);
  }
  facts.push(...times);
  for (const twin of twins(ref)) {
    const t = twin.panel;
    if (t.unit === unit) facts.push([t.source, `${t.at(t.start(twin))} to ${t.at(t.end_(twin))} (start ${shifted(t.start(twin) - spans.start[i], unit)})`]);
  }
  return [element("b", {}, name), rowsOf(facts), element("p", {}, panel.why(ref))];
}
const shifted = (value, unit) => (value > 0 ? "+" : "") + quantity(value, unit);

function describeIdle(panel, band, time, where) {
  const spans = panel.queues[band.device][0];
  if (time < 0 || time > panel.iteration) return null;
  const next = spans.from(time), before = next - 1;
  if (next < spans.n && spans.start[next] <= time) return null;
  const from = before >= 0 ? spans.end[before] : 0, to = next < spans.n ? spans.start[next] : panel.iteration;
  const reason = next < spans.n ? panel.name({ device: band.device, queue: 0, i: next }) + ": " + panel.why({ device: band.device, queue: 0, i: next }) : "Nothing is left to do on this device.";
  return [element("b", {}, "idle " + quantity(to - from, panel.unit)), rowsOf([["where", where], ["from", panel.at(from)], ["until", panel.at(to)]]), element("p", {}, reason)];
}

function showCard() {
  const found = mouse && !mouse.drag && under(mouse.x, mouse.y), content = found && describe(found);
  const ref = found && found.ref || null;
  if ((ref && (!hovered || ref.i !== hovered.i || ref.device !== hovered.device || ref.queue !== hovered.queue || ref.panel !== hovered.panel)) || (!ref && hovered)) { hovered = ref; redraw(); }
  card.hidden = !content;
  canvas.style.cursor = ref ? "pointer" : "";
  if (!content) return;
  card.replaceChildren(...content);
  const wide = card.offsetWidth, high = card.offsetHeight;
  card.style.left = Math.max(4, mouse.x + 16 + wide > width ? mouse.x - wide - 12 : mouse.x + 16) + "px";
  card.style.top = Math.max(4, mouse.y + 18 + high > height ? Math.max(4, mouse.y - high - 10) : mouse.y + 18) + "px";
}

function select(ref) {
  selected = ref;
  redraw();
}
// Selects an op by name in the first schedule that has it, and brings it into sight.
function find(name, panel) {
  for (const candidate of panel ? [panel] : panels.filter(p => shown[p.source])) {
    const ref = candidate.byName(name.trim().toUpperCase());
    if (!ref) continue;
    select({ ...ref, panel: candidate });
    const middle = candidate.start(ref) / candidate.end, length = view.to - view.from, band = bandOf(selected);
    if (middle < view.from || middle > view.to) { view.from = Math.max(0, Math.min(1 - length, middle - length / 2)); view.to = view.from + length; }
    if (band && (band.top < view.top || band.bottom > view.top + height)) view.top = Math.max(0, band.top - height / 2);
    return true;
  }
  return false;
}

// The address holds the view, so that a link shows the same.
let remembering = 0;
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const parts = [];
    if (view.from > 0 || view.to < 1) parts.push("v=" + view.from.toPrecision(8) + "," + view.to.toPrecision(8));
    if (view.top > 0) parts.push("y=" + Math.round(view.top));
    if (view.scale !== 1) parts.push("h=" + view.scale.toFixed(2));
    const off = [...data.classes.map((_, i) => "c" + i).filter((_, i) => !shown.classes[i]), ...Object.keys(shown).filter(key => shown[key] === false && key !== "path")];
    if (off.length) parts.push("off=" + off.join(","));
    if (shown.path) parts.push("path");
    if (selected && selected.queue === 0) parts.push("op=" + panels.indexOf(selected.panel) + "." + encodeURIComponent(selected.panel.name(selected)));
    const hash = parts.length ? "#" + parts.join("&") : "#";
    if (hash !== (location.hash || "#")) try { history.replaceState(null, "", hash); } catch { /* some browsers forbid it for files */ }
  }, 150);
}
function recall() {
  let op = null;
  for (const part of location.hash.slice(1).split("&")) {
    const [key, value = ""] = part.split("=");
    if (key === "v") {
      const [from, to] = value.split(",").map(Number);
      if (from >= 0 && to <= 1.0000001 && to > from) Object.assign(view, { from, to: Math.min(1, to) });
    }
    if (key === "y") view.top = Math.max(0, Number(value) || 0);
    if (key === "h") view.scale = Math.min(4, Math.max(0.2, Number(value) || 1));
    if (key === "path") shown.path = true;
    if (key === "off") for (const name of value.split(",")) {
      if (/^c[0-6]$/.test(name)) shown.classes[+name[1]] = false;
      else if (typeof shown[name] === "boolean") shown[name] = false;
    }
    if (key === "op") { try { op = [panels[parseInt(value, 10)], decodeURIComponent(value.slice(value.indexOf(".") + 1))]; } catch { op = null; } }
  }
  arrange();
  if (op && op[0]) { const ref = op[0].byName(op[1]); if (ref) selected = { ...ref, panel: op[0] }; }
}

function toggle(into, text, swatch, get, set) {
  const input = element("input", { type: "checkbox" }), mark = element("i");
  const label_ = element("label", { class: "toggle" }, input, ...(swatch ? [mark] : []), text);
  if (swatch) mark.style.background = swatch;
  const update = () => { input.checked = get(); label_.classList.toggle("off", !get()); };
  input.addEventListener("change", () => { set(input.checked); update(); arrange(); redraw(); });
  update();
  into.append(label_);
}

function save(name, type, content) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function viewSvg() {
  const color = colors(), pen = new SvgPen(color.hatch);
  paint(pen, width, height, color);
  return pen.finish(width, height, color.ground);
}

function connect() {
  const classes = document.getElementById("classes"), lanes = document.getElementById("lanes");
  data.classes.forEach((cls, i) => { if (occurring[i]) toggle(classes, cls.name, cls.shades[0][0], () => shown.classes[i], on => { shown.classes[i] = on; }); });
  const parts = [["idle", "idle"], ["memory", "activations"], ...(hasPhases ? [["phases", "phases"]] : []), ...(hasBoth ? [["predicted", "predicted"], ["measured", "measured"]] : []), ["path", "critical path"]];
  for (const [key, name] of parts) toggle(lanes, name, "", () => shown[key], on => { shown[key] = on; });
  const on = (id, action) => document.getElementById(id).addEventListener("click", action);
  on("in", () => zoom(0.6, 0.5));
  on("out", () => zoom(1 / 0.6, 0.5));
  on("reset", reset);
  on("save-svg", () => save("timeline.svg", "image/svg+xml", viewSvg()));
  on("save-png", () => canvas.toBlob(blob => save("timeline.png", "image/png", blob)));
  on("help", help);
  on("down", event => { event.preventDefault(); document.getElementById("facts").scrollIntoView({ behavior: "smooth" }); });
  on("theme", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  document.getElementById("find").addEventListener("input", event => {
    const ok = !event.target.value.trim() || find(event.target.value);
    event.target.setAttribute("aria-invalid", String(!ok));
  });
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.shiftKey) scroll((event.deltaY || event.deltaX) * unit);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX * unit / plotWidth(width));
    else zoom(Math.exp(event.deltaY * unit * 0.0018), Math.min(1, Math.max(0, (event.offsetX - GUTTER) / plotWidth(width))));
    showCard();
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    mouse = { x: event.offsetX, y: event.offsetY, drag: false, down: true, lastX: event.offsetX, lastY: event.offsetY };
  });
  canvas.addEventListener("pointermove", event => {
    if (mouse && mouse.down) {
      const dx = event.offsetX - mouse.lastX, dy = event.offsetY - mouse.lastY;
      if (!mouse.drag && Math.hypot(event.offsetX - mouse.x, event.offsetY - mouse.y) < 4) return;
      mouse.drag = true;
      canvas.classList.add("drag");
      Object.assign(mouse, { lastX: event.offsetX, lastY: event.offsetY });
      pan(-dx / plotWidth(width));
      scroll(-dy);
      card.hidden = true;
      return;
    }
    mouse = { x: event.offsetX, y: event.offsetY };
    showCard();
  });
  canvas.addEventListener("pointerup", event => {
    const click = mouse && !mouse.drag;
    mouse = { x: event.offsetX, y: event.offsetY };
    canvas.classList.remove("drag");
    if (click) { const found = under(mouse.x, mouse.y); select(found && found.ref || null); }
    showCard();
  });
  canvas.addEventListener("pointercancel", () => { mouse = null; canvas.classList.remove("drag"); showCard(); });
  canvas.addEventListener("pointerleave", () => { if (mouse && mouse.down) return; mouse = null; showCard(); });
  canvas.addEventListener("dblclick", event => zoom(0.4, (event.offsetX - GUTTER) / plotWidth(width)));
  window.addEventListener("keydown", keys);
  window.addEventListener("resize", () => { arrange(); redraw(); });
  window.addEventListener("hashchange", () => { recall(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox") return;
  const share = mouse ? Math.min(1, Math.max(0, (mouse.x - GUTTER) / plotWidth(width))) : 0.5;
  const actions = {
    w: () => zoom(0.7, share), s: () => zoom(1 / 0.7, share), a: () => pan(-0.15), d: () => pan(0.15),
    ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), ArrowUp: () => scroll(-60), ArrowDown: () => scroll(60),
    r: reset, 0: reset, Home: () => pan(-1e9), End: () => pan(1e9), "+": () => rows(1.2), "=": () => rows(1.2), "-": () => rows(1 / 1.2),
    p: () => document.querySelector("#lanes label:last-child input").click(),
    "?": help, h: help, Escape: () => { document.getElementById("keys").hidden = true; select(null); },
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  // Up and down belong to the page unless the timeline has more rows than fit.
  if (!action || (event.key === "ArrowUp" || event.key === "ArrowDown") && (contentHeight <= height || document.activeElement !== canvas)) return;
  event.preventDefault();
  action();
}
function rows(factor) {
  view.scale = Math.min(4, Math.max(0.2, view.scale * factor));
  arrange();
  redraw();
}
function help() {
  const box = document.getElementById("keys");
  box.hidden = !box.hidden;
  box.replaceChildren(element("b", {}, "Keys"), rowsOf([
    ["wheel, W, S", "zoom at the pointer"], ["drag, A, D, ← →", "move in time"], ["drag, shift + wheel, ↑ ↓", "move over rows"], ["+ −", "row height"], ["R, 0", "see everything"],
    ["click", "what an op needs (pink) and unblocks (blue); its twin in the other band is dashed"], ["P", "critical path"], ["find", "an op by name, such as 3F4"], ["Escape", "select nothing"],
  ]));
}

fillPage();
view.to = data.start; // schedules far longer than the others are first seen in part, so that the others can be read
recall();
connect();
redraw();
