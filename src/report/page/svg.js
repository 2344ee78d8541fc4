// The pen that writes SVG: texts stay texts, strips are pictures of one row.

const escapeXml = text => text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, " ")
  .replace(/[&<>"']/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
const short = value => String(Math.round(value * 100) / 100);

class SvgPen {
  // `prefix` keeps names apart where several drawings stand in one document.
  constructor(color, prefix = "") {
    Object.assign(this, { ratio: 2, out: [], names: 0, prefix, hatched: hatches(color), sheet: new StripSheet(1) });
  }
  box(x, y, w, h, color) {
    if (w > 0 && h > 0) this.out.push(`<path fill="${color}" d="M${short(x)} ${short(y)}h${short(w)}v${short(h)}h-${short(w)}z"/>`);
  }
  // Lines within the rectangle, cut here: programs that read SVG differ in how they draw patterns, and paint them large.
  hatch(x, y, w, h, name) {
    const { ink, ground, lines, gap, width = 1 } = this.hatched[name], d = [];
    if (ground) this.box(x, y, w, h, ground);
    if (!(w > 0 && h > 0)) return;
    const every = (from, to, draw) => { for (let k = Math.ceil(from / gap); k * gap <= to; k++) draw(k * gap); };
    const stroke = (x1, y1, x2, y2) => d.push(`M${short(x1)} ${short(y1)}L${short(x2)} ${short(y2)}`);
    // on x + y = c and on x - y = c
    if (lines === "/" || lines === "x") every(x + y, x + w + y + h, c => { const left = Math.max(x, c - y - h), right = Math.min(x + w, c - y); if (right > left) stroke(left, c - left, right, c - right); });
    if (lines === "\\" || lines === "x") every(x - y - h, x + w - y, c => { const left = Math.max(x, c + y), right = Math.min(x + w, c + y + h); if (right > left) stroke(left, left - c, right, right - c); });
    if (lines === "|" || lines === "+") every(x, x + w, at => stroke(at, y, at, y + h));
    if (lines === "-" || lines === "+") every(y, y + h, at => stroke(x, at, x + w, at));
    if (d.length) this.out.push(`<path fill="none" stroke="${ink}" stroke-width="${width}" d="${d.join("")}"/>`);
  }
  frame(x, y, w, h, color, width, dashed) {
    this.out.push(`<rect fill="none" stroke="${color}" stroke-width="${width}"${dashed ? ' stroke-dasharray="3 2"' : ""} x="${short(x)}" y="${short(y)}" width="${short(Math.max(0, w))}" height="${short(h)}"/>`);
  }
  line(x1, y1, x2, y2, color, width, dashed) {
    this.out.push(`<path stroke="${color}" stroke-width="${width}"${dashed ? ' stroke-dasharray="4 3"' : ""} d="M${short(x1)} ${short(y1)}L${short(x2)} ${short(y2)}"/>`);
  }
  text(x, y, text, color, size, align, bold) {
    const anchor = { center: "middle", right: "end", end: "end" }[align];
    this.out.push(`<text x="${short(x)}" y="${short(y)}" font-size="${size}" fill="${color}"${anchor ? ` text-anchor="${anchor}"` : ""}${bold ? ' font-weight="600"' : ""}>${escapeXml(text)}</text>`);
  }
  beginStrips(n) { this.sheet.begin(n); }
  strip(strip, idle, x, y, w, h) {
    const { sheet } = this;
    sheet.add(strip, idle, 0, 0, 1, 1);
    sheet.context.putImageData(sheet.pixels, 0, 0);
    sheet.places = [];
    this.out.push(`<image x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${sheet.canvas.toDataURL()}"/>`);
  }
  finishStrips() {}
  clip(x, y, w, h, inside) {
    const id = this.prefix + "clip" + this.names++;
    this.out.push(`<clipPath id="${id}"><rect x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}"/></clipPath><g clip-path="url(#${id})">`);
    inside();
    this.out.push("</g>");
  }
  shift(x, y, inside) {
    this.out.push(`<g transform="translate(${short(x)} ${short(y)})">`);
    inside();
    this.out.push("</g>");
  }
  finish(width, height, ground, title) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" font-family="${escapeXml(FONT)}"><title>${escapeXml(title)}</title>` +
      `<rect width="100%" height="100%" fill="${ground}"/>${this.out.join("\n")}</svg>\n`;
  }
}
