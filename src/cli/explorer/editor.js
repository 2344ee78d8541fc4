// The schedule of one's own: its text, coloured, with the place of an error marked.

const KEYWORDS = /\b(def|return|for|in|if|else|elif|and|or|not|lambda|load|pass|break|continue|None|True|False)\b/;
const TOKENS = new RegExp(["(#[^\\n]*)", "(\"\"\"[\\s\\S]*?(?:\"\"\"|$)|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?)", KEYWORDS.source, "(\\b(?:F|I|W|B|R|O|L|S|IF|IB)\\b)", "(\\b\\d+(?:\\.\\d+)?\\b)"].join("|"), "g");
const KINDS_OF_TOKEN = ["comment", "string", "keyword", "op", "number"];

// Colours the text behind the transparent one that is edited.
function colour(source, errorLine) {
  const out = document.createDocumentFragment();
  let at = 0;
  const plain = upTo => out.append(source.slice(at, upTo));
  for (const match of source.matchAll(TOKENS)) {
    plain(match.index);
    out.append(make("span", { class: KINDS_OF_TOKEN[match.slice(1).findIndex(group => group !== undefined)] }, match[0]));
    at = match.index + match[0].length;
  }
  plain(source.length);
  out.append("\n");
  byId("coloured").replaceChildren(out);
  byId("lines").replaceChildren(...source.split("\n").flatMap((_, k) => [make("span", k + 1 === errorLine ? { class: "wrong" } : {}, String(k + 1)), "\n"]));
}

let wrongLine = 0;
// Marks the line of the schedule that an error message names.
function markLine(message) {
  const place = /mine\.star:(\d+)/.exec(message);
  wrongLine = place ? +place[1] : 0;
  colour(state.mine, wrongLine);
}

// Which communication the schedule runs with, beside it.
async function judge() {
  if (!state.mine) { byId("verdict").textContent = ""; return; }
  const result = await run("verdict", ["check", "--stages", state.p, "--micro", state.m, "-s", MINE], files());
  if (result) byId("verdict").textContent = result.out ? result.out.split("\n\n")[0] : "Not a schedule for these p and m.";
}

async function startFrom(name) {
  const result = await run("text", ["schedules", name], {});
  if (!result || result.code) return;
  state.mine = result.out;
  if (!schedulesChosen().includes(MINE)) state.s = [...schedulesChosen(), MINE].join(",");
  refill();
}

function connectEditor() {
  const area = byId("mine");
  area.addEventListener("input", () => {
    state.mine = area.value;
    if (state.mine && !schedulesChosen().includes(MINE)) state.s = [...schedulesChosen(), MINE].join(",");
    if (!state.mine) state.s = schedulesChosen().filter(name => name !== MINE).join(",");
    fillSchedules();
    colour(state.mine, 0);
    ask();
  });
  area.addEventListener("scroll", () => { for (const id of ["coloured", "lines"]) byId(id).scrollTop = area.scrollTop; byId("coloured").scrollLeft = area.scrollLeft; });
  area.addEventListener("keydown", event => {
    if (event.key !== "Tab" || event.shiftKey || !area.value) return; // Escape, then Tab leaves the field
    if (area.dataset.leaves) return;
    event.preventDefault();
    area.setRangeText("    ", area.selectionStart, area.selectionEnd, "end");
    area.dispatchEvent(new Event("input"));
  });
  area.addEventListener("keyup", event => { if (event.key === "Escape") area.dataset.leaves = "yes"; });
  area.addEventListener("blur", () => { delete area.dataset.leaves; });
  byId("start").addEventListener("change", event => { if (event.target.value) startFrom(event.target.value); });
}
