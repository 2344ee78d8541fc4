//! The picture as a PDF of one page: shapes as vectors, texts as text in an embedded font.
//!
//! A pixel of the picture is 0.75 pt, as CSS has it. No date and no name of a machine is written: the same report gives the
//! same bytes.

use super::canvas::{Anchor, Ink, Picture, Shape, Style};
use super::font::Letters;
use super::palette::{PERIOD, Rgb, Tone};
use super::{Report, WriteError, layout};
use pdf_writer::types::{CidFontType, FontFlags, SystemInfo, TextRenderingMode, UnicodeCmap};
use pdf_writer::{Content, Filter, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use subsetter::GlyphRemapper;

/// Points of a pixel.
const POINT: f64 = 0.75;
/// Longest side that a page may have, in points, in every reader (ISO 32000-1, annex C).
const LONGEST: f64 = 14_400.0;
/// The tag of a subset and the font's name.
const FONT: Name = Name(b"PIPSIM+Ubuntu-Light");
const SYSTEM: SystemInfo = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };

impl Report {
    /// The picture as PDF.
    ///
    /// # Errors
    /// The font cannot be embedded; the report is not to blame.
    pub fn pdf(&self) -> Result<Vec<u8>, WriteError> {
        pdf(self)
    }
}

/// The picture as a PDF file's bytes.
pub fn pdf(report: &Report) -> Result<Vec<u8>, WriteError> {
    let picture = layout::picture(report);
    let letters = Letters::new()?;
    let mut page = Page { letters, glyphs: Glyphs::default(), opacities: BTreeSet::new(), content: Content::new() };
    // One that is too tall is drawn smaller.
    let scale = POINT.min(LONGEST / picture.width.max(picture.height));
    let (width, height) = ((picture.width * scale) as f32, (picture.height * scale) as f32);
    page.content.transform([scale as f32, 0.0, 0.0, -scale as f32, 0.0, height]);
    for shape in &picture.shapes {
        page.shape(shape, &picture);
    }
    page.file(&picture, [width, height])
}

struct Page {
    letters: Letters,
    glyphs: Glyphs,
    opacities: BTreeSet<u8>,
    content: Content,
}

/// The glyphs that texts use: their numbers in the subset, and what they stand for.
#[derive(Default)]
struct Glyphs {
    subset: GlyphRemapper,
    used: BTreeMap<u16, (u16, char)>,
}

impl Page {
    fn shape(&mut self, shape: &Shape, picture: &Picture) {
        match shape {
            Shape::Boxes(ink, rects) => self.boxes(*ink, rects, picture),
            Shape::Lines(ink, lines) => {
                self.pen(picture.color(*ink), if *ink == Ink::Cap { 0.7 } else { 1.0 });
                for &[x1, y1, x2, y2] in lines {
                    self.content.move_to(x1 as f32, y1 as f32).line_to(x2 as f32, y2 as f32);
                }
                self.content.stroke();
            }
            Shape::Steps { ink, base, points } => {
                let Some(&(first, _)) = points.first() else { return };
                self.brush(picture.color(*ink));
                self.content.move_to(first as f32, *base as f32);
                let mut level = *base;
                for &(x, y) in points {
                    self.content.line_to(x as f32, level as f32).line_to(x as f32, y as f32);
                    level = y;
                }
                let last = points.last().map_or(first, |point| point.0);
                self.content.line_to(last as f32, *base as f32).close_path().fill_nonzero();
            }
            Shape::Texts(style, texts) => {
                texts.iter().for_each(|(x, y, text)| self.text(*style, (*x, *y), text, picture));
            }
        }
    }

    fn pen(&mut self, color: Rgb, width: f64) {
        let [r, g, b] = color.map(|c| f32::from(c) / 255.0);
        self.content.set_stroke_rgb(r, g, b).set_line_width(width as f32);
    }

    fn brush(&mut self, color: Rgb) {
        let [r, g, b] = color.map(|c| f32::from(c) / 255.0);
        self.content.set_fill_rgb(r, g, b);
    }

    fn rects(&mut self, rects: &[[f64; 4]]) {
        for [x, y, w, h] in rects {
            self.content.rect(*x as f32, *y as f32, *w as f32, *h as f32);
        }
    }

    fn boxes(&mut self, ink: Ink, rects: &[[f64; 4]], picture: &Picture) {
        let opacity = picture.opacity(ink);
        if opacity < u8::MAX {
            self.opacities.insert(opacity);
            self.content.save_state().set_parameters(Name(format!("a{opacity}").as_bytes()));
        }
        self.brush(picture.color(ink));
        self.rects(rects);
        self.content.fill_nonzero();
        if let Some(tone) = picture.tone(ink) {
            self.hatch(tone, picture.thickness(ink), rects);
        }
        if ink == Ink::Idle {
            self.pen(picture.color(Ink::Frame), 0.5);
            self.rects(rects);
            self.content.stroke();
        }
        if opacity < u8::MAX {
            self.content.restore_state();
        }
    }

    /// The lines of a hatch, the same across neighbouring boxes.
    fn hatch(&mut self, tone: Tone, thickness: f64, rects: &[[f64; 4]]) {
        let across = tone.hatch.across();
        if across.is_empty() || rects.is_empty() {
            return;
        }
        self.content.save_state();
        self.rects(rects);
        self.content.clip_nonzero().end_path();
        self.pen(tone.line, thickness);
        let edge = |side: fn(&[f64; 4]) -> f64, of: fn(f64, f64) -> f64, from| rects.iter().map(side).fold(from, of);
        let (left, right) = (edge(|r| r[0], f64::min, f64::INFINITY), edge(|r| r[0] + r[2], f64::max, 0.0));
        let (top, bottom) = (edge(|r| r[1], f64::min, f64::INFINITY), edge(|r| r[1] + r[3], f64::max, 0.0));
        for &(dx, dy) in across {
            let places = [(left, top), (right, top), (left, bottom), (right, bottom)].map(|(x, y)| x * dx + y * dy);
            let (first, last) =
                (places.into_iter().fold(f64::INFINITY, f64::min), places.into_iter().fold(0.0, f64::max));
            let period = PERIOD;
            // The centre's nearest point on a line, and half a diagonal to either side.
            let (cx, cy) = ((left + right) / 2.0, (top + bottom) / 2.0);
            let half = (right - left).hypot(bottom - top) / 2.0 + period;
            for number in (first / period).floor() as i64..=(last / period).ceil() as i64 {
                let off = (number as f64 + 0.5) * period - (cx * dx + cy * dy);
                let (x, y) = (cx + off * dx, cy + off * dy);
                // Where the line can cross the boxes at all; it runs along (-dy, dx).
                let (x1, y1, x2, y2) = (x - half * dy, y + half * dx, x + half * dy, y - half * dx);
                self.content.move_to(x1 as f32, y1 as f32).line_to(x2 as f32, y2 as f32);
            }
        }
        self.content.stroke().restore_state();
    }

    fn text(&mut self, style: Style, (x, y): (f64, f64), text: &str, picture: &Picture) {
        let text = super::text::plain(text);
        let width = self.letters.width(&text) * style.size;
        let x = match style.anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let color = picture.color(style.ink);
        self.brush(color);
        // The built-in font is light: strokes around its letters make them bold.
        let mode = if style.bold { TextRenderingMode::FillStroke } else { TextRenderingMode::Fill };
        if style.bold {
            self.pen(color, style.size * 0.045);
        }
        let numbers: Vec<u8> =
            text.chars().flat_map(|c| self.glyphs.number(self.letters.glyph(c), c).to_be_bytes()).collect();
        self.content.begin_text().set_text_rendering_mode(mode).set_font(Name(b"F"), style.size as f32);
        self.content.set_text_matrix([1.0, 0.0, 0.0, -1.0, x as f32, y as f32]).show(Str(&numbers)).end_text();
    }

    /// The finished file.
    fn file(self, picture: &Picture, [width, height]: [f32; 2]) -> Result<Vec<u8>, WriteError> {
        let [catalog, pages, page, content, info, font, cid, descriptor, file, unicode] =
            std::array::from_fn(|i| Ref::new(i as i32 + 1));
        let mut pdf = Pdf::new();
        pdf.catalog(catalog).pages(pages).lang(TextStr("en")).viewer_preferences().display_doc_title(true);
        pdf.document_info(info).title(TextStr(&picture.title)).producer(TextStr("pipesim"));
        pdf.pages(pages).kids([page]).count(1);
        let mut sheet = pdf.page(page);
        sheet.media_box(Rect::new(0.0, 0.0, width, height)).parent(pages).contents(content);
        let mut resources = sheet.resources();
        resources.fonts().pair(Name(b"F"), font);
        let mut states = resources.ext_g_states();
        for opacity in &self.opacities {
            let mut state = states.insert(Name(format!("a{opacity}").as_bytes())).dict();
            state.pair(Name(b"ca"), f32::from(*opacity) / 255.0);
        }
        states.finish();
        resources.finish();
        sheet.finish();
        let packed = deflated(&self.content.finish())?;
        pdf.stream(content, &packed).filter(Filter::FlateDecode);
        pdf.type0_font(font)
            .base_font(FONT)
            .encoding_predefined(Name(b"Identity-H"))
            .descendant_font(cid)
            .to_unicode(unicode);
        let (ascent, descent) = self.letters.extent();
        let thousandths = |size: f64| (size * 1000.0) as f32;
        let mut cids = pdf.cid_font(cid);
        cids.subtype(CidFontType::Type2).base_font(FONT).system_info(SYSTEM).font_descriptor(descriptor);
        cids.default_width(0.0).cid_to_gid_map_predefined(Name(b"Identity"));
        let mut widths = cids.widths();
        for (number, (glyph, _)) in &self.glyphs.used {
            widths.same(*number, *number, thousandths(self.letters.advance(*glyph)));
        }
        widths.finish();
        cids.finish();
        pdf.font_descriptor(descriptor)
            .name(FONT)
            .flags(FontFlags::NON_SYMBOLIC)
            .bbox(Rect::new(-200.0, thousandths(descent), 1200.0, thousandths(ascent)))
            .italic_angle(0.0)
            .ascent(thousandths(ascent))
            .descent(thousandths(descent))
            .cap_height(693.0)
            .stem_v(60.0)
            .font_file2(file);
        let subset = subsetter::subset(self.letters.bytes(), 0, &self.glyphs.subset)
            .map_err(|error| WriteError::Format(format!("expected a font that can be embedded: {error}")))?;
        let packed = deflated(&subset)?;
        pdf.stream(file, &packed).filter(Filter::FlateDecode).pair(Name(b"Length1"), subset.len() as i32);
        let mut map = UnicodeCmap::new(Name(b"Adobe-Identity-UCS"), SYSTEM);
        self.glyphs.used.iter().for_each(|(number, (_, c))| map.pair(*number, *c));
        let packed = deflated(&map.finish())?;
        pdf.cmap(unicode, &packed).filter(Filter::FlateDecode);
        Ok(pdf.finish())
    }
}

impl Glyphs {
    /// The number of a glyph in the subset.
    fn number(&mut self, glyph: u16, c: char) -> u16 {
        let number = self.subset.remap(glyph);
        self.used.entry(number).or_insert((glyph, c));
        number
    }
}

fn deflated(bytes: &[u8]) -> Result<Vec<u8>, WriteError> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    packed.map_err(|error| WriteError::Format(format!("expected room for a PDF, found none: {error}")))
}
