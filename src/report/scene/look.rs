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
    /// Height of a device's ops in a picture, in CSS pixels; by their number unless given.
    pub row_height: Option<f64>,
    /// Figures in a picture; the usual ones for its width unless given.
    pub columns: Option<Vec<PictureColumn>>,
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
    /// Whether a schedule of more than twice the shortest's time may be cut to keep ops readable.
    pub cut: bool,
    /// Remarks if no op has room for a letter: without and with `collapse`.
    pub no_letters: [String; 2],
}

impl Default for Look {
    fn default() -> Look {
        Look {
            title: None,
            width: None,
            font_size: None,
            row_height: None,
            columns: None,
            palette: Palette::default(),
            memory: true,
            waits: true,
            notes: true,
            causes: false,
            window: None,
            collapse: false,
            cut: true,
            no_letters: [
                "Ops are narrower than a letter: `window` shows a part, `collapse` the steady state once.".to_string(),
                "Ops are narrower than a letter: `window` shows a part.".to_string(),
            ],
        }
    }
}

/// A figure in pictures: of a schedule in its heading, or of each device next to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PictureColumn {
    Makespan,
    /// The whole step, where it is known and differs from the makespan.
    Iteration,
    Bubble,
    SpanBubble,
    BubbleOverIdeal,
    LowerBound,
    /// Share of the makespan in which a device computes.
    Busy,
    /// Peak activations of a device.
    Peak,
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
