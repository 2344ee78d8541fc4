//! Quoted text: in messages of bounded length, without terminal control characters; and in commands.

/// Most lines quoted, and most characters of each.
const LINES: usize = 60;
const LINE: usize = 1000;

/// Returns `text` safe to print: control characters and those that change the direction of writing are escaped, long lines and many
/// lines are cut.
pub fn sanitize(text: &str) -> String {
    let mut lines = text.split('\n');
    let mut sanitize = lines.by_ref().take(LINES).map(line).collect::<Vec<_>>().join("\n");
    let left = lines.count();
    if left > 0 {
        sanitize += &format!("\n... and {left} more lines");
    }
    sanitize
}

/// Returns `text` quoted for a shell, if it needs that.
pub fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/+%@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_string()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
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

/// Returns `text` with control characters replaced by spaces.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { ' ' } else { c }).collect()
}

/// Returns `text` with control characters other than newlines and tabs escaped, cut after about `most` bytes.
pub fn visible(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    for (at, c) in text.char_indices() {
        match c {
            _ if out.len() >= most => return out + &format!(" ... ({} more bytes)", text.len() - at),
            '\n' | '\t' => out.push(c),
            c if is_control(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// Whether `c` steers a terminal, or reorders or hides its neighbours.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}
