// Input: switches, wheel, pointer, touch, keys.

const switches = [];
const refreshSwitches = () => switches.forEach(update => update());
function changed() {
  refreshSwitches();
  arrange();
  showCard();
  redraw();
}
function toggle(into, text, swatch, get, set) {
  const input = element("input", { type: "checkbox" }), mark = element("i");
  const label_ = element("label", { class: "toggle" }, input, ...(swatch ? [mark] : []), text);
  if (swatch) mark.style.background = swatch;
  const update = () => { input.checked = get(); label_.classList.toggle("off", !get()); };
  input.addEventListener("change", () => { set(input.checked); changed(); });
  switches.push(update);
  into.append(label_);
}

// The ground of a swatch, hatched as pens hatch.
function hatchCss(ink, ground, lines) {
  const turns = { "/": [135], "\\": [45], "|": [90], "-": [0], x: [45, 135], "+": [0, 90] }[lines] || [135];
  return turns.map((turn, k) => `repeating-linear-gradient(${turn}deg, ${ink} 0 1.4px, ${k ? ground : turns.length > 1 ? "transparent" : ground} 1.4px 3.6px)`).join(", ");
}

function connectSwitches() {
  const classes = document.getElementById("classes"), lanes = document.getElementById("lanes"), causes = document.getElementById("causes"), path = document.getElementById("path");
  data.classes.forEach((cls, i) => {
    if (!occurring[i]) return;
    const [fill, , ground, line] = cls.shades[0];
    toggle(classes, cls.name, cls.hatch ? hatchCss(line, ground, cls.hatch) : fill, () => shown.classes[i], on => { shown.classes[i] = on; });
  });
  const parts = [["idle", "idle"], ...(explained ? [["why", "why idle"]] : []), ["memory", "activations"], ...(hasPhases ? [["phases", "phases"]] : []), ...(hasBoth ? [["predicted", "predicted"], ["measured", "measured"]] : []), ...(hasWorkers ? [["workers", "all workers"]] : [])];
  for (const [key, name] of parts) toggle(lanes, name, "", () => shown[key], on => { shown[key] = on; });
  data.causes.forEach((cause, c) => {
    if (!causesOccurring[c]) return;
    const mark = element("i");
    mark.style.background = hatchCss(cause.color, cause.color + "4d", cause.hatch);
    causes.append(element("span", { title: cause.text }, mark, cause.name, element("small", {}, ": " + cause.text)));
  });
  switches.push(() => { causes.hidden = !shown.why; }, () => path.setAttribute("aria-pressed", String(shown.path)));
  path.addEventListener("click", togglePath);
  refreshSwitches();
}
function togglePath() {
  shown.path = !shown.path;
  changed();
}

function connectButtons() {
  const on = (id, action) => document.getElementById(id).addEventListener("click", action);
  on("in", () => zoom(0.6, 0.5));
  on("out", () => zoom(1 / 0.6, 0.5));
  on("reset", reset);
  on("help", help);
  on("down", event => { event.preventDefault(); document.getElementById("facts").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" }); });
  on("theme", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  const input = document.getElementById("find");
  input.addEventListener("input", () => find(input.value, false));
  document.getElementById("search").addEventListener("submit", event => { event.preventDefault(); find(input.value, true); });
  input.addEventListener("keydown", event => { if (event.key === "Escape") { input.value = ""; find("", false); select(null); } });
}

// Whether a point is on a time axis.
const onAxis = y => blocks.some(block => y + view.top >= block.axis - 3 && y + view.top < block.bottom);

function connectPointer() {
  canvas.addEventListener("wheel", event => {
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1, across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey || onAxis(event.offsetY) && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX)) {
      // a pinch on a touch pad comes as small steps with Ctrl
      zoom(Math.exp(event.deltaY * unit * (Math.abs(event.deltaY) < 20 ? 0.008 : 0.0018)), shareAt(event.offsetX));
    } else if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) pan(across * unit / plotWidth(width));
    else return; // the page scrolls
    event.preventDefault();
    showCard();
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("touchstart", event => { if (event.touches.length > 1) event.preventDefault(); }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    const { offsetX: x, offsetY: y } = event;
    fingers.set(event.pointerId, { x, y });
    pointer = { x, y, down: true, drag: fingers.size > 1, lastX: x, lastY: y };
    walked = false;
  });
  canvas.addEventListener("pointermove", event => {
    const { offsetX: x, offsetY: y, pointerType } = event;
    if (fingers.size > 1 && fingers.has(event.pointerId)) { pinch(event.pointerId, x, y); return; }
    if (pointer && pointer.down) {
      if (!pointer.drag && Math.hypot(x - pointer.x, y - pointer.y) < (pointerType === "touch" ? 8 : 4)) return;
      pan((pointer.lastX - x) / plotWidth(width));
      if (pointerType !== "touch") window.scrollBy(0, pointer.lastY - y);
      Object.assign(pointer, { drag: true, lastX: x, lastY: y });
      canvas.classList.add("drag");
      return;
    }
    pointer = { x, y };
    walked = false;
    showCard();
  });
  // Two fingers: what lay under each stays under it.
  function pinch(id, x, y) {
    const [a, b] = [...fingers.values()], apart = Math.max(20, Math.abs(a.x - b.x), Math.hypot(a.x - b.x, a.y - b.y) / 2), middle = (a.x + b.x) / 2;
    Object.assign(fingers.get(id), { x, y });
    const now = Math.max(20, Math.abs(a.x - b.x), Math.hypot(a.x - b.x, a.y - b.y) / 2);
    pan((middle - (a.x + b.x) / 2) / plotWidth(width));
    zoom(apart / now, shareAt((a.x + b.x) / 2));
  }
  const release = event => {
    fingers.delete(event.pointerId);
    canvas.classList.remove("drag");
  };
  canvas.addEventListener("pointerup", event => {
    const click = pointer && pointer.down && !pointer.drag;
    release(event);
    if (fingers.size) { pointer = { ...pointer, down: true, drag: true, lastX: [...fingers.values()][0].x }; return; }
    pointer = { x: event.offsetX, y: event.offsetY, stays: event.pointerType === "touch" };
    if (!click) { if (pointer.stays) pointer = null; showCard(); return; }
    const found = under(pointer.x, pointer.y), content = found && describe(found);
    select(found && found.ref || null);
    if (found && found.ref && found.ref.queue === 0) speakOp(found.ref, "Pinned: "); else if (content) speak(content.title + ". " + content.text);
  });
  canvas.addEventListener("pointercancel", event => { release(event); pointer = null; showCard(); });
  canvas.addEventListener("pointerleave", () => { if (pointer && (pointer.down || pointer.stays)) return; pointer = null; showCard(); });
  canvas.addEventListener("dblclick", event => zoom(0.4, shareAt(event.offsetX)));
  canvas.addEventListener("blur", () => { if (walked) { walked = false; hovered = null; showCard(); redraw(); } });
}

function connectWindow() {
  window.addEventListener("keydown", keys, { signal: gone });
  window.addEventListener("resize", () => { arrange(); redraw(); }, { signal: gone });
  window.addEventListener("scroll", () => {
    if (pointer && pointer.stays) pointer = null;
    redraw();
    requestAnimationFrame(showCard);
  }, { passive: true, signal: gone });
  window.addEventListener("hashchange", () => { recall(); changed(); }, { signal: gone });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal: gone });
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox" || document.getElementById("keys").open) return;
  const share = pointer ? shareAt(pointer.x) : 0.5, inTimeline = document.activeElement === canvas;
  const walking = {
    ArrowLeft: () => walk("ArrowLeft"), ArrowRight: () => walk("ArrowRight"), ArrowUp: () => walk("ArrowUp"), ArrowDown: () => walk("ArrowDown"),
    Home: () => walk("Home"), End: () => walk("End"),
    Enter: () => { if (hovered) { const ref = hovered; select(ref); if (ref.queue === 0) speakOp(ref, "Pinned: "); } },
  };
  const everywhere = {
    w: () => zoom(0.7, share), s: () => zoom(1 / 0.7, share), a: () => pan(-0.15), d: () => pan(0.15), r: reset, 0: reset,
    "+": () => rowHeight(1.2), "=": () => rowHeight(1.2), "-": () => rowHeight(1 / 1.2), p: togglePath, "?": help, h: help,
    "/": () => document.getElementById("find").focus(),
    Escape: () => { pointer = null; select(null); speak("Nothing is pinned."); },
  };
  const action = inTimeline && walking[event.key] || everywhere[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function help() {
  const box = document.getElementById("keys"), close = element("button", { type: "button" }, "close");
  close.addEventListener("click", () => box.close());
  box.replaceChildren(element("b", {}, "Keys"), rowsOf([
    ["wheel", "scrolls the page"], ["Ctrl or ⌘ + wheel, wheel over an axis, W S, pinch", "zooms at the pointer"], ["drag, Shift + wheel, A D", "moves in time"], ["+ −", "row height"], ["R, 0", "see everything"],
    ["click, tap", "what an op needs (pink) and unblocks (blue); its twin in the other band is dashed"],
    ["← →, Home End", "in the timeline: along a device"], ["↑ ↓", "in the timeline: to the neighbouring row"], ["Enter, Escape", "pins the op walked to; lets go"],
    ["P", "critical path"], ["/", "find an op by name, such as 3F4; Enter: in the next schedule"],
  ]), close);
  box.showModal();
}

fillPage();
Object.assign(view, firstView()); // schedules far longer than the others are first seen in part, so that the others can be read
const startTop = recall();
connectSwitches();
connectButtons();
connectPointer();
connectSaving();
connectWindow();
showCard();
drawNow();
if (startTop) window.scrollBy({ top: pane.getBoundingClientRect().top - stuckAt() + startTop, behavior: "instant" });
if (selected) { reveal(selected); showCard(); }
