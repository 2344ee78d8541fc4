// Boxes too narrow to be drawn one by one: what covers each column of a row, mixed by area.

const rgbOf = hex => { const n = parseInt(hex.length < 5 ? hex.replace(/\w/g, "$&$&").slice(1) : hex.slice(1), 16); return [n >> 16, n >> 8 & 255, n & 255]; };
const mixed = (a, b, share) => a.map((value, k) => value * (1 - share) + b[k] * share);
const hexOf = rgb => "#" + rgb.map(value => Math.round(value).toString(16).padStart(2, "0")).join("");

// Number of shades of a class; one whose chunks look alike has a single one in the data.
const SHADES = 8;
data.classes.forEach(cls => { while (cls.shades.length < SHADES) cls.shades.push(cls.shades[0]); });
// Inks: class and shade, then causes. The colour of a hatched class is the mean of its lines and what lies between.
const CAUSE_INK = data.classes.length * SHADES;
const CAUSE_SHARE = 0.55;
const inks = new Float32Array((CAUSE_INK + data.causes.length) * 3);
data.classes.forEach((cls, c) => cls.shades.forEach(([color], shade) => inks.set(rgbOf(color), (c * SHADES + shade) * 3)));
// Gaps are hatched on the ground, which is light or dark; colours of causes are made for a light one.
const causeRgb = (cause, ground) => mixed(rgbOf(cause.color), [255, 255, 255], rgbOf(ground)[1] < 128 ? 0.4 : 0);
function inkCauses(ground) {
  data.causes.forEach((cause, c) => inks.set(mixed(rgbOf(ground), causeRgb(cause, ground), CAUSE_SHARE), (CAUSE_INK + c) * 3));
}

class Strip {
  // Starts a row of `n` columns.
  begin(n) {
    if (!this.sum || this.sum.length < 4 * n) this.sum = new Float32Array(4 * n);
    this.sum.fill(0, 0, 4 * n);
    this.n = n;
    this.used = false;
  }
  // Covers from column `from` to `to`, both in parts of columns, and a share `weight` of the height.
  add(from, to, ink, weight) {
    if (from < 0) from = 0;
    if (to > this.n) to = this.n;
    if (!(to > from)) return;
    this.used = true;
    const { sum } = this, red = inks[3 * ink], green = inks[3 * ink + 1], blue = inks[3 * ink + 2];
    for (let column = Math.floor(from), j = 4 * column; column < to; column++, j += 4) {
      const part = ((column + 1 < to ? column + 1 : to) - (column > from ? column : from)) * weight;
      sum[j] += part * red;
      sum[j + 1] += part * green;
      sum[j + 2] += part * blue;
      sum[j + 3] += part;
    }
  }
  // Writes the row as pixels (alpha, blue, green, red from the high byte down). What a column in `idle` = {from, to, rgb} has left
  // is of that colour; elsewhere it is transparent.
  write(words, at, idle) {
    const { sum, n } = this;
    for (let k = 0, j = 0; k < n; k++, j += 4) {
      let cover = sum[j + 3];
      if (cover < 0.004) { words[at + k] = 0; continue; }
      let red = sum[j], green = sum[j + 1], blue = sum[j + 2], alpha = 255;
      if (cover > 1) { red /= cover; green /= cover; blue /= cover; }
      else if (cover < 0.996) {
        const rest = idle ? Math.min(1 - cover, Math.max(0, Math.min(k + 1, idle.to) - Math.max(k, idle.from))) : 0;
        if (rest > 0) { red += rest * idle.rgb[0]; green += rest * idle.rgb[1]; blue += rest * idle.rgb[2]; cover += rest; }
        if (cover < 0.996) { red /= cover; green /= cover; blue /= cover; alpha = cover * 255; }
      }
      words[at + k] = (alpha + 0.5 | 0) << 24 | Math.min(255, blue + 0.5 | 0) << 16 | Math.min(255, green + 0.5 | 0) << 8 | Math.min(255, red + 0.5 | 0);
    }
  }
}

// Strips as one picture, a row each, so that the browser takes them over at once.
class StripSheet {
  constructor(rows) {
    this.rows = rows;
    this.canvas = document.createElement("canvas");
    this.n = 0;
  }
  // Makes room for rows of `n` columns.
  begin(n) {
    if (this.n !== n) {
      this.n = this.canvas.width = n;
      this.canvas.height = this.rows;
      this.context = this.canvas.getContext("2d", { willReadFrequently: true });
      this.pixels = this.context.createImageData(n, this.rows);
      this.words = new Uint32Array(this.pixels.data.buffer);
    }
    this.places = [];
  }
  get isFull() { return this.places.length === this.rows; }
  add(strip, idle, x, y, w, h) {
    strip.write(this.words, this.places.length * this.n, idle);
    this.places.push([x, y, w, h]);
  }
  draw(context) {
    if (!this.places.length) return;
    this.context.putImageData(this.pixels, 0, 0, 0, 0, this.n, this.places.length);
    context.imageSmoothingEnabled = false;
    this.places.forEach(([x, y, w, h], row) => context.drawImage(this.canvas, 0, row, this.n, 1, x, y, w, h));
    this.places = [];
  }
}
