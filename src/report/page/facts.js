// What stands under the timeline: figures, errors, distribution, definitions, provenance.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function tableOf(caption, header, rows, unseen) {
  const head = element("tr", {}, ...header.map(name => element("th", { scope: "col" }, name)));
  const body = rows.map(row => element("tr", {}, ...header.map((_, i) => {
    const text = row[i] === undefined ? "" : String(row[i]), title = text.length > 40 ? text : undefined;
    if (i === 0) return element("th", { scope: "row", title }, text);
    return element("td", { class: /^[^\d+\-–*]/.test(text) ? "text" : text.length > 24 ? "long" : undefined, title }, text);
  })));
  const table = element("table", {}, element("caption", {}, unseen ? element("span", { class: "unseen" }, caption) : caption), element("thead", {}, head), element("tbody", {}, ...body));
  // what scrolls sideways must be reachable by keys
  const wide = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, table);
  // Where columns are hidden, a line above says so.
  const hint = element("p", { class: "hint", hidden: "" }), whole = element("div", {}, hint, wide);
  const tell = () => {
    const columns = [...table.tHead.rows[0].cells], left = wide.getBoundingClientRect().left, edge = wide.clientWidth;
    const hidden = columns.filter(cell => cell.getBoundingClientRect().right - left > edge + 1).length;
    wide.classList.toggle("more", hidden > 0);
    hint.hidden = wide.scrollWidth <= edge + 1;
    hint.textContent = hidden ? `scroll → for ${hidden} more column${hidden > 1 ? "s" : ""}` : "← scrolled to the last column";
  };
  wide.addEventListener("scroll", tell, { passive: true });
  new ResizeObserver(tell).observe(wide);
  return whole;
}
const svgNode = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

function figures() {
  const header = ["schedule", "source", "makespan", "iteration", "bubble", "span bubble", "bubble over ideal", "efficiency", "lower bound", "gap to bound", "lower bound if split", "span", "ideal", "peak activations"];
  const rows = panels.filter(p => !p.onRequest).map(p => {
    const m = p.metrics, typical = m.typical_speed, gap = (typical || m).gap_to_bound;
    return [p.entry.name, p.source, quantity(m.makespan, p.unit), quantity(p.source === "predicted" && p.entry.iteration || p.iteration, p.unit), percent(m.bubble), percent(m.span_bubble), percent(m.bubble_over_ideal), percent(m.efficiency),
      m.lower_bound === undefined ? MISSING : quantity(m.lower_bound, p.unit) + (typical ? " at median speed" : ""),
      gap === undefined ? MISSING : typical ? `${percent(gap)} at median speed (makespan there ${quantity(typical.makespan, p.unit)})` : percent(gap),
      m.lower_bound_if_split === undefined ? MISSING : quantity(m.lower_bound_if_split, p.unit), quantity(m.span, p.unit), quantity(m.ideal, p.unit), number(Math.max(0, ...m.per_device.map(d => d.peak_activations)))];
  });
  const definitions = element("dl", { class: "definitions" });
  for (const [name, text] of [
    ["makespan", "time 0 to the end of the last F, I, W or B"],
    ["iteration", "time 0 to the end of the last span of any kind, step ops included; of a model on hardware also what no span shows"],
    ["span", "longest (last end − first start) over devices"],
    ["ideal", "the busiest device's time in F, I, W and B; waits and transfers are never busy"],
    ["bubble", "1 − Σ busy / (p · makespan)"],
    ["span bubble", "(span − ideal) / span; the zero-bubble papers' “bubble rate”"],
    ["bubble over ideal", "(makespan − ideal) / ideal"],
    ["efficiency", "1 − bubble"],
    ["lower bound", "no order of these ops, on this placement and under these costs, has a smaller makespan; gap to bound = makespan / lower bound − 1, both at the typical speed of a machine whose speed varied"],
    ["lower bound if split", "the same of orders whose backwards are whole or split into I and W as they like"],
    ["activations", "1 is what a device's whole share of layers keeps for one micro-batch; the curve and its peak count what is held between F and the backward"],
  ]) definitions.append(element("dt", {}, name), element("dd", {}, text));
  return [element("h2", {}, "Figures"), tableOf("One row a schedule; what the columns mean stands below", header, rows), definitions];
}

function errors() {
  const found = entries.filter(entry => entry.error);
  if (!found.length) return [];
  const out = [element("h2", {}, "Predicted against measured")], orMissing = value => value == null ? MISSING : signed(value);
  const inARow = found.some(entry => entry.error.period != null);
  out.push(tableOf("Errors of the prediction, by schedule", ["schedule", "makespan error", "iteration error", ...(inARow ? ["period error"] : []), "bubble error", "op start error, median", "op start error, 95 %", "self-replay error"],
    found.map(({ name, error: e }) => [name, signed(e.makespan), orMissing(e.iteration), ...(inARow ? [orMissing(e.period)] : []), points(e.bubble), percent(e.op_start_p50), percent(e.op_start_p95), orMissing(e.self_replay)])));
  out.push(element("p", { class: "note" }, "Makespan error: predicted / measured − 1, of the two timelines. Iteration error: the same with the step ops after the last backward. Period error: the same of steps without a barrier between them. Bubble error: percentage points. Op start error: |predicted − measured start| as a fraction of the iteration. Self-replay: the run's own durations fed back into the simulation."));
  const columns = element("div", { class: "columns" });
  const curves = found.filter(entry => entry.error.op_start_cdf.length);
  if (curves.length) columns.append(element("div", {}, element("h3", {}, "Op start error: share of ops at or below"), distribution(curves)));
  const kinds = found.flatMap(({ name, error }) => error.per_kind.map(k => [name, k.kind, number(k.predicted_ms), number(k.measured_ms), k.measured_ms ? signed(k.predicted_ms / k.measured_ms - 1) : MISSING, number(k.count)]));
  if (kinds.length) columns.append(element("div", {}, element("h3", {}, "Duration by kind"), tableOf("Mean durations, predicted and measured", ["schedule", "kind", "predicted ms", "measured ms", "error", "ops"], kinds)));
  out.push(columns);
  return out;
}

function distribution(list) {
  const w = 460, h = 240, left = 42, right = 96, top = 8, bottom = 30;
  const most = Math.max(1e-6, ...list.flatMap(entry => entry.error.op_start_cdf.map(point => point[0])));
  const x = value => left + Math.min(1, value / most) * (w - left - right), y = share => h - bottom - share * (h - top - bottom);
  const plot = svgNode("svg", { class: "plot", width: w, height: h, viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "distribution of the op start error" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) plot.append(svgNode("path", { class: share ? "grid" : "axis", d: `M${left} ${y(share)}H${w - right}` }), svgNode("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, share * 100 + " %"));
  const { found } = ticks(0, most * 100, 5);
  for (const t of found) plot.append(svgNode("path", { class: "axis", d: `M${x(t / 100)} ${h - bottom}v4` }), svgNode("text", { x: x(t / 100), y: h - bottom + 16, "text-anchor": "middle" }, number(t)));
  plot.append(svgNode("text", { x: (left + w - right) / 2, y: h - 1, "text-anchor": "middle" }, "error, % of the iteration"));
  const inks = [FORWARD, BACKWARD, INPUT, SEND, RECEIVE, WEIGHT, STEP].map(cls => data.classes[cls].shades[0][0]), dashes = ["", "6 3", "2 2", "8 2 2 2"];
  list.slice(0, 12).forEach((entry, k) => {
    const points = entry.error.op_start_cdf;
    let d = "";
    points.forEach(([e, share], i) => { d += i ? `H${x(e).toFixed(1)}V${y(share).toFixed(1)}` : `M${x(e).toFixed(1)} ${y(share).toFixed(1)}`; });
    plot.append(svgNode("path", { class: "curve", d, stroke: inks[k % inks.length], "stroke-dasharray": dashes[k % 4] }));
    plot.append(svgNode("path", { class: "curve", d: `M${w - right + 8} ${14 + 16 * k}h18`, stroke: inks[k % inks.length], "stroke-dasharray": dashes[k % 4] }));
    plot.append(svgNode("text", { class: "name", x: w - right + 30, y: 18 + 16 * k }, shorten(entry.name, right - 34, 11)));
  });
  return plot;
}

function devices() {
  const out = [];
  for (const entry of entries) for (const panel of entry.panels) {
    const m = panel.metrics, error = panel.source === "measured" && !panel.onRequest ? entry.error : null;
    const rows = m.per_device.map(d => [d.device, number(d.busy), number(d.idle), percent(m.makespan > 0 ? d.busy / m.makespan : 0), number(d.peak_activations)]
      .concat(error ? [number(error.wait_ms_per_device[d.device]), number(error.transfer_ms_per_device[d.device])] : []));
    const header = ["device", "busy " + panel.unit, "idle " + panel.unit, "busy", "peak activations"].concat(error ? ["waited ms", "transfers ms"] : []);
    out.push(element("details", {}, element("summary", {}, entry.name + ", " + panel.title), tableOf("Devices of " + entry.name + ", " + panel.title, header, rows)));
  }
  return out.length ? [element("h2", {}, "By device"), ...out] : [];
}

// A table of the report's own: its caption is a heading, and what it explains beyond that a paragraph.
function further({ caption, header, rows }) {
  const match = /^([^:.]{3,}?)(?:: |\. )(.+)$/s.exec(caption), [heading, rest] = match ? [match[1], match[2]] : [caption, ""];
  return [element("h2", {}, heading), ...(rest ? [element("p", { class: "note" }, ...coded(rest[0].toUpperCase() + rest.slice(1)))] : []), tableOf(heading, header, rows, true)];
}
// Text in which `this` is code.
const coded = text => text.split("`").map((part, i) => i % 2 ? element("code", {}, part) : part);

function remarks() {
  const out = [];
  for (const entry of entries) for (const note of entry.notes) out.push(element("p", { class: "note" }, ...coded(entry.name + ": " + note)));
  if (data.mixed) out.push(element("p", { class: "note" }, "Panels of different time units are each drawn on their own scale; an axis is its upper panel's."));
  const uncertain = panels.filter(p => p.uncertainty > 0);
  for (const p of uncertain) out.push(element("p", { class: "note" }, `${p.entry.name}, ${p.source}: clocks of different devices may disagree by up to ${quantity(p.uncertainty, p.unit)}.`));
  if (out.length) out.unshift(element("h2", {}, "Notes"));
  for (const table of data.tables) out.push(...further(table));
  out.push(...provenance());
  return out;
}

// Where the figures are from: what holds for the whole page, then what some panels add to it, each said once.
function provenance() {
  const list = element("dl", { class: "definitions" }), told = new Map(Object.entries(data.provenance).map(([key, value]) => [key + "\n" + value, null]));
  for (const p of panels) for (const [key, value] of Object.entries(p.provenance)) {
    const fact = key + "\n" + value;
    if (!told.has(fact)) told.set(fact, []);
    if (told.get(fact)) told.get(fact).push(p);
  }
  for (const [fact, of] of told) {
    const [key, value] = fact.split("\n"), names = !of ? "" : of.length === panels.length ? (key in data.provenance ? "timelines: " : "") : of.map(p => p.entry.name + ", " + p.source).join("; ") + ": ";
    list.append(element("dt", {}, names + key), element("dd", { class: key === "command" ? "code" : undefined }, value));
  }
  return told.size ? [element("h2", {}, "Provenance"), list] : [];
}

function fillPage() {
  document.getElementById("title").textContent = data.title || "pipesim report";
  document.getElementById("verdict").textContent = data.verdict;
  document.getElementById("subtitle").textContent = data.subtitle;
  document.getElementById("facts").append(...figures(), ...errors(), ...devices(), ...remarks());
}

