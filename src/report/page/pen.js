// Two pens with the same strokes: one draws on the canvas, one writes SVG.

const FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif";
const measure = document.createElement("canvas").getContext("2d");
const widths = new Map();
// Width of a text; remembered, since the same labels are drawn in every frame.
function textWidth(text, size) {
  const key = size + "|" + text;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 20000) widths.clear();
    measure.font = size + "px " + FONT;
    widths.set(key, width = measure.measureText(text).width);
  }
  return width;
}
function shorten(text, width, size) {
  if (textWidth(text, size) <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(text.slice(0, middle) + "…", size) <= width) low = middle; else high = middle - 1;
  }
  return low ? text.slice(0, low) + "…" : "";
}

class CanvasPen {
  constructor(context, color) {
    this.context = context;
    this.pattern = hatchPattern(context, color);
    this.fill = "";
  }
  box(x, y, w, h, color) {
    if (this.fill !== color) this.context.fillStyle = this.fill = color;
    this.context.fillRect(x, y, w, h);
  }
  hatch(x, y, w, h) {
    this.context.fillStyle = this.pattern;
    this.fill = "";
    this.context.fillRect(x, y, w, h);
  }
  frame(x, y, w, h, color, width, dashed) {
    const c = this.context;
    c.strokeStyle = color;
    c.lineWidth = width;
    c.setLineDash(dashed ? [3, 2] : []);
    c.strokeRect(x, y, w, h);
    c.setLineDash([]);
  }
  line(x1, y1, x2, y2, color, width) {
    const c = this.context;
    c.strokeStyle = color;
    c.lineWidth = width;
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x2, y2);
    c.stroke();
  }
  text(x, y, text, color, size, align, bold) {
    const c = this.context;
    c.font = (bold ? "600 " : "") + size + "px " + FONT;
    c.textAlign = align || "start";
    c.fillStyle = color;
    this.fill = "";
    c.fillText(text, x, y);
  }
  // Columns a pixel wide from `x` on, column k in ink `best[k]` (class and shade) with strength `total[k]`.
  columns(x, y, h, best, total, n) {
    if (!this.strip || this.strip.width !== n) {
      this.strip = document.createElement("canvas");
      this.strip.width = n;
      this.strip.height = 1;
      this.stripContext = this.strip.getContext("2d");
      this.stripPixels = this.stripContext.createImageData(n, 1);
      this.words = new Uint32Array(this.stripPixels.data.buffer);
    }
    for (let k = 0; k < n; k++) {
      const strength = total[k];
      this.words[k] = strength > 0 ? inkWords[best[k]] | Math.min(255, 40 + strength * 260) << 24 : 0;
    }
    this.stripContext.putImageData(this.stripPixels, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.strip, 0, 0, n, 1, x, y, n, h);
  }
  // Draws `inside` only within the rectangle.
  clip(x, y, w, h, inside) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    this.fill = "";
    inside();
    c.restore();
    this.fill = "";
  }
}

function hatchPattern(context, color) {
  const tile = document.createElement("canvas"), ratio = window.devicePixelRatio || 1;
  tile.width = tile.height = Math.round(7 * ratio);
  const c = tile.getContext("2d"), s = tile.width;
  c.strokeStyle = color;
  c.lineWidth = ratio;
  c.beginPath();
  for (const shift of [-s, 0, s]) {
    c.moveTo(shift - 1, s + 1);
    c.lineTo(shift + s + 1, -1);
  }
  c.stroke();
  const pattern = context.createPattern(tile, "repeat");
  if (ratio !== 1) pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
  return pattern;
}

const escapeXml = text => text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, " ")
  .replace(/[&<>"']/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
const short = value => String(Math.round(value * 100) / 100);

// Class and shade as the bytes blue, green, red of a pixel.
const inkWords = data.classes.flatMap(cls => cls.shades.map(([hex]) => {
  const rgb = parseInt(hex.slice(1), 16);
  return (rgb & 255) << 16 | rgb & 0xff00 | rgb >> 16;
}));

class SvgPen {
  constructor(color) {
    this.hatchColor = color;
    this.out = [];
    this.clips = 0;
  }
  box(x, y, w, h, color) {
    if (w > 0 && h > 0) this.out.push(`<path fill="${color}" d="M${short(x)} ${short(y)}h${short(w)}v${short(h)}h-${short(w)}z"/>`);
  }
  hatch(x, y, w, h) { this.box(x, y, w, h, "url(#hatch)"); }
  frame(x, y, w, h, color, width, dashed) {
    this.out.push(`<rect fill="none" stroke="${color}" stroke-width="${width}"${dashed ? ' stroke-dasharray="3 2"' : ""} x="${short(x)}" y="${short(y)}" width="${short(Math.max(0, w))}" height="${short(h)}"/>`);
  }
  line(x1, y1, x2, y2, color, width) {
    this.out.push(`<path stroke="${color}" stroke-width="${width}" d="M${short(x1)} ${short(y1)}L${short(x2)} ${short(y2)}"/>`);
  }
  text(x, y, text, color, size, align, bold) {
    const anchor = { center: "middle", right: "end", end: "end" }[align];
    this.out.push(`<text x="${short(x)}" y="${short(y)}" font-size="${size}" fill="${color}"${anchor ? ` text-anchor="${anchor}"` : ""}${bold ? ' font-weight="600"' : ""}>${escapeXml(text)}</text>`);
  }
  clip(x, y, w, h, inside) {
    const id = "clip" + this.clips++;
    this.out.push(`<clipPath id="${id}"><rect x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}"/></clipPath><g clip-path="url(#${id})">`);
    inside();
    this.out.push("</g>");
  }
  columns(x, y, h, best, total, n) {
    for (let k = 0; k < n; k++) {
      if (!(total[k] > 0)) continue;
      let end = k + 1;
      while (end < n && best[end] === best[k] && total[k] > 0.6 && total[end] > 0.6) end++;
      this.box(x + k, y, total[k] > 0.6 ? end - k : Math.max(0.2, total[k]), h, data.classes[best[k] >> 2].shades[best[k] & 3][0]);
      k = end - 1;
    }
  }
  finish(width, height, ground) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escapeXml(FONT)}">` +
      `<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0v5" stroke="${this.hatchColor}"/></pattern></defs>` +
      `<rect width="100%" height="100%" fill="${ground}"/>${this.out.join("\n")}</svg>\n`;
  }
}

