// The form and the page's other controls.

const INPUTS = ["p", "m", "v", "F", "I", "W", "comm", "keep", "per", "tp", "dp", "mbs", "seq", "sp", "job", "cap", "more", "ps", "ms", "gpus", "batch", "model", "hardware", "delivery", "recompute"];

// Asks anew, at most once per frame, after something changed.
let asking = false;
function ask() {
  byId("refused").textContent = "";
  rememberState();
  if (asking) return;
  asking = true;
  requestAnimationFrame(() => { asking = false; show(); judge(); });
}

// The chosen schedules first, then those whose name or summary has all the words that were looked for.
function fillSchedules() {
  const chosen = schedulesChosen(), own = Object.keys(files()).filter(name => /\.(star|csv)$/.test(name));
  const names = [...own, ...facts.schedules.map(schedule => schedule.name)], sought = byId("sought").value.toLowerCase().split(/\s+/);
  const summary = name => (facts.schedules.find(schedule => schedule.name === name) || {}).summary;
  const isSought = name => sought.every(word => `${name} ${summary(name)}`.toLowerCase().includes(word));
  const count = () => {
    const more = names.filter(name => !schedulesChosen().includes(name) && isSought(name)).length;
    byId("count").textContent = `${more || "no"} more, ${schedulesChosen().length} chosen`;
  };
  byId("schedules").replaceChildren(...[...chosen, ...names.filter(name => !chosen.includes(name) && isSought(name))].map(name => {
    const input = make("input", { type: "checkbox", value: name });
    input.checked = chosen.includes(name);
    input.addEventListener("change", () => {
      state.s = input.checked ? [...schedulesChosen(), name].join(",") : schedulesChosen().filter(other => other !== name).join(",");
      count();
      ask();
    });
    return make("label", { title: summary(name) }, input, name);
  }));
  count();
}

// Writes the state into the form.
function refill() {
  for (const id of INPUTS) byId(id).value = state[id];
  for (const range of document.querySelectorAll("input[type=range]")) range.value = parseFloat(state[range.dataset.of]) || 0;
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.checked = radio.value === state.mode;
  byId("of-costs").hidden = state.mode !== "costs";
  byId("of-hardware").hidden = state.mode === "costs";
  byId("of-job").hidden = state.mode !== "job";
  byId("job-mode").hidden = !state.job;
  byId("mine").value = state.mine;
  byId("commandline").value = state.line;
  colour(state.mine, 0);
  fillSchedules();
  ask();
}

function connectForm() {
  for (const [id, names] of [["model", facts.models], ["hardware", facts.hardware]]) byId(id).append(...names.map(name => make("option", {}, name)));
  for (const id of ["model", "hardware", "recompute"]) byId(id).prepend(make("option", { value: "" }, "as the job says"));
  byId("start").append(...facts.schedules.map(schedule => make("option", {}, schedule.name)));
  for (const id of INPUTS) byId(id).addEventListener("input", () => {
    state[id] = byId(id).value;
    for (const range of document.querySelectorAll(`input[data-of="${id}"]`)) range.value = parseFloat(state[id]) || 0;
    ask();
  });
  for (const range of document.querySelectorAll("input[type=range]")) range.addEventListener("input", () => {
    state[range.dataset.of] = byId(range.dataset.of).value = range.value;
    ask();
  });
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => { setMode(radio.value); refill(); });
  byId("sought").addEventListener("input", fillSchedules);
  byId("controls").addEventListener("submit", event => event.preventDefault());
  byId("console").addEventListener("submit", event => { event.preventDefault(); state.line = byId("commandline").value; rememberState(); show(); });
  for (const tab of document.querySelectorAll("#tabs button")) tab.addEventListener("click", () => { state.view = tab.dataset.view; refill(); });
  byId("tabs").addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], tabs = [...document.querySelectorAll("#tabs button")];
    if (!step) return;
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
}

function download(name, bytes) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([bytes])) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function connectTools() {
  byId("stop").addEventListener("click", () => { stopAll(); byId("busy").hidden = true; });
  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    if (frame && frame.contentDocument) {
      frame.contentDocument.documentElement.dataset.theme = document.documentElement.dataset.theme;
      frame.contentWindow.dispatchEvent(new Event("resize")); // it draws again
    }
  });
  const copies = (id, what) => byId(id).addEventListener("click", async () => {
    const said = byId(id), name = said.textContent;
    try { await navigator.clipboard.writeText(what()); said.textContent = "copied"; } catch { prompt("Copy this:", what()); }
    setTimeout(() => { said.textContent = name; }, 1500);
  });
  copies("copy", () => byId("command").textContent);
  copies("link", () => { rememberState(); return location.href; });
  byId("save").addEventListener("change", async event => {
    const ending = event.target.value;
    event.target.value = "";
    if (!ending) return;
    const args = ["predict", ...choice(schedulesChosen())], name = "timelines." + ending;
    const result = await run("save", [...args, "-q", "-o", name], files());
    if (!result) return;
    if (result.files[name]) download(name, result.files[name]);
    else byId("failure").textContent = result.err.trim();
  });
  const over = event => { event.preventDefault(); };
  for (const kind of ["dragenter", "dragover"]) window.addEventListener(kind, over);
  window.addEventListener("drop", async event => { event.preventDefault(); await take([...event.dataTransfer.files]); });
  window.addEventListener("hashchange", () => { recallState(); refill(); });
}

const MOST_BYTES = 256 << 20;
async function take(list) {
  const refused = [];
  for (const file of list) {
    const name = file.name.replace(/[^\w.@+-]/g, "_").slice(-80);
    if (!/\.(star|csv|json|toml|gz|sh|ya?ml)$/.test(name)) refused.push(`${file.name}: expected .star, .csv, .json, .toml, .gz, or a job (.sh, .yaml)`);
    else if (file.size > MOST_BYTES) refused.push(`${file.name}: expected at most ${MOST_BYTES >> 20} MiB, found ${Math.round(file.size / 1048576)}`);
    else dropped[name] = new Uint8Array(await file.arrayBuffer());
    if (/\.(star|csv)$/.test(name) && dropped[name] && !schedulesChosen().includes(name)) state.s = [...schedulesChosen(), name].join(",");
    if (/\.json$/.test(name) && dropped[name]) state.view = "files";
    if (/\.(sh|ya?ml)$/.test(name) && dropped[name]) { state.job = "--job " + name; setMode("job"); }
  }
  refill();
  if (refused.length) byId("refused").textContent = refused.join("\n");
}

// For the browser's console: await pipesim(["predict", "--stages", "4", "--micro", "8"]).
window.pipesim = (args, files = {}) => run("console", args, files);

recallState();
connectForm();
connectEditor();
connectTools();
refill();
