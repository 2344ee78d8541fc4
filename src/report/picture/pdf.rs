//! The picture as a PDF of one page: shapes as vectors, text in an embedded font. Plots are drawn on the same page by
//! plotters.
//!
//! A pixel is 0.75 pt, as in CSS. No date and no machine name is written: the same report gives the same bytes.

use crate::picture::canvas::{Ink, Picture, Shape, Style};
use crate::picture::font::{Face, Letters};
use crate::picture::layout;
use crate::scene::palette::{PERIOD, Rgb, Tone};
use crate::{Report, WriteError};
use pdf_writer::types::{CidFontType, FontFlags, SystemInfo, UnicodeCmap};
use pdf_writer::{Content, Filter, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::Write;
use std::rc::Rc;
use subsetter::GlyphRemapper;

/// Points per pixel.
const POINT: f64 = 0.75;
/// Longest side of a page that every reader accepts, in points (ISO 32000-1, annex C).
const LONGEST: f64 = 14_400.0;
/// The resource, and the subset tag and name, of the regular and the bold font.
const FONTS: [(Name, Name); 2] =
    [(Name(b"F"), Name(b"PIPSIM+PipesimSans-Regular")), (Name(b"B"), Name(b"PIPSIM+PipesimSans-Bold"))];
const SYSTEM: SystemInfo = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };

impl Report {
    /// Returns the timelines as PDF.
    ///
    /// # Errors
    /// The font cannot be embedded; the report is not to blame.
    pub fn pdf(&self) -> Result<Vec<u8>, WriteError> {
        let picture = layout::picture(self);
        let mut page = Page::new([picture.width, picture.height], 1.0)?;
        picture.shapes.iter().for_each(|shape| page.shape(shape, &picture));
        page.file(&picture.title)
    }
}

/// Returns a PDF of `size` pixels that `draw` fills through plotters, with `units` units per pixel.
pub fn document(
    size: [f64; 2],
    units: f64,
    title: &str,
    draw: impl FnOnce(&Rc<RefCell<Page>>) -> Result<(), WriteError>,
) -> Result<Vec<u8>, WriteError> {
    let page = Rc::new(RefCell::new(Page::new(size, units)?));
    draw(&page)?;
    let page = Rc::into_inner(page).ok_or_else(|| WriteError::Format("expected a finished page".to_string()))?;
    page.into_inner().file(title)
}

/// A page that is being drawn.
pub struct Page {
    letters: Letters,
    /// Of the regular and of the bold font.
    glyphs: [Glyphs; 2],
    opacities: BTreeSet<u8>,
    content: Content,
    /// Width and height in points.
    size: [f32; 2],
    /// Width and height in units.
    extent: (u32, u32),
}

/// Glyphs in use: their numbers in the subset, and their characters.
#[derive(Default)]
struct Glyphs {
    subset: GlyphRemapper,
    used: BTreeMap<u16, (u16, char)>,
}

impl Page {
    fn new([width, height]: [f64; 2], units: f64) -> Result<Page, WriteError> {
        // A page that is too long is scaled down.
        let scale = POINT.min(LONGEST / width.max(height));
        let size = [width * scale, height * scale].map(|length| length as f32);
        let unit = (scale / units) as f32;
        let mut content = Content::new();
        content.transform([unit, 0.0, 0.0, -unit, 0.0, size[1]]);
        let extent = ((width * units) as u32, (height * units) as u32);
        let (glyphs, opacities) = (<[Glyphs; 2]>::default(), BTreeSet::new());
        Ok(Page { letters: Letters::new()?, glyphs, opacities, content, size, extent })
    }

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
                texts.iter().for_each(|(x, y, text)| self.text(*style, *x, *y, text, picture));
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
        self.faded(picture.opacity(ink), |page| {
            page.brush(picture.color(ink));
            page.rects(rects);
            page.content.fill_nonzero();
        });
        if let Some(tone) = picture.tone(ink) {
            self.hatch(tone, picture.thickness(ink), rects);
        }
        if ink == Ink::Idle {
            self.pen(picture.color(Ink::Frame), 0.5);
            self.rects(rects);
            self.content.stroke();
        }
    }

    /// Draws with an opacity of 0 to 255.
    fn faded(&mut self, opacity: u8, draw: impl FnOnce(&mut Page)) {
        if opacity == u8::MAX {
            return draw(self);
        }
        self.opacities.insert(opacity);
        self.content.save_state().set_parameters(Name(format!("a{opacity}").as_bytes()));
        draw(self);
        self.content.restore_state();
    }

    /// Draws the lines of a hatch, aligned across neighbouring boxes.
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
            // The point of the line nearest to the centre, and half a diagonal to either side.
            let (cx, cy) = ((left + right) / 2.0, (top + bottom) / 2.0);
            let half = libm::hypot(right - left, bottom - top) / 2.0 + period;
            for number in (first / period).floor() as i64..=(last / period).ceil() as i64 {
                let off = (number as f64 + 0.5) * period - (cx * dx + cy * dy);
                let (x, y) = (cx + off * dx, cy + off * dy);
                // The line runs along (-dy, dx).
                let (x1, y1, x2, y2) = (x - half * dy, y + half * dx, x + half * dy, y - half * dx);
                self.content.move_to(x1 as f32, y1 as f32).line_to(x2 as f32, y2 as f32);
            }
        }
        self.content.stroke().restore_state();
    }

    fn text(&mut self, style: Style, x: f64, y: f64, text: &str, picture: &Picture) {
        let text = crate::text::plain(text);
        let width = self.letters.face(style.bold).width(&text) * style.size;
        let x = x - width * style.anchor.share();
        self.brush(picture.color(style.ink));
        self.show(&text, style.size, style.bold, [1.0, 0.0, 0.0, -1.0, x as f32, y as f32]);
    }

    /// Writes a text under a transformation whose y goes up.
    fn show(&mut self, text: &str, size: f64, bold: bool, matrix: [f32; 6]) {
        let (face, glyphs) = (self.letters.face(bold), &mut self.glyphs[usize::from(bold)]);
        let numbers: Vec<u8> = text.chars().flat_map(|c| glyphs.number(face.glyph(c), c).to_be_bytes()).collect();
        self.content.begin_text().set_font(FONTS[usize::from(bold)].0, size as f32);
        self.content.set_text_matrix(matrix).show(Str(&numbers)).end_text();
    }

    /// Draws a path through `points`: filled, or as a line if it has a width.
    fn path(&mut self, points: impl IntoIterator<Item = BackendCoord>, color: BackendColor, line: Option<u32>) {
        let mut points = points.into_iter().map(|(x, y)| (x as f32, y as f32));
        let (Some((x, y)), (r, g, b)) = (points.next(), color.rgb) else { return };
        self.faded((color.alpha * 255.0).round() as u8, |page| {
            match line {
                Some(width) => page.pen([r, g, b], width.into()),
                None => page.brush([r, g, b]),
            }
            page.content.move_to(x, y);
            for (x, y) in points {
                page.content.line_to(x, y);
            }
            match line {
                Some(_) => page.content.stroke(),
                None => page.content.close_path().fill_nonzero(),
            };
        });
    }

    fn file(self, title: &str) -> Result<Vec<u8>, WriteError> {
        let [catalog, pages, page, content, info] = std::array::from_fn(|i| Ref::new(i as i32 + 1));
        let mut pdf = Pdf::new();
        pdf.catalog(catalog).pages(pages).lang(TextStr("en")).viewer_preferences().display_doc_title(true);
        pdf.document_info(info).title(TextStr(title)).producer(TextStr("pipesim"));
        pdf.pages(pages).kids([page]).count(1);
        let mut sheet = pdf.page(page);
        sheet.media_box(Rect::new(0.0, 0.0, self.size[0], self.size[1])).parent(pages).contents(content);
        let mut resources = sheet.resources();
        let mut fonts = resources.fonts();
        let used = [0, 1].into_iter().filter(|&number| !self.glyphs[number].used.is_empty());
        used.clone().for_each(|number| {
            fonts.pair(FONTS[number].0, font_refs(number)[0]);
        });
        fonts.finish();
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
        for number in used {
            embed(&mut pdf, number, self.letters.face(number == 1), &self.glyphs[number])?;
        }
        Ok(pdf.finish())
    }
}

/// The numbers of a font's objects in the file: the font, its glyphs, their descriptor, its file, its characters.
fn font_refs(number: usize) -> [Ref; 5] {
    std::array::from_fn(|i| Ref::new((6 + 5 * number + i) as i32))
}

/// Writes a font with the glyphs in use.
fn embed(pdf: &mut Pdf, number: usize, face: &Face, glyphs: &Glyphs) -> Result<(), WriteError> {
    let [font, cid, descriptor, file, unicode] = font_refs(number);
    let name = FONTS[number].1;
    pdf.type0_font(font)
        .base_font(name)
        .encoding_predefined(Name(b"Identity-H"))
        .descendant_font(cid)
        .to_unicode(unicode);
    let (ascent, descent) = face.extent();
    let thousandths = |size: f64| (size * 1000.0) as f32;
    let mut cids = pdf.cid_font(cid);
    cids.subtype(CidFontType::Type2).base_font(name).system_info(SYSTEM).font_descriptor(descriptor);
    cids.default_width(0.0).cid_to_gid_map_predefined(Name(b"Identity"));
    let mut widths = cids.widths();
    for (number, (glyph, _)) in &glyphs.used {
        widths.same(*number, *number, thousandths(face.advance(*glyph)));
    }
    widths.finish();
    cids.finish();
    pdf.font_descriptor(descriptor)
        .name(name)
        .flags(FontFlags::NON_SYMBOLIC)
        .bbox(Rect::new(-200.0, thousandths(descent), 1200.0, thousandths(ascent)))
        .italic_angle(0.0)
        .ascent(thousandths(ascent))
        .descent(thousandths(descent))
        .cap_height(716.0)
        .stem_v(if number == 1 { 138.0 } else { 88.0 })
        .font_file2(file);
    let subset = subsetter::subset(face.bytes(), 0, &glyphs.subset)
        .map_err(|error| WriteError::Format(format!("expected a font that can be embedded: {error}")))?;
    let packed = deflated(&subset)?;
    pdf.stream(file, &packed).filter(Filter::FlateDecode).pair(Name(b"Length1"), subset.len() as i32);
    let mut map = UnicodeCmap::new(Name(b"Adobe-Identity-UCS"), SYSTEM);
    glyphs.used.iter().for_each(|(number, (_, c))| map.pair(*number, *c));
    let packed = deflated(&map.finish())?;
    pdf.cmap(unicode, &packed).filter(Filter::FlateDecode);
    Ok(())
}

/// Lets plotters draw on the page; drawing cannot fail.
impl DrawingBackend for Page {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.extent
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        self.path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)], color, None);
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S, fill: bool) -> Drawn {
        let corners = [from, (to.0, from.1), to, (from.0, to.1), from];
        if fill { self.fill_polygon(corners, style) } else { self.draw_path(corners, style) }
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        self.path(path, style.color(), Some(style.stroke_width()));
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        self.path(path, style.color(), None);
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(&mut self, (x, y): BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        let point = |number: u32| {
            let turn = f64::from(number) * std::f64::consts::TAU / 32.0;
            let at = |centre: i32, share: f64| centre + (f64::from(radius) * share).round() as i32;
            (at(x, libm::cos(turn)), at(y, libm::sin(turn)))
        };
        let line = (!fill).then(|| style.stroke_width());
        self.path((0..=32).map(point), style.color(), line);
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, (x, y): BackendCoord) -> Drawn {
        let ((size, (left, base)), (r, g, b)) = (self.letters.regular.placed(text, style), style.color().rgb);
        // Directions of the text's own axes; y of the page goes down.
        let turned = |x: i32, y: i32| {
            let (x, y) = style.transform().transform(x, y);
            (x as f32, y as f32)
        };
        let ((ax, ay), (bx, by), (dx, dy)) = (turned(1, 0), turned(0, -1), turned(left as i32, base as i32));
        self.brush([r, g, b]);
        self.show(text, size, false, [ax, ay, bx, by, x as f32 + dx, y as f32 + dy]);
        Ok(())
    }
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl Glyphs {
    /// Returns the number of a glyph in the subset.
    fn number(&mut self, glyph: u16, c: char) -> u16 {
        let number = self.subset.remap(glyph);
        let c = if glyph == 0 { char::REPLACEMENT_CHARACTER } else { c }; // one box stands for all that the font lacks
        self.used.entry(number).or_insert((glyph, c));
        number
    }
}

fn deflated(bytes: &[u8]) -> Result<Vec<u8>, WriteError> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    packed.map_err(|error| WriteError::Format(format!("expected room for a PDF, found none: {error}")))
}
