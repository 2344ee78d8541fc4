//! How a report is drawn, as chosen by the reader.

/// Appearance of pictures, pages and the drawing in a terminal.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Headline in place of the report's own; empty for none.
    pub title: Option<String>,
    /// Width of a picture, in CSS pixels (1/96 inch).
    pub width: Option<f64>,
    /// Size of most texts of a picture, in CSS pixels; the others scale with it.
    pub font_size: Option<f64>,
    pub palette: Palette,
    /// Whether held activations are drawn.
    pub memory: bool,
    /// Whether the lanes of sends and of waits for data are drawn.
    pub waits: bool,
    /// Whether a picture shows costs, notes, definitions and provenance.
    pub notes: bool,
    /// Visible time, from and to, in the time unit; everything unless given.
    pub window: Option<(f64, f64)>,
    /// Whether gaps are coloured by the cause of idle time.
    pub causes: bool,
    /// Whether repeats of the steady state are drawn once, with their count.
    pub collapse: bool,
    /// Remarks if no op has room for a letter: without and with `collapse`.
    pub no_letters: [String; 2],
}

impl Default for Look {
    fn default() -> Look {
        Look {
            title: None,
            width: None,
            font_size: None,
            palette: Palette::default(),
            memory: true,
            waits: true,
            notes: true,
            causes: false,
            window: None,
            collapse: false,
            no_letters: [
                "Ops are narrower than a letter: `window` shows a part, `collapse` the steady state once.".to_string(),
                "Ops are narrower than a letter: `window` shows a part.".to_string(),
            ],
        }
    }
}

/// Colours of op kinds and causes of idle time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Palette {
    /// Blue, teal, green, orange: the field's convention.
    #[default]
    Default,
    /// Distinguishable without red or green cones, too.
    ColourBlind,
    /// For print without colours.
    Grey,
}
