// Lanes below each device's ops: the sub-ops of a step whose pairs run on streams, copies to and from the host, gathers, reductions.

// One lane of one device: flat arrays, times in the panel's unit. A box is 4 numbers: class, name, ns since the one before, ns.
function laneOf(flat, panel) {
  const n = flat.length / 4, lane = { n, start: new Float64Array(n), end: new Float64Array(n), cls: [], name: [], tries: [] };
  for (let i = 0, at = 0; i < n; i++) {
    const cls = flat[4 * i], name = panel.names[flat[4 * i + 1]];
    lane.cls.push(cls);
    lane.name.push(name);
    lane.tries.push(briefly(name, cls));
    lane.start[i] = (at += flat[4 * i + 2]) / panel.unitNs;
    lane.end[i] = (at += flat[4 * i + 3]) / panel.unitNs;
  }
  return lane;
}
const lanesOf = raw => raw.rows.map(row => (row[5] || []).map(flat => laneOf(flat, raw)));

// What a box may be called: letter and micro-batch, or stage if it has none, then the number alone; a sub-op's name or its first letter.
function briefly(name, cls) {
  const match = /^(\d+)[A-Z_]+(\d+(?:\.\d+)?)?$/.exec(name), number = match && (match[2] || match[1]);
  return match ? [data.classes[cls].letter + number, number] : [name, name.slice(0, 1)];
}

// Places the lanes of a panel from `y` on; returns where they end.
function arrangeLanes(band, y) {
  band.lanes = [];
  if (band.high < 13) return y;
  band.laneHigh = Math.round(band.high * 0.7);
  data.lanes.forEach((_, s) => {
    if (!band.panel.lanes.some(lanes => lanes[s] && lanes[s].cls.some((cls, i) => shown.classes[cls] && lanes[s].end[i] > lanes[s].start[i]))) return;
    band.lanes[s] = y + 0.5;
    y += band.laneHigh;
  });
  return y;
}

function paintLanes(pen, band, width, dy) {
  const plot = plotWidth(width), panel = band.panel, scale = plot / (view.to - view.from) / panel.end, shift = GUTTER - view.from * panel.end * scale;
  const right = GUTTER + plot, size = Math.min(11, band.laneHigh * 0.66), high = band.laneHigh - 1;
  panel.lanes[band.device].forEach((lane, s) => {
    if (band.lanes[s] === undefined) return;
    const y = band.lanes[s] + dy;
    for (let i = 0; i < lane.n; i++) {
      const x = lane.start[i] * scale + shift, w = lane.end[i] * scale + shift - x;
      if (x > right) break;
      if (x + w < GUTTER || !shown.classes[lane.cls[i]]) continue;
      const cls = lane.cls[i], [fill, ink] = data.classes[cls].shades[0];
      if (data.classes[cls].hatch) pen.hatch(x, y, Math.max(0.4, w - 0.7), high, `class${cls}.0`);
      else pen.box(x, y, Math.max(0.4, w - 0.7), high, fill);
      const from = Math.max(x, GUTTER), to = Math.min(x + w, right);
      const text = to - from > 8 && lane.tries[i].find(text => textWidth(text, size) <= to - from - 2.5);
      if (text) pen.text((from + to) / 2, y + high / 2 + size * 0.36, text, ink, size, "center");
    }
  });
}

function labelLanes(pen, band, dy, color) {
  band.lanes.forEach((y, s) => pen.text(GUTTER - 5, y + dy + band.laneHigh / 2 + 2.5, data.lanes[s], color.muted, 8, "right"));
}

// The box of a lane at a moment: {lane, i}; `at` is the height on the canvas.
function inLane(band, at, time, near) {
  const s = band.lanes.findIndex(y => y !== undefined && at >= y - 0.5 && at < y - 0.5 + band.laneHigh);
  if (s < 0) return null;
  const lane = band.panel.lanes[band.device][s], fits = i => lane.start[i] <= time + near && lane.end[i] > time - near && shown.classes[lane.cls[i]];
  return { lane, i: lane.cls.findIndex((_, i) => fits(i)) };
}
function describeInLane(panel, device, { lane, i }) {
  if (i < 0) return null;
  const at = time => panel.at(time) + " " + many(panel.unit);
  const facts = [["where", placeOf(panel, device)], ["kind", data.classes[lane.cls[i]].name], ["start", at(lane.start[i])], ["end", at(lane.end[i])], ["duration", quantity(lane.end[i] - lane.start[i], panel.unit)]];
  return { title: lane.name[i], facts, text: "" };
}
