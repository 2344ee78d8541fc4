// Why: what held an op back, why a device idles, and the chain of ops that decides the makespan.

// What held the op at `ref` back: {free, gap, need, arrival}.
function held(panel, ref) {
  const spans = panel.queues[ref.device][0];
  let free = 0;
  for (let j = Math.max(0, ref.i - spans.lanes); j < ref.i; j++) if (spans.end[j] <= spans.start[ref.i] + 1e-12) free = Math.max(free, spans.end[j]);
  let need = null, arrival = 0;
  if (spans.code[ref.i] < KINDS.length) {
    for (const candidate of panel.needs(ref)) {
      const at = panel.arrival(candidate, ref);
      if (!need || at > arrival) [need, arrival] = [candidate, at];
    }
  }
  return { free, gap: spans.start[ref.i] - free, need, arrival };
}

// What a device idled for between two moments: {cause, time, blamed, on}, pieces of one cause and op added up.
function causesBetween(panel, device, from, to) {
  const gaps = panel.gaps[device], found = [], small = panel.end * 1e-9;
  for (let i = gaps.from(from + small); i < gaps.n && gaps.start[i] < to - small; i++) {
    const time = Math.min(to, gaps.end[i]) - Math.max(from, gaps.start[i]), [code, stage, microbatch, on] = gaps.blamed.subarray(4 * i, 4 * i + 4);
    const blamed = code < 0 ? "" : panel.opName(code, stage, microbatch);
    const same = found.find(piece => piece.cause === gaps.cause[i] && piece.blamed === blamed);
    if (same) same.time += time; else found.push({ cause: gaps.cause[i], time, blamed, on });
  }
  return found;
}

// The role of the op to blame, by the name of the cause.
function blame(panel, piece) {
  if (!piece.blamed) return "";
  const op = piece.blamed + (piece.on >= 0 ? " on device " + piece.on : ""), cause = data.causes[piece.cause].name;
  if (cause === "imbalance") return op + " takes longer than the average of its kind";
  return /^(order|memory cap|own peak)$/.test(cause) ? op + " could have run here" : "it waits for " + op;
}
const sentence = (panel, piece) => {
  const { name, text } = data.causes[piece.cause], who = blame(panel, piece);
  return `${quantity(piece.time, panel.unit)} of ${name} (${text})${who ? ": " + who : ""}.`;
};

// Why the op at `ref` did not start earlier, in a few sentences.
function why(panel, ref) {
  const { free, gap, need, arrival } = held(panel, ref);
  const small = panel.end * 1e-6 + panel.uncertainty, start = panel.start(ref);
  const time = value => quantity(value, panel.unit);
  if (start <= small) return "It starts the step.";
  if (gap <= small) {
    const before = ref.i > 0 ? panel.name({ ...ref, i: ref.i - 1 }) : "";
    return "No wait: the device was busy with " + before + " until then.";
  }
  const where = need && need.device !== ref.device ? " on device " + need.device : "";
  const pieces = causesBetween(panel, ref.device, free, start);
  if (pieces.length) {
    const needed = need ? ` It needs ${panel.name(need)}${where}, which ended at ${panel.at(panel.end_(need))}.` : "";
    return `The device idled ${time(gap)} before it. ` + pieces.map(piece => sentence(panel, piece)).join(" ") + needed;
  }
  if (need && arrival > free + small) {
    const way = arrival - panel.end_(need), more = start - arrival;
    let text = "Waited " + time(Math.min(arrival, start) - free) + " for " + panel.name(need) + where + ", which ended at " + panel.at(panel.end_(need)) + ".";
    if (way > small) text += " Its data took " + time(way) + " more to arrive.";
    if (more > small) text += " Then it took " + time(more) + " to start.";
    return text;
  }
  if (need) return "Its data was there and the device idle since " + panel.at(Math.max(free, arrival)) + ": it took " + time(start - Math.max(free, arrival)) + " to start.";
  return "The device was idle for " + time(gap) + " before it.";
}

// The gap of a device around a moment: {from, to, next}; nothing where the device is busy.
function gapAt(panel, device, time) {
  const spans = panel.queues[device][0];
  if (time < 0 || time > panel.iteration) return null;
  let next = spans.from(time), from = 0;
  while (next < spans.n && spans.end[next] < time) next++;
  for (let j = Math.max(0, next - 2 * spans.lanes); j < next; j++) from = Math.max(from, spans.end[j]);
  if (next < spans.n && spans.start[next] <= time) return null;
  return { from, to: next < spans.n ? spans.start[next] : panel.iteration, next: next < spans.n ? { device, queue: 0, i: next } : null };
}

// The chain of ops that decides the makespan, by device; made when first asked for.
function criticalPath(panel) {
  if (panel.path) return panel.path;
  let last = null;
  panel.queues.forEach(([spans], device) => {
    for (let i = 0; i < spans.n; i++) {
      if (spans.code[i] < KINDS.length && (!last || spans.end[i] > panel.end_(last))) last = { device, queue: 0, i };
    }
  });
  const path = panel.queues.map(() => []);
  for (let guard = 0; last && guard < 1e6; guard++) {
    path[last.device].push(last);
    const { free, need, arrival } = held(panel, last);
    const before = last.i > 0 ? { device: last.device, queue: 0, i: last.i - 1 } : null;
    if (need && (arrival >= free - panel.end * 1e-9 && (need.device !== last.device || !before) || !before)) last = need;
    else last = before;
  }
  for (const refs of path) refs.reverse();
  return panel.path = path;
}
