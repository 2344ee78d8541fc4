//! The picture as PNG, at twice the size of the SVG.

use super::canvas::{Anchor, Ink, Picture, Shape, Style};
use super::font::Letters;
use super::palette::{Hatch, PERIOD, Rgb, Tone, mix};
use super::{Report, WriteError, layout};
use std::io::Write;

/// Pixels that a picture may have; beyond, it is drawn smaller.
const MOST_PIXELS: f64 = 60e6;

/// The picture as a PNG file's bytes.
pub fn png(report: &Report) -> Result<Vec<u8>, WriteError> {
    let picture = layout::picture(report);
    let scale = [2.0, 1.0]
        .into_iter()
        .find(|s| picture.width * s * picture.height * s <= MOST_PIXELS)
        .unwrap_or((MOST_PIXELS / picture.width / picture.height).sqrt());
    let (width, height) = ((picture.width * scale) as u32, (picture.height * scale).max(1.0) as u32);
    let pixels = vec![255; width as usize * height as usize * 3];
    let mut raster =
        Raster { picture: &picture, scale, width: width as usize, height: height as usize, pixels, below: Vec::new() };
    // What lies below boxes: they do not overlap, so that each takes its share of a pixel from that, not from its neighbours.
    let (boxes, others): (Vec<&Shape>, Vec<&Shape>) =
        picture.shapes.iter().partition(|shape| matches!(shape, Shape::Boxes(Ink::Box(..) | Ink::Mixed(_), _)));
    others.into_iter().for_each(|shape| raster.shape(shape));
    raster.below = raster.pixels.clone();
    boxes.into_iter().for_each(|shape| raster.shape(shape));
    raster.texts(&Letters::new()?);
    encode(&raster.pixels, width, height)
}

/// The pixels. Texts come last; nothing lies above them.
struct Raster<'a> {
    picture: &'a Picture,
    scale: f64,
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    /// The same without boxes.
    below: Vec<u8>,
}

impl Raster<'_> {
    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Boxes(ink, rects) => rects.iter().for_each(|rect| self.filled(*ink, rect)),
            Shape::Lines(ink, lines) => {
                let thin = if *ink == Ink::Cap { 0.7 } else { 1.0 / self.scale.max(1.0) + 0.2 };
                for &[x1, y1, x2, y2] in lines {
                    self.fill(&[x1, y1, (x2 - x1).max(thin), (y2 - y1).max(thin)], self.picture.color(*ink));
                }
            }
            Shape::Steps { ink, base, points } => {
                for pair in points.windows(2) {
                    let (x, y) = pair[0];
                    self.fill(&[x, y, pair[1].0 - x, base - y], self.picture.color(*ink));
                }
            }
            Shape::Texts(..) => {}
        }
    }

    fn filled(&mut self, ink: Ink, rect: &[f64; 4]) {
        let (color, opacity) = (self.picture.color(ink), f64::from(self.picture.opacity(ink)) / 255.0);
        let hatched = self.picture.tone(ink).filter(|tone| tone.hatch != Hatch::Plain);
        let lines = hatched.map(|tone| Lines { tone, thick: self.picture.thickness(ink) });
        match (ink, lines) {
            (Ink::Box(..) | Ink::Mixed(_), lines) => self.add(rect, color, lines, opacity),
            (_, Some(lines)) => self.each(rect, None, |pixels, _, at, point, covered| {
                blend(pixels, at, mix(color, lines.tone.line, lines.share(point)), covered);
            }),
            (_, None) => self.fill(rect, color),
        }
        if ink == Ink::Idle {
            let (&[x, y, w, h], thin) = (rect, 0.5);
            for edge in [[x, y, w, thin], [x, y + h - thin, w, thin], [x, y, thin, h], [x + w - thin, y, thin, h]] {
                self.fill(&edge, self.picture.color(Ink::Frame));
            }
        }
    }

    /// Fills a rectangle; pixels that it covers in part are blended.
    fn fill(&mut self, rect: &[f64; 4], color: Rgb) {
        self.each(rect, Some(color), |pixels, _, at, _, covered| blend(pixels, at, color, covered));
    }

    /// The same for one of several boxes without overlaps: beside others, it covers what lies below them all.
    fn add(&mut self, rect: &[f64; 4], color: Rgb, lines: Option<Lines>, opacity: f64) {
        let opaque = Some(color).filter(|_| opacity > 0.999 && lines.is_none());
        self.each(rect, opaque, |pixels, below, at, point, covered| {
            let color = lines.map_or(color, |lines| mix(color, lines.tone.line, lines.share(point)));
            for i in 0..3 {
                let below = f64::from(below[at + i]);
                let sum = f64::from(pixels[at + i]) + (f64::from(color[i]) - below) * covered * opacity;
                pixels[at + i] = sum.round().clamp(0.0, 255.0) as u8;
            }
        });
    }

    /// Calls `paint` with the pixels, those below boxes, where the three numbers of a pixel of a rectangle start, that pixel's
    /// centre in the picture and size, and the share of it that the rectangle covers; those that it covers wholly become `opaque`,
    /// if that is given.
    fn each(
        &mut self,
        [x, y, w, h]: &[f64; 4],
        opaque: Option<Rgb>,
        paint: impl Fn(&mut [u8], &[u8], usize, [f64; 3], f64),
    ) {
        let s = self.scale;
        let (left, right) = ((x * s).max(0.0), ((x + w) * s).min(self.width as f64));
        let (top, bottom) = ((y * s).max(0.0), ((y + h) * s).min(self.height as f64));
        if right <= left || bottom <= top {
            return;
        }
        let whole = (right.floor() as usize).saturating_sub(left.ceil() as usize);
        let line = opaque.map(|color| color.repeat(whole));
        for row in top as usize..(bottom.ceil() as usize).min(self.height) {
            let down = (bottom.min(row as f64 + 1.0) - top.max(row as f64)).min(1.0);
            // The columns that are covered wholly.
            let (mut from, mut to) = (left.ceil() as usize, right.floor() as usize);
            match &line {
                Some(line) if down > 0.999 && from < to => {
                    self.pixels[(row * self.width + from) * 3..][..line.len()].copy_from_slice(line);
                }
                _ => (from, to) = (usize::MAX, usize::MAX),
            }
            let columns = left as usize..(right.ceil() as usize).min(self.width);
            for column in (columns.start..columns.end.min(from)).chain(columns.start.max(to)..columns.end) {
                let across = (right.min(column as f64 + 1.0) - left.max(column as f64)).min(1.0);
                let point = [(column as f64 + 0.5) / s, (row as f64 + 0.5) / s, 1.0 / s];
                paint(&mut self.pixels, &self.below, (row * self.width + column) * 3, point, across * down);
            }
        }
    }

    fn texts(&mut self, letters: &Letters) {
        for shape in &self.picture.shapes {
            let Shape::Texts(style, texts) = shape else { continue };
            texts.iter().for_each(|(x, y, text)| self.text(letters, *style, (*x, *y), text));
        }
    }

    fn text(&mut self, letters: &Letters, style: Style, (x, y): (f64, f64), text: &str) {
        let size = style.size * self.scale;
        let width = letters.width(text) * size;
        let x = x * self.scale
            - match style.anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => width / 2.0,
                Anchor::End => width,
            };
        let color = self.picture.color(style.ink);
        // The built-in font is light: written twice, a pixel apart where it is to be bold, it reads as it should.
        for shift in [0.0, f64::from(u8::from(style.bold))] {
            letters.draw(text, size, ((x + shift).round(), (y * self.scale).round()), |column, row, covered| {
                let inside = (0..self.width as i64).contains(&column) && (0..self.height as i64).contains(&row);
                if inside {
                    blend(&mut self.pixels, (row as usize * self.width + column as usize) * 3, color, covered);
                }
            });
        }
    }
}

/// A hatch.
#[derive(Clone, Copy)]
struct Lines {
    tone: Tone,
    thick: f64,
}

impl Lines {
    /// The share of a pixel of this centre and size that its lines cover.
    fn share(&self, [x, y, size]: [f64; 3]) -> f64 {
        let free = self.tone.hatch.across().iter().map(|(dx, dy)| {
            let away = (((x * dx + y * dy) / PERIOD).rem_euclid(1.0) - 0.5).abs() * PERIOD;
            1.0 - ((self.thick / 2.0 - away) / size + 0.5).clamp(0.0, 1.0)
        });
        1.0 - free.product::<f64>()
    }
}

/// Mixes a share of a colour into the pixel whose numbers start at `at`.
fn blend(pixels: &mut [u8], at: usize, color: Rgb, share: f64) {
    for (pixel, c) in pixels[at..at + 3].iter_mut().zip(color) {
        *pixel = (f64::from(*pixel) + (f64::from(c) - f64::from(*pixel)) * share).round() as u8;
    }
}

fn no_room(error: std::io::Error) -> WriteError {
    WriteError::Format(format!("expected room for a PNG, found none: {error}"))
}

/// An 8-bit RGB PNG file.
fn encode(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, WriteError> {
    let stride = width as usize * 3;
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
    let above = vec![0u8; stride];
    let mut previous = &above[..];
    let mut line = vec![0u8; stride + 1];
    for row in pixels.chunks_exact(stride) {
        line[0] = 2; // filter "up": rows of a timeline repeat the row above
        for (i, out) in line[1..].iter_mut().enumerate() {
            *out = row[i].wrapping_sub(previous[i]);
        }
        packed.write_all(&line).map_err(no_room)?;
        previous = row;
    }
    let data = packed.finish().map_err(no_room)?;
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    for (name, body) in [(b"IHDR", &header), (b"IDAT", &data), (b"IEND", &Vec::new())] {
        out.extend((body.len() as u32).to_be_bytes());
        let mut crc = flate2::Crc::new();
        crc.update(name);
        crc.update(body);
        out.extend(name);
        out.extend(body);
        out.extend(crc.sum().to_be_bytes());
    }
    Ok(out)
}
