// The card: what the op, gap or curve pointed at is, and why. It is docked under the timeline, so that it covers no row.

const card = document.getElementById("card"), said = document.getElementById("said");

// What is under a point of the canvas: {band, ref, time, part}.
function under(x, y) {
  const at = y + view.top, band = bands.find(b => at >= b.top && at < b.bottom);
  if (!band || x < GUTTER || x > GUTTER + plotWidth(width)) return null;
  const time = toTime(band.panel, x, width), near = toTime(band.panel, x + 1, width) - time;
  const part = band.memory && at >= band.memory - 1 ? "memory" : band.receive && at >= band.receive - 0.5 ? "receive" : band.send && at >= band.send - 0.5 ? "send" : "compute";
  if (part === "memory") return { band, time, part };
  const beside = part === "compute" && inLane(band, at, time, near);
  if (beside) return { band, time, part: "lane", beside };
  const queue = part === "compute" ? 0 : part === "send" ? 1 : 2, spans = band.panel.queues[band.device][queue];
  let best = null;
  for (let i = spans.from(time - near); i < spans.n && spans.start[i] <= time + near; i++) {
    const inside = spans.start[i] <= time && spans.end[i] > time;
    const laneOk = queue !== 0 || spans.laneCount(i) < 2 || Math.floor((at - band.compute) / band.high * spans.laneCount(i)) === spans.lane(i);
    if (isShown(spans, queue, i) && laneOk && (inside || !best)) best = { panel: band.panel, device: band.device, queue, i };
    if (inside && laneOk) break;
  }
  return { band, time, part, ref: best };
}
const isShown = (spans, queue, i) => shown.classes[queue === 0 ? classOf(spans.code[i]) : queue === 1 ? SEND : RECEIVE];

function rowsOf(pairs) {
  const list = element("dl");
  for (const [key, value] of pairs) if (value !== undefined && value !== "") list.append(element("div", {}, element("dt", {}, key), element("dd", {}, value)));
  return list;
}
const shifted = (value, unit) => (value > 0 ? "+" : "") + quantity(value, unit);
const placeOf = (panel, device) => "device " + device + " of " + panel.entry.name + (panel.entry.panels.length > 1 ? ", " + panel.title : "");

// {title, facts, text} of what was found under a point.
function describe({ band, time, part, ref, beside }) {
  const panel = band.panel;
  if (beside) return describeInLane(panel, band.device, beside);
  if (ref) return describeOp(ref);
  if (part === "memory") {
    const { time: times, held: heights } = panel.memory[band.device];
    let i = 0;
    while (i + 1 < times.length && times[i + 1] <= time) i++;
    const cap = panel.cap ? number(panel.cap) : undefined;
    return { title: number(heights[i] || 0) + " activations", facts: [["where", placeOf(panel, band.device)], ["at", panel.at(time) + " " + many(panel.unit)], ["highest", number(heights.reduce((a, b) => Math.max(a, b), 0))], ["cap", cap]], text: "" };
  }
  return part === "compute" ? describeGap(panel, band.device, time) : null;
}

function describeOp(ref) {
  const panel = ref.panel, unit = panel.unit, spans = panel.queues[ref.device][ref.queue], i = ref.i, code = spans.code[i], name = panel.name(ref);
  const times = [["start", panel.at(spans.start[i]) + " " + many(unit)], ["end", panel.at(spans.end[i]) + " " + many(unit)], ["duration", quantity(spans.end[i] - spans.start[i], unit)]];
  const facts = [["where", placeOf(panel, ref.device)]];
  if (ref.queue !== 0) {
    const partner = spans.partner(i), other = partner ? panel.opName(...partner) : "", peer = spans.peer(i) >= 0 ? "device " + spans.peer(i) : "";
    const title = ref.queue === 1 ? "send " + name : name + " waits" + (other ? " for " + other : "");
    return { title, facts: [...facts, [ref.queue === 1 ? "to" : "from", peer], [ref.queue === 1 ? "used by" : "data of", other], ...times], text: "" };
  }
  if (code < KINDS.length) {
    facts.push(["kind", data.classes[classOf(code)].name], ["stage", String(spans.stage[i])], ["micro-batch", panel.unitName(spans.microbatch[i])]);
    if (spans.phase(i) >= 0) facts.push(["phase", panel.phases[spans.phase(i)]]);
  }
  facts.push(...times);
  for (const twin of twins(ref)) {
    const t = twin.panel;
    if (t.unit === unit) facts.push([t.title, `${t.at(t.start(twin))} to ${t.at(t.end_(twin))} (start ${shifted(t.start(twin) - spans.start[i], unit)})`]);
  }
  return { title: name, facts, text: why(panel, ref) };
}

function describeGap(panel, device, time) {
  const gap = gapAt(panel, device, time);
  if (!gap) return null;
  const { from, to, next } = gap, pieces = causesBetween(panel, device, from, to);
  const facts = [["where", placeOf(panel, device)], ["from", panel.at(from) + " " + many(panel.unit)], ["until", panel.at(to) + " " + many(panel.unit)], ["then", next ? panel.name(next) : "nothing more"]];
  const text = pieces.length ? pieces.map(piece => sentence(panel, piece)).join(" ") : next ? panel.name(next) + ": " + why(panel, next) : "Nothing is left to do on this device.";
  return { title: "idle " + quantity(to - from, panel.unit), facts, text, causes: pieces.map(piece => piece.cause) };
}

const hint = () => matchMedia("(pointer: coarse)").matches
  ? "Drag sideways to move in time, pinch to zoom, tap a box or a gap to see what it is and why."
  : "The wheel scrolls the page; " + (/Mac/.test(navigator.platform) ? "⌘" : "Ctrl") + " + wheel, or the wheel over a time axis, zooms. Drag to move in time. Click a box for what it needs and unblocks. With the timeline focused, arrow keys walk from box to box.";

// Shows what is under the pointer, else what was walked to, else what is pinned, else how to begin.
let filled = "";
function showCard() {
  const found = pointer && !pointer.down && under(pointer.x, pointer.y);
  if (found && found.ref && !same(found.ref, hovered)) { hovered = found.ref; walked = false; redraw(); }
  if (hovered && !walked && !(found && found.ref)) { hovered = null; redraw(); }
  canvas.style.cursor = found && found.ref ? "pointer" : "";
  const content = found && !walked && describe(found) || hovered && describeOp(hovered) || selected && describeOp(selected);
  const key = content ? content.title + content.facts.join() + content.text : "";
  if (key === filled && card.firstChild) return;
  filled = key;
  if (!content) { card.replaceChildren(element("p", { class: "hint" }, hint())); return; }
  const swatches = (content.causes || []).map(cause => { const mark = element("i"); mark.style.background = hatchCss(data.causes[cause].color, data.causes[cause].color + "4d", data.causes[cause].hatch); return mark; });
  card.replaceChildren(element("b", {}, ...swatches, content.title), rowsOf(content.facts), element("p", {}, content.text));
}

// Tells those who do not see the card.
function speak(text) { said.textContent = text; }
function speakOp(ref, before = "") {
  const { title, facts, text } = describeOp(ref);
  speak(before + title + ", " + facts.filter(([key]) => /^(where|kind|start|end)$/.test(key)).map(([key, value]) => /start|end/.test(key) ? key + " " + value : value).join(", ") + ". " + text);
}

// Pins an op, or nothing.
function select(ref) {
  selected = ref;
  if (!ref) { hovered = null; walked = false; }
  showCard();
  redraw();
}

// Moves from op to op: along a device, or to the op of a neighbouring band nearest in time.
let walked = false;
function walk(key) {
  const at = hovered && hovered.queue === 0 ? hovered : selected && selected.queue === 0 ? selected : null;
  let to = null;
  if (!at) {
    for (const band of bands) if (!to) to = nearest(band, view.from * band.panel.end);
  } else if (key === "ArrowUp" || key === "ArrowDown") {
    const middle = (at.panel.start(at) + at.panel.end_(at)) / 2 / at.panel.end, step = key === "ArrowUp" ? -1 : 1;
    for (let b = bands.indexOf(bandOf(at)) + step; b >= 0 && b < bands.length && !to; b += step) to = nearest(bands[b], middle * bands[b].panel.end);
  } else {
    const spans = at.panel.queues[at.device][0], step = key === "ArrowLeft" || key === "End" ? -1 : 1;
    let i = key === "Home" ? 0 : key === "End" ? spans.n - 1 : at.i + step;
    while (i >= 0 && i < spans.n && !isShown(spans, 0, i)) i += step;
    if (i >= 0 && i < spans.n) to = { ...at, i };
  }
  if (!to) { speak("No further op that way."); return; }
  pointer = null;
  hovered = to;
  walked = true;
  reveal(to);
  showCard();
  speakOp(to);
}
function nearest({ panel, device }, time) {
  const spans = panel.queues[device][0];
  let best = null, least = Infinity;
  for (let i = spans.from(time), first = i; i < spans.n && (i - first < 50 || !best); i++) {
    const away = Math.max(spans.start[i] - time, time - spans.end[i], 0);
    if (isShown(spans, 0, i) && away < least) { least = away; best = i; }
  }
  for (let i = Math.min(spans.n, spans.from(time)) - 1, last = i; i >= 0 && (last - i < 50 || best === null); i--) {
    const away = Math.max(time - spans.end[i], 0);
    if (isShown(spans, 0, i) && away < least) { least = away; best = i; }
  }
  return best === null ? null : { panel, device, queue: 0, i: best };
}

// Finds ops by name: what was found where, or what is not there.
let finding = { name: "", at: -1 };
function find(text, again) {
  const name = text.trim().toUpperCase(), answer = document.getElementById("answer"), input = document.getElementById("find");
  const tell = message => { answer.textContent = message; };
  if (!name) { finding = { name, at: -1 }; tell(""); input.removeAttribute("aria-invalid"); return; }
  const hits = panels.filter(isVisible).map(panel => ({ ...panel.byName(name), panel })).filter(ref => ref.i !== undefined);
  input.setAttribute("aria-invalid", String(!hits.length));
  pointer = null;
  if (!hits.length) {
    finding = { name, at: -1 };
    select(null);
    tell(notFound(name, text.trim()));
    return;
  }
  finding = { name, at: again && finding.name === name ? (finding.at + 1) % hits.length : 0 };
  const ref = hits[finding.at], spans = ref.panel.queues[ref.device][0], cls = classOf(spans.code[ref.i]);
  if (!shown.classes[cls]) { shown.classes[cls] = true; refreshSwitches(); }
  hovered = null;
  walked = false;
  select(ref);
  closeUp(ref);
  const where = placeOf(ref.panel, ref.device) + (hits.length > 1 ? `, ${finding.at + 1} of ${hits.length}; Enter: the next` : "");
  tell(`${name}: ${where}`);
  speakOp(ref);
}
function notFound(name, typed) {
  const match = OP.exec(name);
  if (!match) return `“${typed}” is no op’s name; names are stage, kind (${KINDS.join(", ")}), micro-batch, slice: 0F3, with slices 0F3.1`;
  const stages = Math.max(...panels.map(p => p.stages)), microbatches = Math.max(...panels.map(p => p.microbatches));
  if (+match[1] >= stages) return `${name}: not found; stages are 0 to ${stages - 1}`;
  if (+match[3] >= microbatches) return `${name}: not found; micro-batches are 0 to ${microbatches - 1}`;
  return `${name}: not found; ` + (match[2] === "B" ? "backwards are split here, into I and W" : /^[IW]$/.test(match[2]) ? "backwards are whole here, B" : /LOAD$/.test(match[2]) ? "copies are in the lanes under the ops" : "no schedule shown has it");
}
