//! Makes untrusted texts safe to show: removes control characters, escapes markup, cuts to a width.

pub use pipesim_schedule::sanitize::{is_control, plain, visible};

/// Escapes `text` for XML and HTML, in content or in a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns the number of terminal columns that a character takes.
pub fn columns_of(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f | 0xff00..=0xff60 => 2,
        0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Returns the number of terminal columns that `text` takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Returns `text` without control characters, cut to `width` columns; `mark` shows a cut.
pub fn fit(text: &str, width: usize, mark: &str) -> String {
    let shown = if columns(mark) <= width { mark } else { "" };
    cut(text, width as f64, columns(mark) as f64, shown, |text| columns(text) as f64)
}

/// Returns `text` without control characters, cut to `width` with a mark of some size.
fn cut(text: &str, width: f64, mut used: f64, mark: &str, size: impl Fn(&str) -> f64) -> String {
    let text = plain(text);
    if size(&text) <= width {
        return text;
    }
    let fits = |c: &char| {
        used += size(c.encode_utf8(&mut [0; 4]));
        used <= width
    };
    text.chars().take_while(fits).collect::<String>() + mark
}

/// Breaks `text` at spaces into lines of at most `width` columns; without a width, into one line.
pub fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let mut lines = vec![String::new()];
    let text = plain(text).replace(" %", "\u{a0}%"); // which stays with its number
    for word in text.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        if last.is_empty() {
            last.push_str(word);
        } else if width.is_none_or(|width| columns(last) + 1 + columns(word) <= width) {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    lines.iter().map(|line| line.replace('\u{a0}', " ")).collect()
}

/// Breaks lines that are wider than `width` columns, at spaces if possible. Continuations are indented to the start of
/// the line's text, or to its last table column. Lines with escape sequences are kept.
pub fn folded(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.map(|width| width.max(20)) else { return text.to_string() };
    let fold = |line: &str| {
        if columns(line) <= width || line.contains('\u{1b}') {
            return vec![line.to_string()];
        }
        let words = line.trim_start_matches(' ');
        let margin = (line.len() - words.len()).min(width / 2);
        let line = " ".repeat(margin) + words;
        let begins = |&at: &usize| {
            line.as_bytes()[at - 2..at] == *b"  " && line.as_bytes()[at] != b' ' && columns(&line[..at]) <= width / 2
        };
        let column = (2..line.len()).rfind(begins).unwrap_or(margin);
        let (head, rest) = line.split_at(column);
        let room = width - columns(head);
        let lines = wrapped(rest, Some(room)).into_iter().flat_map(|line| chopped(line, room)).enumerate();
        lines.map(|(i, line)| if i == 0 { head.to_string() } else { " ".repeat(columns(head)) } + &line).collect()
    };
    text.split('\n').flat_map(fold).collect::<Vec<_>>().join("\n")
}

/// Cuts a line into pieces of at most `width` columns.
fn chopped(line: String, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for c in line.chars() {
        used += columns_of(c);
        if used > width.max(2) {
            pieces.push(String::new());
            used = columns_of(c);
        }
        pieces.last_mut().into_iter().for_each(|piece| piece.push(c));
    }
    pieces
}

/// Estimates the width in pixels of `text` in a proportional font of `size` pixels.
pub fn pixels(text: &str, size: f64) -> f64 {
    text.chars()
        .map(|c| match c {
            'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' | ' ' | '·' => 0.29,
            'm' | 'w' | 'M' | 'W' => 0.87,
            c if c.is_uppercase() => 0.68,
            c => 0.56 * columns_of(c) as f64,
        })
        .sum::<f64>()
        * size
}

/// Breaks `text` at spaces into lines of `width` pixels; a longer word is cut.
pub fn lines_of_pixels(text: &str, width: f64, size: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in plain(text).replace(" %", "\u{a0}%").split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(last) if pixels(last, size) + pixels(" ", size) + pixels(word, size) <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(fit_pixels(word, width, size)),
        }
    }
    lines.iter().map(|line| line.replace('\u{a0}', " ")).collect()
}

/// Returns `text` without control characters, cut to `width` pixels.
pub fn fit_pixels(text: &str, width: f64, size: f64) -> String {
    cut(text, width, pixels("…", size), "…", |text| pixels(text, size))
}
