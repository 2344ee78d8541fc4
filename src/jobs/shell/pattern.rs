//! Patterns of file names, as regular expressions.

use regex::Regex;

/// Returns the regular expression of a pattern, in which `\` quotes a character.
pub(super) fn expression(pattern: &str, shortest: bool) -> String {
    let mut out = String::new();
    let chars: Vec<char> = pattern.chars().collect();
    let (mut at, mut groups) = (0, Vec::new());
    while let Some(&c) = chars.get(at) {
        at += 1;
        match c {
            '?' | '*' | '+' | '@' | '!' if chars.get(at) == Some(&'(') && groups.len() < 20 => {
                groups.push(if "@!".contains(c) { String::new() } else { c.to_string() });
                out.push_str("(?:");
                at += 1;
            }
            '|' if !groups.is_empty() => out.push('|'),
            ')' if !groups.is_empty() => {
                out.push(')');
                out.push_str(&groups.pop().unwrap_or_default());
            }
            '*' => out.push_str(if shortest { ".*?" } else { ".*" }),
            '?' => out.push('.'),
            '[' => match class(&chars, at) {
                Some((text, end)) => {
                    out.push_str(&text);
                    at = end;
                }
                None => out.push_str("\\["),
            },
            '\\' => {
                let next = chars.get(at).copied().unwrap_or('\\');
                at += 1;
                out.push_str(&regex::escape(&next.to_string()));
            }
            other => out.push_str(&regex::escape(&other.to_string())),
        }
    }
    for sign in groups.iter().rev() {
        out.push(')');
        out.push_str(sign);
    }
    out
}

fn class(chars: &[char], start: usize) -> Option<(String, usize)> {
    let end = (start + 1..chars.len()).find(|&at| chars[at] == ']' && chars[at - 1] != ':')?;
    let inner: String = chars[start..end].iter().collect();
    let (not, inner) = match inner.strip_prefix(['!', '^']) {
        Some(rest) => ("^", rest.to_string()),
        None => ("", inner),
    };
    let mut text = inner.replace('\\', "\\\\").replace("&&", "&\\&");
    if !text.contains("[:") {
        text = text.replace('[', "\\[");
    }
    Some((format!("[{not}{text}]"), end + 1))
}

/// Whether a whole text fits a pattern.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['*', '?', '[', '\\', '(']) {
        return pattern == text;
    }
    compile(&format!("(?s)^(?:{})$", expression(pattern, false))).is_some_and(|regex| regex.is_match(text))
}

/// Compiles an expression of bounded size; one that is none fits nothing.
pub(super) fn compile(expression: &str) -> Option<Regex> {
    regex::RegexBuilder::new(expression).size_limit(1 << 20).build().ok()
}
