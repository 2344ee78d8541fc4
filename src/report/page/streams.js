// Sub-ops of a step whose pairs run on two streams: a lane per stream below each device's ops.

const STREAMS = ["compute", "communication", "side"];

// One stream of one device: flat arrays, times in the panel's unit. A sub-op is 4 numbers: class, name, ns since the one before, ns.
function streamOf(flat, panel) {
  const n = flat.length / 4, stream = { n, start: new Float64Array(n), end: new Float64Array(n), cls: [], name: [] };
  for (let i = 0, at = 0; i < n; i++) {
    stream.cls.push(flat[4 * i]);
    stream.name.push(panel.names[flat[4 * i + 1]]);
    stream.start[i] = (at += flat[4 * i + 2]) / panel.unitNs;
    stream.end[i] = (at += flat[4 * i + 3]) / panel.unitNs;
  }
  return stream;
}
const streamsOf = raw => raw.rows.map(row => (row[5] || []).map(flat => streamOf(flat, raw)));

// Places a lane for each stream of a panel from `y` on; returns where the lanes end.
function arrangeStreams(band, y) {
  band.streams = [];
  if (band.high < 13) return y;
  band.streamHigh = Math.round(band.high * 0.7);
  STREAMS.forEach((_, s) => {
    if (!band.panel.streams.some(streams => streams[s] && streams[s].n)) return;
    band.streams[s] = y + 0.5;
    y += band.streamHigh;
  });
  return y;
}

function paintStreams(pen, band, width, dy) {
  const plot = plotWidth(width), panel = band.panel, scale = plot / (view.to - view.from) / panel.end, shift = GUTTER - view.from * panel.end * scale;
  const right = GUTTER + plot, size = Math.min(11, band.streamHigh * 0.66), high = band.streamHigh - 1;
  panel.streams[band.device].forEach((stream, s) => {
    if (band.streams[s] === undefined) return;
    const y = band.streams[s] + dy;
    for (let i = 0; i < stream.n; i++) {
      const x = stream.start[i] * scale + shift, w = stream.end[i] * scale + shift - x;
      if (x > right) break;
      if (x + w < GUTTER || !shown.classes[stream.cls[i]]) continue;
      const cls = stream.cls[i], [fill, ink] = data.classes[cls].shades[0];
      if (data.classes[cls].hatch) pen.hatch(x, y, Math.max(0.4, w - 0.7), high, `class${cls}.0`);
      else pen.box(x, y, Math.max(0.4, w - 0.7), high, fill);
      const from = Math.max(x, GUTTER), to = Math.min(x + w, right), name = stream.name[i];
      const text = to - from > 8 && [name, name.slice(0, 1)].find(text => textWidth(text, size) <= to - from - 2.5);
      if (text) pen.text((from + to) / 2, y + high / 2 + size * 0.36, text, ink, size, "center");
    }
  });
}

function labelStreams(pen, band, dy, color) {
  band.streams.forEach((y, s) => pen.text(GUTTER - 5, y + dy + band.streamHigh / 2 + 2.5, STREAMS[s], color.muted, 8, "right"));
}
