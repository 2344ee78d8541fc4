//! Quoted text in messages: of bounded length, without terminal control characters.

/// Most lines quoted, and most characters of each.
const LINES: usize = 60;
const LINE: usize = 1000;

/// Returns `text` safe to print: control characters and those that change the direction of writing are escaped, long lines and many
/// lines are cut.
pub fn legible(text: &str) -> String {
    let mut lines = text.split('\n');
    let mut legible = lines.by_ref().take(LINES).map(line).collect::<Vec<_>>().join("\n");
    let left = lines.count();
    if left > 0 {
        legible += &format!("\n... and {left} more lines");
    }
    legible
}

fn line(text: &str) -> String {
    let mut chars = text.chars();
    let mut line: String = chars.by_ref().take(LINE).flat_map(spelt).collect();
    let left = chars.count();
    if left > 0 {
        line += &format!(" ... and {left} more characters");
    }
    line
}

/// Returns the character, escaped if it must not reach a terminal.
fn spelt(c: char) -> impl Iterator<Item = char> {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hidden = (c.is_control() && c != '\t') || turns;
    let shown = (!hidden).then_some(c).into_iter();
    shown.chain(hidden.then(|| c.escape_default()).into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::legible;

    #[test]
    fn what_controls_a_terminal_is_spelt_out_and_what_is_long_is_cut() {
        assert_eq!(legible("a\u{1b}[31m\r\u{7}\u{202e}\u{9b}\tb\nµ"), "a\\u{1b}[31m\\r\\u{7}\\u{202e}\\u{9b}\tb\nµ");
        assert_eq!(legible(&"x".repeat(100_000)), format!("{} ... and 99000 more characters", "x".repeat(1000)));
        assert!(legible(&"y\n".repeat(100_000)).ends_with("y\n... and 99941 more lines"));
        assert_eq!(legible(&legible("\0")), legible("\0"), "twice is once");
    }
}
