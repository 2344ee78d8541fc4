//! Palettes by name.

use pipesim_report::Palette;

/// Names, what they are for, and the palettes.
pub const PALETTES: [(&str, &str, Palette); 3] = [
    ("default", "Blue, teal, green and orange, as in papers", Palette::Default),
    ("colour-blind|color-blind", "Safe for red-green colour blindness", Palette::ColourBlind),
    ("grey|gray", "For black-and-white print", Palette::Grey),
];

/// Returns the palette with this name.
///
/// # Errors
/// There is none.
pub fn palette_named(name: &str) -> Result<Palette, String> {
    let found = PALETTES.iter().find(|(names, ..)| names.split('|').any(|one| one == name));
    let known: Vec<&str> = PALETTES.iter().filter_map(|(names, ..)| names.split('|').next()).collect();
    found
        .map(|(.., palette)| *palette)
        .ok_or_else(|| format!("expected palette to be one of {}, found {name}", known.join(", ")))
}
