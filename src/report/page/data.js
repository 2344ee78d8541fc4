// The data: decoding, numbers for readers, what an op needs and unblocks.

// Kinds of op: their names, and what boxes show of them.
const KINDS = data.kinds.map(kind => kind[0]), OP_LETTERS = data.kinds.map(kind => kind[1]);
// Class numbers as in the legend: that of an op is its kind's.
const [FORWARD, INPUT, WEIGHT, BACKWARD, RECOMPUTE] = [0, 1, 2, 3, 4];
const STEP = KINDS.length, SEND = STEP + 1, RECEIVE = STEP + 2;
// An op's name: stage, kind, micro-batch, slice.
const OP = new RegExp("^(\\d+)(" + KINDS.join("|") + ")(\\d+)(?:\\.(\\d+))?$");
const MISSING = "–";

// Four significant digits, thousands separated by commas.
function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(value)));
  if (magnitude < -6 || magnitude > 14) return value.toExponential(3);
  return trimmed(value, Math.min(9, Math.max(0, 3 - magnitude)));
}
function trimmed(value, decimals) {
  let [whole, fraction = ""] = value.toFixed(decimals).split(".");
  fraction = fraction.replace(/0+$/, "");
  whole = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction ? whole + "." + fraction : whole === "-0" ? "0" : whole;
}
const percent = value => Number.isFinite(value) ? Math.abs(value) >= 10 ? trimmed(value * 100, 0) + " %" : (value * 100).toFixed(1).replace(/^-0\.0$/, "0.0") + " %" : MISSING;
const signed = value => (value > 0 && percent(value) !== "0.0 %" ? "+" : "") + percent(value);
const points = value => Number.isFinite(value) ? ((value > 0 ? "+" : "") + value.toFixed(1)).replace(/^[+-]0\.0$/, "0.0") + " points" : MISSING;
const many = unit => unit === "unit" ? "units" : unit;
const quantity = (value, unit) => number(value) + " " + (number(value) === "1" ? unit : many(unit));

// Spans of one queue of one device: flat arrays, times in the panel's unit.
class Spans {
  constructor(flat, queue, panel) {
    const stride = queue === 0 ? 8 : 9, n = flat.length / stride, scale = panel.tick / panel.unitNs;
    this.n = n;
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    this.code = new Int32Array(n);
    this.stage = new Int32Array(n);
    this.microbatch = new Int32Array(n);
    this.extra = new Int32Array(n * 4);
    this.lanes = 1;
    let at = 0;
    for (let i = 0, j = 0; i < n; i++, j += stride) {
      this.code[i] = flat[j];
      this.stage[i] = flat[j + 1];
      this.microbatch[i] = flat[j + 2];
      at += flat[j + 3];
      this.start[i] = at * scale;
      at += flat[j + 4];
      this.end[i] = at * scale;
      for (let k = 5; k < stride; k++) this.extra[i * 4 + k - 5] = flat[j + k];
      if (queue === 0) this.lanes = Math.max(this.lanes, flat[j + 7] % 64);
    }
  }
  // The first span that may reach beyond `time`.
  from(time) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] < time) low = middle + 1; else high = middle;
    }
    return this.lanes > 1 ? Math.max(0, low - 2 * this.lanes) : low;
  }
  phase(i) { return this.extra[i * 4]; }
  shade(i) { return this.extra[i * 4 + 1]; }
  lane(i) { return Math.floor(this.extra[i * 4 + 2] / 64); }
  laneCount(i) { return this.extra[i * 4 + 2] % 64; }
  partner(i) { return this.extra[i * 4] < 0 ? null : [this.extra[i * 4], this.extra[i * 4 + 1], this.extra[i * 4 + 2]]; }
  peer(i) { return this.extra[i * 4 + 3]; }
}

// Why one device idles: gaps by time, each with its cause, the op to blame and that op's device.
class Gaps {
  constructor(flat, panel) {
    const n = flat.length / 7, scale = panel.tick / panel.unitNs;
    this.n = n;
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    this.cause = new Uint8Array(n);
    this.blamed = new Int32Array(n * 4);
    for (let i = 0, j = 0, at = 0; i < n; i++, j += 7) {
      this.cause[i] = flat[j];
      this.start[i] = (at += flat[j + 1]) * scale;
      this.end[i] = (at += flat[j + 2]) * scale;
      for (let k = 0; k < 4; k++) this.blamed[i * 4 + k] = flat[j + 3 + k];
    }
  }
  // The first gap that ends after `time`.
  from(time) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] <= time) low = middle + 1; else high = middle;
    }
    return low;
  }
}

class Panel {
  constructor(raw, entry, index) {
    Object.assign(this, raw);
    this.entry = entry;
    this.index = index;
    this.queues = raw.rows.map(row => [0, 1, 2].map(queue => new Spans(row[queue], queue, raw)));
    this.gaps = raw.rows.map(row => new Gaps(row[4], raw));
    this.explained = this.gaps.some(gaps => gaps.n);
    this.peak = raw.cap || 0;
    this.memory = raw.rows.map(row => {
      const flat = row[3], n = flat.length / 2, time = new Float64Array(n), held = new Float64Array(n);
      for (let i = 0, at = 0; i < n; i++) {
        at += flat[2 * i];
        time[i] = at * raw.tick / raw.unitNs;
        held[i] = flat[2 * i + 1];
        this.peak = Math.max(this.peak, held[i]);
      }
      return { time, held };
    });
    this.lanes = lanesOf(raw);
    delete this.rows;
    this.hasSend = this.queues.some(queues => queues[1].n);
    this.hasReceive = this.queues.some(queues => queues[2].n);
    this.stages = this.devices * this.chunks;
    // A duration that nine of ten ops reach, for labels of one form.
    const lasting = [];
    for (const [spans] of this.queues) for (let i = 0, step = Math.max(1, spans.n >> 5); i < spans.n; i += step) if (spans.code[i] < KINDS.length) lasting.push(spans.end[i] - spans.start[i]);
    this.brief = lasting.sort((a, b) => a - b)[Math.floor(lasting.length / 10)] || 0;
  }
  // Predicted or measured, and on a mesh whose workers it shows.
  get title() { return this.worker ? this.source + ", " + this.worker : this.source; }
  // The same for a row, if all workers are shown: r1 t0 for replica 1, tensor rank 0.
  get brief_() { return this.worker && shown.workers ? this.worker.replace("replica ", "r").replace("tensor rank ", "t").replace(",", "") : this.source; }
  // A moment, to a hundred-thousandth of the time axis.
  at(time) { return trimmed(time, Math.min(9, Math.max(0, 5 - Math.ceil(Math.log10(this.end))))); }
  // A unit is a micro-batch, or a slice of one: 3, or 3.1.
  unitName(unit) { return this.slices > 1 ? Math.floor(unit / this.slices) + "." + unit % this.slices : String(unit); }
  opName(code, stage, unit) { return code < KINDS.length ? stage + KINDS[code] + this.unitName(unit) : this.names[code - KINDS.length]; }
  name(ref) {
    const spans = this.queues[ref.device][ref.queue];
    return this.opName(spans.code[ref.i], spans.stage[ref.i], spans.microbatch[ref.i]);
  }
  start(ref) { return this.queues[ref.device][ref.queue].start[ref.i]; }
  end_(ref) { return this.queues[ref.device][ref.queue].end[ref.i]; }
  key(code, stage, unit) { return (stage * (this.microbatches * this.slices + 1) + unit) * KINDS.length + code; }

  // Where each op is computed, sent and waited for; made when first asked for.
  get index_() {
    if (this.found) return this.found;
    const compute = new Map(), sends = new Map(), receives = new Map();
    this.queues.forEach((queues, device) => queues.forEach((spans, queue) => {
      for (let i = 0; i < spans.n; i++) {
        if (spans.code[i] >= KINDS.length) continue;
        const key = this.key(spans.code[i], spans.stage[i], spans.microbatch[i]);
        const map = queue === 0 ? compute : queue === 1 ? sends : receives, ref = { device, queue, i };
        if (queue === 0) { if (!map.has(key)) map.set(key, ref); }
        else if (map.has(key)) map.get(key).push(ref); else map.set(key, [ref]);
      }
    }));
    return this.found = { compute, sends, receives };
  }
  compute(code, stage, microbatch) { return this.index_.compute.get(this.key(code, stage, microbatch)); }
  byName(name) {
    const match = OP.exec(name);
    if (!match || (match[4] !== undefined) !== this.slices > 1) return undefined;
    return this.compute(KINDS.indexOf(match[2]), +match[1], +match[3] * this.slices + +(match[4] || 0));
  }

  // The ops whose outputs the op at `ref` needs: the rule of the pipeline, the same as the program's.
  needs(ref) {
    const spans = this.queues[ref.device][0], code = spans.code[ref.i], stage = spans.stage[ref.i], m = spans.microbatch[ref.i];
    const backward = (s, unit) => this.compute(INPUT, s, unit) || this.compute(BACKWARD, s, unit), n = this.slices;
    const found = [];
    if (code === FORWARD && stage > 0) found.push(this.compute(FORWARD, stage - 1, m));
    if (code === FORWARD && m % n > 0) found.push(this.compute(FORWARD, stage, m - 1));
    if (code === INPUT || code === BACKWARD) {
      if (stage + 1 < this.stages) found.push(backward(stage + 1, m));
      if (m % n < n - 1) found.push(backward(stage, m + 1));
      found.push(this.compute(FORWARD, stage, m), this.compute(RECOMPUTE, stage, m));
    }
    if (code === WEIGHT) found.push(this.compute(INPUT, stage, m));
    if (code === RECOMPUTE) found.push(this.compute(FORWARD, stage, m));
    return found.filter(Boolean);
  }
  unblocks(ref) {
    const spans = this.queues[ref.device][0], code = spans.code[ref.i], stage = spans.stage[ref.i], m = spans.microbatch[ref.i];
    const backward = (s, unit) => this.compute(INPUT, s, unit) || this.compute(BACKWARD, s, unit), n = this.slices;
    const found = [];
    if (code === FORWARD) {
      if (m % n < n - 1) found.push(this.compute(FORWARD, stage, m + 1));
      if (stage + 1 < this.stages) found.push(this.compute(FORWARD, stage + 1, m));
      else found.push(this.compute(RECOMPUTE, stage, m) || backward(stage, m));
    }
    if (code === RECOMPUTE) found.push(backward(stage, m));
    if ((code === INPUT || code === BACKWARD) && stage > 0) found.push(backward(stage - 1, m));
    if ((code === INPUT || code === BACKWARD) && m % n > 0) found.push(backward(stage, m - 1));
    if (code === INPUT) found.push(this.compute(WEIGHT, stage, m));
    return found.filter(Boolean);
  }
  // When the output of `from` was at the device of `to`.
  arrival(from, to) {
    const source = this.queues[from.device][0], end = source.end[from.i];
    if (from.device === to.device) return end;
    const target = this.queues[to.device][0];
    const sameOp = (spans, j, of, i) =>
      spans.extra[j * 4] === of.code[i] && spans.extra[j * 4 + 1] === of.stage[i] && spans.extra[j * 4 + 2] === of.microbatch[i];
    const sent = this.index_.sends.get(this.key(source.code[from.i], source.stage[from.i], source.microbatch[from.i])) || [];
    for (const ref of sent) {
      const spans = this.queues[ref.device][1];
      if (sameOp(spans, ref.i, target, to.i)) return Math.max(end, spans.end[ref.i]);
    }
    const waited = this.index_.receives.get(this.key(target.code[to.i], target.stage[to.i], target.microbatch[to.i])) || [];
    for (const ref of waited) {
      const spans = this.queues[ref.device][2];
      if (sameOp(spans, ref.i, source, from.i)) return Math.max(end, spans.end[ref.i]);
    }
    return end;
  }
}

const entries = data.entries.map((raw, e) => {
  const entry = { name: raw.name, notes: raw.notes, error: raw.error, iteration: raw.iteration, number: e, panels: [] };
  entry.panels = raw.panels.map((panel, i) => new Panel(panel, entry, i));
  return entry;
});
const panels = entries.flatMap(entry => entry.panels);
data.entries = null;

