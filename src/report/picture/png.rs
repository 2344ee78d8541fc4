//! The picture as PNG at twice the size of the SVG, drawn by plotters' bitmap backend.
//!
//! The backend knows whole pixels only, and an op is often narrower than one. [`Boxes`] adds up what the boxes of a row
//! take of each column of pixels and blends the sum once; blended one after the other, neighbours would let through what
//! is behind them. The file is written with flate2, which traces need anyway: the `png` crate would add 6.6 s to a release
//! build (one core) for these 30 lines.

use crate::picture::canvas::{Ink, Picture, Rect, Shape, Style};
use crate::picture::font::Letters;
use crate::picture::layout;
use crate::scene::palette::{Hatch, PERIOD, Rgb, Tone, mix};
use crate::{Report, WriteError};
use plotters::backend::{BitMapBackend, DrawingBackend};
use plotters::style::{Color, RGBAColor, RGBColor};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind};
use std::collections::BTreeMap;
use std::io::Write;

/// Largest number of pixels; beyond, the picture is drawn smaller.
const MOST_PIXELS: f64 = 60e6;

impl Report {
    /// Returns the timelines as a PNG file's bytes.
    ///
    /// # Errors
    /// The font cannot be read or the picture not encoded; the report is not to blame.
    pub fn png(&self) -> Result<Vec<u8>, WriteError> {
        let picture = layout::picture(self);
        bitmap([picture.width, picture.height], |mut bitmap, scale| {
            let mut sheet = Sheet { picture: &picture, scale, bitmap: &mut bitmap };
            let is_box =
                |shape: &Shape| matches!(shape, Shape::Boxes(Ink::Box(..) | Ink::Mixed(_) | Ink::Border(..), _));
            // Boxes are drawn over everything else, and texts over them.
            let (boxes, others): (Vec<&Shape>, Vec<&Shape>) = picture.shapes.iter().partition(|shape| is_box(shape));
            others.iter().try_for_each(|shape| sheet.shape(shape))?;
            sheet.boxes(&boxes)?;
            others.iter().try_for_each(|shape| sheet.texts(shape))
        })
    }
}

/// Returns a PNG of `size` CSS pixels that `draw` fills; it gets the pixels per CSS pixel.
pub fn bitmap<E: std::fmt::Display>(
    [width, height]: [f64; 2],
    draw: impl FnOnce(Bitmap<'_>, f64) -> Result<(), E>,
) -> Result<Vec<u8>, WriteError> {
    let scale = if width * height * 4.0 <= MOST_PIXELS { 2.0 } else { (MOST_PIXELS / width / height).sqrt().min(1.0) };
    let size = ((width * scale) as u32, (height * scale).max(1.0) as u32);
    let mut pixels = vec![255; size.0 as usize * size.1 as usize * 3];
    let bitmap = Bitmap { backend: BitMapBackend::with_buffer(&mut pixels, size), letters: Letters::new()? };
    draw(bitmap, scale)
        .map_err(|error| WriteError::Format(format!("expected to draw a PNG, but could not: {error}")))?;
    encode(&pixels, size.0, size.1)
}

/// plotters' bitmap backend with texts of [`Letters`].
pub struct Bitmap<'a> {
    backend: BitMapBackend<'a>,
    letters: Letters,
}

type BitmapError = <BitMapBackend<'static> as DrawingBackend>::ErrorType;
/// What drawing a bitmap can end with.
pub type Failed = DrawingErrorKind<BitmapError>;

impl DrawingBackend for Bitmap<'_> {
    type ErrorType = BitmapError;

    fn get_size(&self) -> (u32, u32) {
        self.backend.get_size()
    }

    fn ensure_prepared(&mut self) -> Result<(), Failed> {
        self.backend.ensure_prepared()
    }

    fn present(&mut self) -> Result<(), Failed> {
        self.backend.present()
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Result<(), Failed> {
        self.backend.draw_pixel(point, color)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Result<(), Failed> {
        self.backend.draw_line(from, to, style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Result<(), Failed> {
        self.backend.draw_rect(from, to, style, fill)
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, (x, y): BackendCoord) -> Result<(), Failed> {
        let face = &self.letters.regular;
        let (size, (left, base)) = face.placed(text, style);
        let (turn, color) = (style.transform(), style.color());
        let backend = &mut self.backend;
        face.draw(text, size, left.round(), base.round(), |(i, j), share| {
            let (i, j) = turn.transform(i, j);
            backend.draw_pixel((x + i, y + j), BackendColor { alpha: color.alpha * share, ..color })
        })
    }
}

fn color([r, g, b]: Rgb, alpha: f64) -> RGBAColor {
    RGBColor(r, g, b).mix(alpha)
}

/// A bitmap on which a picture is drawn.
struct Sheet<'a, 'b> {
    picture: &'a Picture,
    scale: f64,
    bitmap: &'a mut Bitmap<'b>,
}

impl Sheet<'_, '_> {
    /// Draws everything but boxes of ops and texts.
    fn shape(&mut self, shape: &Shape) -> Result<(), Failed> {
        match shape {
            Shape::Boxes(ink, rects) => rects.iter().try_for_each(|rect| self.area(*ink, rect)),
            Shape::Lines(ink, lines) => {
                let thin = if *ink == Ink::Cap { 0.7 } else { 1.0 / self.scale.max(1.0) + 0.2 };
                lines.iter().try_for_each(|&[x1, y1, x2, y2]| {
                    self.fill(&[x1, y1, (x2 - x1).max(thin), (y2 - y1).max(thin)], self.picture.color(*ink))
                })
            }
            Shape::Steps { ink, base, points } => points.windows(2).try_for_each(|pair| {
                let ((x, y), (end, _)) = (pair[0], pair[1]);
                self.fill(&[x, y, end - x, base - y], self.picture.color(*ink))
            }),
            Shape::Texts(..) => Ok(()),
        }
    }

    /// Draws idle time or a phase.
    fn area(&mut self, ink: Ink, rect: &Rect) -> Result<(), Failed> {
        match self.picture.tone(ink).filter(|tone| tone.hatch != Hatch::Plain) {
            None => self.fill(rect, self.picture.color(ink))?,
            Some(tone) => {
                let (columns, rows) = self.pixels(rect);
                for &(top, bottom, down) in &rows {
                    for &(left, right, across) in &columns {
                        self.hatch([left, top, right, bottom], tone, self.picture.thickness(ink), across * down)?;
                    }
                }
            }
        }
        if ink == Ink::Idle {
            let (&[x, y, w, h], thin) = (rect, 0.5);
            for edge in [[x, y, w, thin], [x, y + h - thin, w, thin], [x, y, thin, h], [x + w - thin, y, thin, h]] {
                self.fill(&edge, self.picture.color(Ink::Frame))?;
            }
        }
        Ok(())
    }

    /// Draws boxes of ops, which do not overlap.
    fn boxes(&mut self, shapes: &[&Shape]) -> Result<(), Failed> {
        // By column of pixels, top and bottom: red, green and blue times the share that is covered, and that share.
        let mut columns: BTreeMap<(i32, [u64; 2]), [f64; 4]> = BTreeMap::new();
        for shape in shapes {
            let Shape::Boxes(ink, rects) = shape else { continue };
            let (ground, opacity) = (self.picture.color(*ink), f64::from(self.picture.opacity(*ink)) / 255.0);
            let tone = self.picture.tone(*ink);
            for rect in rects {
                let (across, rows) = self.pixels(rect);
                for (left, right, share) in across {
                    if share < 1.0 {
                        let mean = tone.map_or(ground, |tone| tone.color);
                        let sum = columns.entry((left, [rect[1], rect[1] + rect[3]].map(f64::to_bits))).or_default();
                        let [r, g, b] = mean.map(f64::from);
                        [r, g, b, 1.0].iter().zip(sum).for_each(|(c, sum)| *sum += c * share * opacity);
                        continue;
                    }
                    for &(top, bottom, share) in &rows {
                        match tone.filter(|tone| tone.hatch != Hatch::Plain) {
                            Some(tone) => {
                                self.hatch([left, top, right, bottom], tone, self.picture.thickness(*ink), share)?;
                            }
                            None => {
                                let color = color(ground, share * opacity);
                                self.bitmap.draw_rect((left, top), (right, bottom), &color, true)?;
                            }
                        }
                    }
                }
            }
        }
        for ((left, edges), [r, g, b, covered]) in columns {
            let rgb = [r, g, b].map(|c| (c / covered.max(1e-9)).round() as u8);
            let [top, bottom] = edges.map(f64::from_bits);
            for (top, bottom, share) in runs(top * self.scale, bottom * self.scale) {
                let color = color(rgb, (share * covered).min(1.0));
                self.bitmap.draw_rect((left, top), (left + 1, bottom), &color, true)?;
            }
        }
        Ok(())
    }

    /// Fills a rectangle; pixels that it covers in part are blended.
    fn fill(&mut self, rect: &Rect, rgb: Rgb) -> Result<(), Failed> {
        let (columns, rows) = self.pixels(rect);
        for &(top, bottom, down) in &rows {
            for &(left, right, across) in &columns {
                self.bitmap.draw_rect((left, top), (right, bottom), &color(rgb, across * down), true)?;
            }
        }
        Ok(())
    }

    /// Draws ground and lines of a hatch on whole pixels.
    fn hatch(
        &mut self,
        [left, top, right, bottom]: [i32; 4],
        tone: Tone,
        thick: f64,
        alpha: f64,
    ) -> Result<(), Failed> {
        let rows = (top..bottom).flat_map(|y| (left..right).map(move |x| (x, y)));
        for (x, y) in rows {
            let centre = [x, y].map(|pixel| (f64::from(pixel) + 0.5) / self.scale);
            let rgb = mix(tone.ground, tone.line, lines(tone.hatch, thick, centre, 1.0 / self.scale));
            self.bitmap.draw_pixel((x, y), color(rgb, alpha).to_backend_color())?;
        }
        Ok(())
    }

    /// Returns the columns and the rows of pixels of a rectangle.
    fn pixels(&self, [x, y, w, h]: &Rect) -> (Vec<Run>, Vec<Run>) {
        let (width, height) = self.bitmap.get_size();
        let run = |from: f64, length: f64, end: u32| {
            runs((from * self.scale).max(0.0), ((from + length) * self.scale).min(f64::from(end)))
        };
        (run(*x, *w, width), run(*y, *h, height))
    }

    fn texts(&mut self, shape: &Shape) -> Result<(), Failed> {
        let Shape::Texts(Style { ink, size, anchor, bold }, texts) = shape else { return Ok(()) };
        let (size, rgb) = (size * self.scale, self.picture.color(*ink));
        for (x, y, text) in texts {
            let Bitmap { backend, letters } = &mut *self.bitmap;
            let face = letters.face(*bold);
            let x = x * self.scale - face.width(text) * size * anchor.share();
            face.draw(text, size, x.round(), (y * self.scale).round(), |at, share| {
                backend.draw_pixel(at, color(rgb, share).to_backend_color())
            })?;
        }
        Ok(())
    }
}

/// Pixels from and to before, and the share of each that is covered.
type Run = (i32, i32, f64);

/// Returns the pixels between two edges: one that is covered in part, those that are covered wholly, and another in part.
fn runs(from: f64, to: f64) -> Vec<Run> {
    let (first, last) = (from.ceil(), to.floor());
    let runs = if first > last {
        vec![(last, first, to - from)]
    } else {
        vec![(first - 1.0, first, first - from), (first, last, 1.0), (last, last + 1.0, to - last)]
    };
    let runs = runs.into_iter().filter(|(from, to, share)| from < to && *share > 1e-9);
    runs.map(|(from, to, share)| (from as i32, to as i32, share)).collect()
}

/// Returns the share of a pixel that the lines of a hatch cover; `size` is the size of the pixel.
fn lines(hatch: Hatch, thick: f64, [x, y]: [f64; 2], size: f64) -> f64 {
    let free = hatch.across().iter().map(|(dx, dy)| {
        let away = (((x * dx + y * dy) / PERIOD).rem_euclid(1.0) - 0.5).abs() * PERIOD;
        1.0 - ((thick / 2.0 - away) / size + 0.5).clamp(0.0, 1.0)
    });
    1.0 - free.product::<f64>()
}

fn no_room(error: std::io::Error) -> WriteError {
    WriteError::Format(format!("expected room for a PNG, found none: {error}"))
}

/// Returns an 8-bit RGB PNG file.
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
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
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
