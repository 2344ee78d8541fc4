// What the program knew when it wrote this page: schedules, models, hardware; the token of the server, if one serves it.
const facts = JSON.parse(document.getElementById("facts").textContent);

// What is asked: fields, the address that holds them, and the command line that they make.

// Each field: its place in the form, its default, and the option of the command line that it becomes.
const MINE = "mine.star";
const FIELDS = {
  mode: { value: "costs" },
  view: { value: "timeline" },
  s: { value: "1f1b,zb-v" },
  p: { value: "4", option: "--stages" },
  m: { value: "8", option: "--micro" },
  v: { value: "", option: "--chunks" },
  F: { value: "1", cost: true },
  I: { value: "1", cost: true },
  W: { value: "1", cost: true },
  comm: { value: "0", cost: true },
  keep: { value: "1", cost: true },
  per: { value: "" },
  delivery: { value: "one-sided", option: "--delivery" },
  cap: { value: "", option: "--memory-cap" },
  model: { value: "llama-3-70b", option: "--model", hardware: true },
  hardware: { value: "h100-sxm", option: "--hardware", hardware: true },
  tp: { value: "8", option: "--tp", hardware: true },
  dp: { value: "1", option: "--dp", hardware: true },
  mbs: { value: "1", option: "--micro-batch-size", hardware: true },
  seq: { value: "8192", option: "--seq", hardware: true },
  sp: { value: "on", option: "--sequence-parallel", hardware: true, isSwitch: true },
  recompute: { value: "none", option: "--recompute", hardware: true },
  job: { value: "" },
  more: { value: "" },
  mine: { value: "" },
  ps: { value: "4..16*2" },
  ms: { value: "8..64*2" },
  gpus: { value: "32" },
  batch: { value: "128" },
  line: { value: "explain --stages 8 --micro 16 -s zb-v --costs comm=0.1 --tables" },
};
// What the page begins with: the defaults, but for what the program was started with.
const start = facts.start || { files: {}, state: {} };
const begun = Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, start.state[name] ?? field.value]));
const state = { ...begun };
// Files that were dropped on the page, by name; they stay in this tab.
const dropped = { ...start.files };

function recallState() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(FIELDS)) state[name] = given.has(name) ? given.get(name).slice(0, 100000) : begun[name];
}
let rememberingState = 0;
function rememberState() {
  clearTimeout(rememberingState);
  rememberingState = setTimeout(() => {
    const parts = new URLSearchParams();
    for (const name of Object.keys(FIELDS)) if (state[name] !== begun[name]) parts.set(name, state[name]);
    const hash = "#" + parts;
    if (hash !== (location.hash || "#")) try { history.replaceState(null, "", hash); } catch { /* some browsers forbid it for files */ }
  }, 200);
}

// Chooses where costs come from. A job or a question says the sizes and the layout, unless a field says otherwise.
const OF_JOBS = ["s", "p", "m", "model", "tp", "dp", "mbs", "seq", "sp", "recompute"];
function setMode(mode) {
  if (mode === state.mode) return;
  for (const name of OF_JOBS) if (mode === "job") state[name] = ""; else if (state.mode === "job" && state[name] === "") state[name] = FIELDS[name].value;
  if (mode !== "job" && !state.hardware) state.hardware = FIELDS.hardware.value;
  state.mode = mode;
}

const schedulesChosen = () => state.s.split(",").filter(Boolean);

// A command line's words: quotes hold words together, as in a shell.
function words(line) {
  const found = [];
  for (const match of line.matchAll(/(?:"([^"]*)"|'([^']*)'|[^\s"']+)+/g)) found.push(match[0].replace(/"([^"]*)"|'([^']*)'/g, (_, a, b) => a ?? b));
  return found;
}
const quoted = word => (/^[\w@%+=:,.\/*-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'");

// The costs as --costs takes them; a unit (1ms) in one makes all others need one, which the program says.
function costs() {
  const parts = Object.keys(FIELDS).filter(name => FIELDS[name].cost && state[name].trim() !== "" && state[name] !== FIELDS[name].value).map(name => name + "=" + state[name].trim());
  if (state.per.trim()) parts.push(state.per.trim());
  return parts.join(",");
}

const ofJob = () => (state.mode === "job" ? words(state.job) : []);
// A job says p and m itself.
const size = () => [["--stages", state.p], ["--micro", state.m]].filter(([, number]) => number.trim() !== "" || state.mode !== "job").flat();

// The arguments that choose schedule, costs and machine. `names` are the schedules; `sizes` leaves out p and m.
function choice(names, sizes = true, delivery = true) {
  const args = ofJob(), onHardware = state.mode !== "costs";
  if (sizes) args.push(...size());
  if (names.length) args.push("-s", names.join(","));
  for (const [name, field] of Object.entries(FIELDS)) {
    if (!field.option || name === "p" || name === "m" || name === "delivery" && (!delivery || state[name] === field.value) || field.hardware && !onHardware) continue;
    if (field.isSwitch) {
      if (state[name] === "on" && state.tp.trim() !== "1") args.push(field.option);
    } else if (state[name].trim() !== "" && (field.hardware || state[name] !== field.value)) args.push(field.option, state[name].trim());
  }
  if (!onHardware && costs()) args.push("--costs", costs());
  return [...args, ...words(state.more)];
}

// The files that a command line may read.
const files = () => ({ ...dropped, ...(state.mine ? { [MINE]: state.mine } : {}) });

const commandText = args => "pipesim " + args.map(quoted).join(" ");
