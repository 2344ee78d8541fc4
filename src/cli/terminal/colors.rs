//! Colours in the terminal: when to use them, and how many it has.

use clap::ValueEnum;
use pipesim_report::Colors;
use std::io::IsTerminal;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, as many as COLORTERM and TERM say, unless NO_COLOR is set; CLICOLOR_FORCE works as `always`
    #[default]
    Auto,
    /// Always; 256 colours if the terminal does not say how many it has
    Always,
    /// Never
    Never,
}

impl Color {
    /// Returns the colours to draw with on stdout.
    pub fn colors(self) -> Colors {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0") && set("NO_COLOR").is_none();
        let of_terminal = || of_terminal(&set("TERM")?, &set("COLORTERM").unwrap_or_default());
        match self {
            Color::Never => Colors::None,
            Color::Auto if forced => of_terminal().unwrap_or(Colors::Cube),
            Color::Auto if set("NO_COLOR").is_some() || !std::io::stdout().is_terminal() => Colors::None,
            Color::Auto => of_terminal().unwrap_or(Colors::None),
            Color::Always => of_terminal().unwrap_or(Colors::Cube),
        }
    }
}

/// Returns the colours of a terminal by the values of TERM and COLORTERM.
fn of_terminal(term: &str, colorterm: &str) -> Option<Colors> {
    const PLAIN: [&str; 2] = ["dumb", "vt"];
    const SIXTEEN: &str =
        "xterm screen tmux rxvt linux ansi cygwin konsole gnome putty foot alacritty kitty st wezterm ghostty";
    if PLAIN.iter().any(|name| term.starts_with(name)) {
        None
    } else if ["truecolor", "24bit"].contains(&colorterm) || term.ends_with("-direct") {
        Some(Colors::True)
    } else if term.contains("256color") {
        Some(Colors::Cube)
    } else {
        let has_sixteen = term.contains("color") || SIXTEEN.split(' ').any(|name| term.starts_with(name));
        has_sixteen.then_some(Colors::Sixteen)
    }
}
