//! The font of pictures without one of the reader's own: PNG and PDF.

use super::WriteError;
use ab_glyph::{Font, FontRef, GlyphId, PxScale, point};

/// Ubuntu Light: Latin, Greek, Cyrillic.
const BYTES: &[u8] = epaint_default_fonts::UBUNTU_LIGHT;

/// The font, and its measures in a text of size 1.
pub(super) struct Letters {
    font: FontRef<'static>,
    /// Font units of size 1.
    unit: f32,
}

impl Letters {
    /// The built-in font.
    pub(super) fn new() -> Result<Letters, WriteError> {
        let broken = || WriteError::Format("expected the built-in font to be usable, but it is not".to_string());
        let font = FontRef::try_from_slice(BYTES).map_err(|_| broken())?;
        let unit = font.units_per_em().filter(|&unit| unit > 0.0).ok_or_else(broken)?;
        Ok(Letters { font, unit })
    }

    /// The file.
    pub(super) fn bytes(&self) -> &'static [u8] {
        BYTES
    }

    /// The number of a character's glyph; 0 where the font has none.
    pub(super) fn glyph(&self, c: char) -> u16 {
        self.font.glyph_id(c).0
    }

    /// Width of a glyph.
    pub(super) fn advance(&self, glyph: u16) -> f64 {
        f64::from(self.font.h_advance_unscaled(GlyphId(glyph)) / self.unit)
    }

    /// Width of a text.
    pub(super) fn width(&self, text: &str) -> f64 {
        text.chars().map(|c| self.advance(self.glyph(c))).sum()
    }

    /// Height of the highest letters above the baseline, and depth of the lowest below it, negative.
    pub(super) fn extent(&self) -> (f64, f64) {
        (f64::from(self.font.ascent_unscaled() / self.unit), f64::from(self.font.descent_unscaled() / self.unit))
    }

    /// Gives `dot` the pixels of a text whose baseline begins at `x`, `y`, and the share of each that is covered.
    pub(super) fn draw(&self, text: &str, size: f64, (x, y): (f64, f64), mut dot: impl FnMut(i64, i64, f64)) {
        let scale = PxScale::from(size as f32 * self.font.height_unscaled() / self.unit);
        let mut x = x;
        for c in text.chars() {
            let id = self.font.glyph_id(c);
            if let Some(outline) = self.font.outline_glyph(id.with_scale_and_position(scale, point(x as f32, y as f32)))
            {
                let corner = outline.px_bounds().min;
                outline.draw(|i, j, share| {
                    dot(corner.x as i64 + i64::from(i), corner.y as i64 + i64::from(j), f64::from(share).min(1.0));
                });
            }
            x += self.advance(id.0) * size;
        }
    }
}
