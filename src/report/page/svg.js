// The pen that writes SVG: texts stay texts, strips are pictures of one row.

const escapeXml = text => text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, " ")
  .replace(/[&<>"']/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
const short = value => String(Math.round(value * 100) / 100);

class SvgPen {
  // `prefix` keeps names apart where several drawings stand in one document.
  constructor(color, prefix = "") {
    Object.assign(this, { ratio: 2, out: [], names: 0, prefix, hatched: hatches(color), used: new Set(), sheet: new StripSheet(1) });
  }
  box(x, y, w, h, color) {
    if (w > 0 && h > 0) this.out.push(`<path fill="${color}" d="M${short(x)} ${short(y)}h${short(w)}v${short(h)}h-${short(w)}z"/>`);
  }
  hatch(x, y, w, h, name) {
    this.used.add(name);
    this.box(x, y, w, h, `url(#${this.prefix}${name})`);
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
  patterns() {
    return [...this.used].map(name => {
      const { ink, ground, lines, gap, width = 1 } = this.hatched[name];
      const d = hatchLines(lines, gap).map(([x1, y1, x2, y2]) => `M${x1} ${y1}L${x2} ${y2}`).join("");
      return `<pattern id="${this.prefix}${name}" width="${gap}" height="${gap}" patternUnits="userSpaceOnUse">${ground ? `<path fill="${ground}" d="M0 0h${gap}v${gap}h-${gap}z"/>` : ""}<path stroke="${ink}" stroke-width="${width}" d="${d}"/></pattern>`;
    }).join("");
  }
  finish(width, height, ground, title) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" font-family="${escapeXml(FONT)}"><title>${escapeXml(title)}</title>` +
      `<defs>${this.patterns()}</defs><rect width="100%" height="100%" fill="${ground}"/>${this.out.join("\n")}</svg>\n`;
  }
}
