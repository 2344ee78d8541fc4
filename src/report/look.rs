//! How a report is drawn: what a reader asks for, apart from what there is to see.

/// What pictures, pages and the terminal's drawing leave out, cut or colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The headline instead of the report's own; an empty one is left out.
    pub title: Option<String>,
    /// Width of a picture, in CSS pixels (1/96 inch).
    pub width: Option<f64>,
    /// Size of most texts of a picture, in CSS pixels; the others follow.
    pub font_size: Option<f64>,
    /// The colours of kinds and causes.
    pub palette: Palette,
    /// Whether the activations that devices hold are drawn.
    pub memory: bool,
    /// Whether the lanes of sends and of waiting for data are drawn.
    pub waits: bool,
    /// Whether a picture says costs, notes, what its figures are and what made it.
    pub notes: bool,
    /// The time that is drawn, from and to, in the time unit; everything unless given.
    pub window: Option<(f64, f64)>,
    /// Whether gaps have the colours of why devices idle.
    pub causes: bool,
    /// Whether repeats of the steady state are drawn once, with their count.
    pub collapse: bool,
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
        }
    }
}

/// The colours of kinds and causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Palette {
    /// Blue, teal, green, orange: the field's convention.
    #[default]
    Default,
    /// Apart for readers without red or green cones too.
    ColourBlind,
    /// For print without colours.
    Grey,
}
