//! The built-in font of PNG and PDF: Pipesim Sans in two weights, with the widths of Helvetica and Arial (as in SVG).
//!
//! `fonts/README.md` says where it comes from.

use crate::WriteError;
use ab_glyph::{Font, FontRef, GlyphId, PxScale, point};
#[cfg(not(target_family = "wasm"))]
use plotters::style::{FontStyle, register_font};
use plotters_backend::BackendTextStyle;
use plotters_backend::text_anchor::{HPos, VPos};

const REGULAR: &[u8] = include_bytes!("fonts/PipesimSans-Regular.ttf");
const BOLD: &[u8] = include_bytes!("fonts/PipesimSans-Bold.ttf");

/// The font in both weights.
pub struct Letters {
    pub regular: Face,
    pub bold: Face,
}

/// The font in one weight. Lengths are in units of the text size.
pub struct Face {
    font: FontRef<'static>,
    bytes: &'static [u8],
    /// Font units per text size.
    units_per_em: f32,
}

impl Letters {
    /// Returns the built-in font, and makes it the one with which plotters measures texts.
    pub fn new() -> Result<Letters, WriteError> {
        #[cfg(not(target_family = "wasm"))] // there plotters estimates
        register_font("sans-serif", FontStyle::Normal, REGULAR).map_err(|_| broken())?;
        Ok(Letters { regular: Face::new(REGULAR)?, bold: Face::new(BOLD)? })
    }

    pub fn face(&self, bold: bool) -> &Face {
        if bold { &self.bold } else { &self.regular }
    }
}

fn broken() -> WriteError {
    WriteError::Format("expected the built-in font to be usable, but it is not".to_string())
}

impl Face {
    fn new(bytes: &'static [u8]) -> Result<Face, WriteError> {
        let font = FontRef::try_from_slice(bytes).map_err(|_| broken())?;
        let units_per_em = font.units_per_em().filter(|&units| units > 0.0).ok_or_else(broken)?;
        Ok(Face { font, bytes, units_per_em })
    }

    pub fn bytes(&self) -> &'static [u8] {
        self.bytes
    }

    /// Returns the number of a character's glyph; 0 if the font has none.
    pub fn glyph(&self, c: char) -> u16 {
        self.font.glyph_id(c).0
    }

    pub fn advance(&self, glyph: u16) -> f64 {
        f64::from(self.font.h_advance_unscaled(GlyphId(glyph)) / self.units_per_em)
    }

    pub fn width(&self, text: &str) -> f64 {
        text.chars().map(|c| self.advance(self.glyph(c))).sum()
    }

    /// Returns the height above the baseline and the (negative) depth below it.
    pub fn extent(&self) -> (f64, f64) {
        let unit = self.units_per_em;
        (f64::from(self.font.ascent_unscaled() / unit), f64::from(self.font.descent_unscaled() / unit))
    }

    /// Calls `dot` with each pixel of a text whose baseline begins at `x`, `y`, and the share of it that is covered.
    ///
    /// Glyphs keep their fractions of pixels and side bearings; plotters rounds the first and drops the second, which
    /// makes small texts uneven.
    pub fn draw<E>(
        &self,
        text: &str,
        size: f64,
        mut x: f64,
        y: f64,
        mut dot: impl FnMut((i32, i32), f64) -> Result<(), E>,
    ) -> Result<(), E> {
        let scale = PxScale::from(size as f32 * self.font.height_unscaled() / self.units_per_em);
        for c in text.chars() {
            let id = self.font.glyph_id(c);
            let glyph = id.with_scale_and_position(scale, point(x as f32, y as f32));
            if let Some(outline) = self.font.outline_glyph(glyph) {
                let corner = outline.px_bounds().min;
                let mut dots = Vec::new();
                outline.draw(|i, j, share| dots.push((i, j, share)));
                for (i, j, share) in dots {
                    let at = (corner.x as i32 + i as i32, corner.y as i32 + j as i32);
                    dot(at, f64::from(share).min(1.0))?;
                }
            }
            x += self.advance(id.0) * size;
        }
        Ok(())
    }

    /// Returns the size of a text in plotters' style, and where its baseline begins relative to its anchor. Both are as
    /// in plotters' SVG.
    pub fn placed<S: BackendTextStyle>(&self, text: &str, style: &S) -> (f64, (f64, f64)) {
        let size = style.size() / 1.24;
        let anchor = style.anchor();
        let x = match anchor.h_pos {
            HPos::Left => 0.0,
            HPos::Center => -0.5,
            HPos::Right => -1.0,
        };
        let y = match anchor.v_pos {
            VPos::Top => 0.76,
            VPos::Center => 0.26,
            VPos::Bottom => -0.26,
        };
        (size, (x * self.width(text) * size, y * size))
    }
}
