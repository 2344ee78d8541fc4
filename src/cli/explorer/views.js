// What is shown: timelines in a frame, texts, the map over p and m, the gallery.

const make = (tag, attributes = {}, ...inside) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
  node.append(...inside);
  return node;
};
const byId = id => document.getElementById(id);
const text = bytes => new TextDecoder().decode(bytes);

// The frame with the report. A report takes the place of another one in the frame; other pages load behind the one that is seen, with
// its zoom and switches.
let frame = null, coming = null;
// What the explorer has itself, or says elsewhere, is not shown in the frame again.
const IN_FRAME = "h1, #subtitle, #theme, #save-svg, #save-png, #print, label:has(#extent), #card .hint { display: none; } header { padding: 0 20px; } nav#bar { padding: 4px 12px; gap: 4px; } #classes, #lanes { display: contents; } #card { height: auto; max-height: 92px; padding-block: 2px; }";
function showPage(html) {
  const data = /<script type="application\/json" id="data">([^<]*)<\/script>/.exec(html), show = frame && !coming && data && frame.contentWindow.showReport;
  if (show) {
    show(data[1]);
    return Promise.resolve(true);
  }
  const seen = frame && frame.contentDocument && frame.contentDocument.documentElement.dataset.view || "";
  const theme = frame && frame.contentDocument && frame.contentDocument.documentElement.dataset.theme || document.documentElement.dataset.theme;
  if (coming) coming.remove();
  const next = coming = make("iframe", { title: "Timelines", class: "coming" });
  const marks = ` data-view="${seen.replaceAll("&", "&amp;").replaceAll('"', "&quot;")}"` + (theme ? ` data-theme="${theme === "dark" ? "dark" : "light"}"` : "");
  return new Promise(resolve => {
    next.addEventListener("load", () => {
      if (coming !== next) { resolve(false); return; }
      coming = null;
      if (frame) frame.remove();
      frame = next;
      next.classList.remove("coming");
      resolve(true);
    });
    next.srcdoc = html.replace("<html lang=\"en\"", "<html lang=\"en\"" + marks).replace("</style>", data ? IN_FRAME + "</style>" : "</style>");
    byId("page").append(next);
  });
}

function dropFrames() {
  for (const one of [frame, coming]) if (one) one.remove();
  frame = coming = null;
  byId("page").classList.remove("stale");
}

// A button that takes a dropped file away, and what was chosen of it.
function removal(name) {
  const away = make("button", { type: "button" }, "remove " + name);
  away.addEventListener("click", () => {
    delete dropped[name];
    state.s = schedulesChosen().filter(other => other !== name).join(",");
    refill();
  });
  return away;
}

// Which fields of the form the options in a message are.
function fieldsOf(message) {
  const options = [...new Set(message.split("\n\nUsage:")[0].match(/--[a-z-]+/g) || [])], ranges = { p: "ps", m: "ms" };
  const named = options.map(option => [option, Object.keys(FIELDS).find(name => FIELDS[name].option === option)]).filter(([, name]) => name);
  const told = named.map(([option, name]) => {
    const field = byId(state.view === "map" && ranges[name] || name);
    return `${option} is ${field.closest("[hidden]") ? "under “a model on hardware”" : field.closest("label").firstChild.textContent.trim()}`;
  });
  return told.length ? "In this form, " + told.join(", ") + "." : "";
}

function say(result, args) {
  const failed = Boolean(result.code && result.code !== 4);
  byId("page").classList.toggle("stale", failed && Boolean(frame));
  byId("remedies").replaceChildren(...Object.keys(dropped).filter(name => failed && result.err.includes(name)).map(removal));
  byId("failure").textContent = failed ? result.err.trim() : "";
  byId("here").textContent = failed && state.view !== "command" ? fieldsOf(result.err) : "";
  byId("remarks").textContent = failed ? "" : result.err.trim();
  byId("command").textContent = commandText(args);
  byId("took").textContent = result.ms === undefined ? "" : Math.round(result.ms) + " ms" + (result.bytes ? `, ${Math.round(result.bytes / 1e6)} MB` : "");
  markLine(result.code ? result.err : "");
}

// Runs for the view that is shown; null, too, if another one is shown by then.
async function runFor(channel, args, given) {
  const view = shownView, result = await run(channel, args, given);
  return view === shownView ? result : null;
}

// One view: runs what it needs, shows it. Each returns the arguments that it ran, for the command line.
const views = {
  async timeline() {
    const args = ["predict", ...choice(schedulesChosen())];
    const result = await runFor("timeline", [...args, "-o", "page.html", "--format", "json"], files());
    if (!result) return;
    if (result.files["page.html"]) await showPage(text(result.files["page.html"]));
    const lines = result.err.trim().split("\n"), failed = lines.findIndex(line => line.startsWith("error: "));
    say({ ...result, err: failed < 0 ? result.code ? result.err : "" : lines.slice(failed).join("\n") }, args);
    byId("warnings").textContent = lines.filter(line => line.startsWith("warning: ")).join("\n");
    byId("said").textContent = result.code ? "" : summary(result.out);
  },
  async explain() {
    const args = ["explain", "--tables", ...choice(schedulesChosen())];
    const result = await runFor("text", args, files());
    if (!result) return;
    byId("text").textContent = result.out;
    say(result, args);
  },
  async check() {
    const args = ["check", ...ofJob(), ...size(), ...(schedulesChosen().length ? ["-s", schedulesChosen().join(",")] : []), ...(state.v.trim() ? ["--chunks", state.v.trim()] : [])];
    const result = await runFor("text", args, files());
    if (!result) return;
    byId("text").textContent = result.out + (result.out && result.code ? "\n" + result.err : "");
    say(result, args);
    if (result.out) byId("failure").textContent = "";
  },
  async map() {
    const args = ["predict", "--stages", state.ps, "--micro", state.ms, ...choice(schedulesChosen(), false)];
    const result = await runFor("text", [...args, "-q", "-o", "map.svg"], files());
    if (!result) return;
    const picture = result.files["map.svg"];
    if (picture) byId("picture").replaceChildren(make("img", { alt: "Map over devices and micro-batches; its figures are in the table below.", src: URL.createObjectURL(new Blob([picture], { type: "image/svg+xml" })) }));
    byId("text").textContent = result.out;
    say(result, args);
  },
  // The whole space of layouts, so only model, hardware and sizes are taken from the form.
  async plan() {
    if (state.mode === "costs") { setMode("hardware"); refill(); return; }
    const sizes = [["--model", "model"], ["--hardware", "hardware"], ["--gpus", "gpus"], ["--batch", "batch"], ["--seq", "seq"]].filter(([, name]) => state[name].trim() !== "");
    const args = ["plan", ...ofJob(), ...sizes.flatMap(([option, name]) => [option, state[name].trim()])];
    byId("text").textContent = "planning …";
    const result = await runFor("text", args, files());
    if (!result) return;
    byId("text").textContent = result.out;
    say(result, args);
  },
  async gallery() {
    const shelf = byId("picture");
    shelf.replaceChildren();
    byId("text").textContent = "";
    for (const schedule of facts.schedules) {
      const use = make("button", { type: "button" }, "show " + schedule.name), box = make("figure", {}, make("figcaption", {}, make("b", {}, schedule.name), " ", schedule.summary, " ", ...(schedule.paper ? [make("a", { href: schedule.paper, rel: "noreferrer", target: "_blank" }, "paper")] : []), " ", use));
      use.addEventListener("click", () => { state.s = schedule.name; state.view = "timeline"; refill(); });
      shelf.append(box);
    }
    for (const [k, schedule] of facts.schedules.entries()) {
      const args = ["predict", "--stages", "4", "--micro", "8", "-s", schedule.name];
      const result = await run("gallery", [...args, "-q", "-o", "one.svg", "--no-notes"], {});
      if (!result || state.view !== "gallery") return;
      if (k === 0) say(result, args);
      const picture = result.files["one.svg"];
      shelf.children[k].prepend(picture ? make("img", { alt: "Timeline of " + schedule.name, loading: "lazy", src: URL.createObjectURL(new Blob([picture], { type: "image/svg+xml" })) }) : make("p", {}, result.err));
    }
  },
  async tour() {
    const args = ["tour"];
    const result = await runFor("timeline", [...args, "-o", "tour.html"], {});
    if (!result) return;
    if (result.files["tour.html"]) await showPage(text(result.files["tour.html"]));
    say(result, args);
  },
  async files() {
    const list = byId("picture");
    list.replaceChildren(make("p", {}, "Drop files anywhere on this page: schedules (.star, PyTorch's .csv) appear among the schedules; timelines and reports (.json) are compared here; cost files can be named under more options, as in --profile costs.json. Nothing leaves this machine."));
    for (const name of Object.keys(dropped)) {
      list.append(make("p", {}, make("code", {}, name), ` ${dropped[name].length.toLocaleString("en")} bytes `, removal(name)));
    }
    const timelines = Object.keys(dropped).filter(name => name.endsWith(".json"));
    byId("text").textContent = "";
    if (!timelines.length) {
      dropFrames();
      byId("remedies").replaceChildren();
      for (const told of ["command", "took", "failure", "here", "remarks"]) byId(told).textContent = "";
      return;
    }
    const args = ["compare", ...timelines];
    const result = await runFor("timeline", [...args, "-q", "-o", "page.html"], files());
    if (!result) return;
    byId("text").textContent = result.out;
    if (result.files["page.html"]) await showPage(text(result.files["page.html"]));
    say(result, args);
  },
  async command() {
    const args = words(state.line.replace(/^\s*pipesim\s+/, ""));
    if (!args.length) return;
    if (/^(run|train|profile|report|doctor)$/.test(args[0])) {
      say({ code: 5, err: `error: ${args[0]} needs devices, which a page has not; run it with the pipesim program in a terminal` }, args);
      return;
    }
    byId("text").textContent = "running …";
    const result = await runFor("text", args, files());
    if (!result) return;
    byId("text").textContent = result.out;
    say(result, args);
    const list = byId("picture");
    list.replaceChildren();
    for (const [name, bytes] of Object.entries(result.files)) {
      const link = make("a", { download: name.split("/").pop(), href: URL.createObjectURL(new Blob([bytes])) }, name);
      list.append(make("p", {}, "wrote ", link));
      if (name.endsWith(".svg")) list.append(make("img", { alt: name, src: URL.createObjectURL(new Blob([bytes], { type: "image/svg+xml" })) }));
    }
  },
};

// The answer in a sentence.
function summary(json) {
  try {
    const { predictions } = JSON.parse(json), best = predictions.reduce((a, b) => (b.makespan < a.makespan ? b : a));
    return predictions.map(one => `${one.schedule}: makespan ${+one.makespan.toPrecision(4)}, bubble ${(100 * one.bubble).toFixed(1)} %${one.misfit ? ", does not fit into memory" : ""}`).join("; ") + (predictions.length > 1 ? ". Shortest: " + best.schedule + "." : ".");
  } catch { return ""; }
}

// Which parts of the page each view uses.
const PARTS = { timeline: ["page"], explain: ["text"], check: ["text"], map: ["ranges", "picture", "text"], plan: ["planned", "text"], gallery: ["picture"], tour: ["page"], files: ["picture", "text", "page"], command: ["console", "picture", "text"] };
let shownView = "", shown = 0;
function show() {
  const view = views[state.view] ? state.view : "timeline";
  if (view !== shownView) {
    for (const part of ["page", "text", "ranges", "planned", "picture", "console"]) byId(part).hidden = !PARTS[view].includes(part);
    byId("picture").replaceChildren();
    byId("text").textContent = "";
    for (const told of ["failure", "here", "warnings", "remarks", "said"]) byId(told).textContent = "";
    byId("remedies").replaceChildren();
    if (view === "tour" || shownView === "tour" || view === "files") dropFrames();
    for (const tab of document.querySelectorAll("#tabs button")) tab.setAttribute("aria-selected", String(tab.dataset.view === view));
    shownView = view;
  }
  const turn = ++shown;
  byId("busy").hidden = false;
  return views[view]().finally(() => { if (turn === shown) byId("busy").hidden = true; });
}
