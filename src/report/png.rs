//! The picture as PNG, at twice the size of the SVG.

use super::canvas::{Anchor, Ink, Picture, Shape, Style};
use super::layout;
use super::palette::{Rgb, mix, wants_white_text};
use super::{Report, WriteError};
use plotters::prelude::{BitMapBackend, DrawingBackend, FontStyle, IntoTextStyle, RGBColor};
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
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
    let mut raster =
        Raster { scale, width: width as usize, height: height as usize, pixels: Vec::new(), below: Vec::new() };
    raster.pixels = vec![255; raster.width * raster.height * 3];
    // What lies below boxes: they do not overlap, so that each takes its share of a pixel from that, not from its neighbours.
    let (boxes, others): (Vec<&Shape>, Vec<&Shape>) =
        picture.shapes.iter().partition(|shape| matches!(shape, Shape::Boxes(Ink::Box(..) | Ink::Mixed(_), _)));
    others.into_iter().for_each(|shape| raster.shape(shape));
    raster.below = raster.pixels.clone();
    boxes.into_iter().for_each(|shape| raster.shape(shape));
    texts(&picture, &mut raster)?;
    encode(&raster.pixels, width, height)
}

/// The pixels. Texts come last; nothing lies above them.
struct Raster {
    scale: f64,
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    /// The same without boxes.
    below: Vec<u8>,
}

impl Raster {
    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Boxes(Ink::Idle, rects) => rects.iter().for_each(|rect| self.hatch(rect)),
            Shape::Boxes(ink @ Ink::Mixed([.., opacity]), rects) => {
                rects.iter().for_each(|rect| self.add(rect, color(*ink), f64::from(*opacity) / 255.0));
            }
            Shape::Boxes(ink @ Ink::Box(..), rects) => rects.iter().for_each(|rect| self.add(rect, color(*ink), 1.0)),
            Shape::Boxes(ink, rects) => rects.iter().for_each(|rect| self.fill(rect, color(*ink))),
            Shape::Lines(ink, lines) => {
                let thin = 1.0 / self.scale.max(1.0) + 0.2;
                for &[x1, y1, x2, y2] in lines {
                    self.fill(&[x1, y1, (x2 - x1).max(thin), (y2 - y1).max(thin)], color(*ink));
                }
            }
            Shape::Steps { ink, base, points } => {
                for pair in points.windows(2) {
                    let (x, y) = pair[0];
                    self.fill(&[x, y, pair[1].0 - x, base - y], color(*ink));
                }
            }
            Shape::Texts(..) => {}
        }
    }

    /// Fills a rectangle; pixels that it covers in part are blended.
    fn fill(&mut self, rect: &[f64; 4], color: Rgb) {
        self.each(rect, Some(color), |pixels, _, at, covered| {
            for (pixel, &c) in pixels[at..at + 3].iter_mut().zip(&color) {
                *pixel = (f64::from(*pixel) + (f64::from(c) - f64::from(*pixel)) * covered).round() as u8;
            }
        });
    }

    /// The same for one of several boxes without overlaps: beside others, it covers what lies below them all.
    fn add(&mut self, rect: &[f64; 4], color: Rgb, opacity: f64) {
        let opaque = Some(color).filter(|_| opacity > 0.999);
        self.each(rect, opaque, |pixels, below, at, covered| {
            for i in 0..3 {
                let below = f64::from(below[at + i]);
                let sum = f64::from(pixels[at + i]) + (f64::from(color[i]) - below) * covered * opacity;
                pixels[at + i] = sum.round().clamp(0.0, 255.0) as u8;
            }
        });
    }

    /// Calls `paint` with the pixels, those below boxes, where the three numbers of a pixel of a rectangle start, and the share
    /// of it that the rectangle covers; those that it covers wholly become `opaque`, if that is given.
    fn each(&mut self, [x, y, w, h]: &[f64; 4], opaque: Option<Rgb>, paint: impl Fn(&mut [u8], &[u8], usize, f64)) {
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
                paint(&mut self.pixels, &self.below, (row * self.width + column) * 3, across * down);
            }
        }
    }

    /// Diagonal lines in a thin frame, the same across neighbouring rectangles.
    fn hatch(&mut self, &[x, y, w, h]: &[f64; 4]) {
        if w <= 0.0 || h <= 0.0 {
            return;
        }
        let s = self.scale;
        let period = (5.5 * s).round().max(3.0) as i64;
        for row in (y * s) as usize..(((y + h) * s) as usize).min(self.height) {
            for column in (x * s) as usize..(((x + w) * s) as usize).min(self.width) {
                if (column as i64 + row as i64) % period < (0.6 * s).ceil() as i64 {
                    let at = (row * self.width + column) * 3;
                    self.pixels[at..at + 3].copy_from_slice(&[0xd3, 0xd7, 0xdd]);
                }
            }
        }
        let thin = 0.5;
        for edge in [[x, y, w, thin], [x, y + h - thin, w, thin], [x, y, thin, h], [x + w - thin, y, thin, h]] {
            self.fill(&edge, color(Ink::Idle));
        }
    }
}

const FONT: &str = "pipesim";

fn texts(picture: &Picture, raster: &mut Raster) -> Result<(), WriteError> {
    register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| WriteError::Format("expected the built-in font to be usable, but it is not".to_string()))?;
    let (scale, size) = (raster.scale, (raster.width as u32, raster.height as u32));
    let mut backend = BitMapBackend::with_buffer(&mut raster.pixels, size);
    for shape in &picture.shapes {
        let Shape::Texts(style, texts) = shape else { continue };
        for (x, y, text) in texts {
            write_text(&mut backend, *style, (x * scale, y * scale), scale, text)?;
        }
    }
    Ok(())
}

fn write_text(
    backend: &mut BitMapBackend,
    style: Style,
    (x, y): (f64, f64),
    scale: f64,
    text: &str,
) -> Result<(), WriteError> {
    let size = style.size * scale * 1.12;
    let horizontal = match style.anchor {
        Anchor::Start => HPos::Left,
        Anchor::Middle => HPos::Center,
        Anchor::End => HPos::Right,
    };
    let [r, g, b] = color(style.ink);
    let ink = RGBColor(r, g, b);
    let font = (FONT, size).into_text_style(&backend.get_size()).color(&ink).pos(Pos::new(horizontal, VPos::Bottom));
    // The built-in font is light: written twice, a pixel apart where it is to be bold, it reads as it should.
    for shift in [0, i32::from(style.bold)] {
        let at = (x.round() as i32 + shift, (y + size * 0.12).round() as i32);
        backend.draw_text(text, &font, at).map_err(|e| WriteError::Format(e.to_string()))?;
    }
    Ok(())
}

fn color(ink: Ink) -> Rgb {
    match ink {
        Ink::Box(class, shade) => class.color(shade),
        Ink::Mixed([r, g, b, _]) => [r, g, b],
        Ink::On(class, shade) if wants_white_text(class.color(shade)) => [255; 3],
        Ink::On(..) => [0x11; 3],
        Ink::Idle => [0xd7, 0xdb, 0xe1],
        Ink::Memory => [0xa9, 0xb4, 0xc6],
        Ink::Axis => [0x59, 0x63, 0x6e],
        Ink::Grid => [0xe6, 0xe9, 0xed],
        Ink::Phase(false) => [0x59, 0x63, 0x6e],
        Ink::Phase(true) => mix([0x59, 0x63, 0x6e], [255; 3], 0.45),
        Ink::Text => [0x1f, 0x23, 0x28],
        Ink::Muted => [0x59, 0x63, 0x6e],
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
