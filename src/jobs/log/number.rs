//! Numbers after names in a line.

/// Returns the text after a name.
pub(super) fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(name).map(|(_, rest)| rest)
}

/// Returns the number that a text begins with, after blanks, and the text that follows; commas between thousands are skipped.
pub(super) fn leading(text: &str) -> Option<(f64, &str)> {
    let text = text.trim_start();
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let sign = |at: usize| usize::from(matches!(bytes.get(at), Some(b'-' | b'+')));
    let mut end = sign(0);
    while digit(end) || (bytes.get(end) == Some(&b',') && end > 0 && (end + 1..end + 4).all(digit) && !digit(end + 4)) {
        end += 1;
    }
    if bytes.get(end) == Some(&b'.') && digit(end + 1) {
        end += 1;
        while digit(end) {
            end += 1;
        }
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) && digit(end + 1 + sign(end + 1)) {
        end += 1 + sign(end + 1);
        while digit(end) {
            end += 1;
        }
    }
    let number = text[..end].replace(',', "").parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, &text[end..]))
}

/// Returns the number after a name, if nothing but a blank, a separator or the line's end follows it.
pub(super) fn value(line: &str, name: &str) -> Option<f64> {
    let (number, rest) = leading(after(line, name)?)?;
    rest.chars()
        .next()
        .is_none_or(|c| matches!(c, ' ' | '\t' | '|' | ',' | '/' | ';' | ')' | ']' | '}' | '\''))
        .then_some(number)
}

/// Like [`value`], of positive numbers.
pub(super) fn positive(line: &str, name: &str) -> Option<f64> {
    value(line, name).filter(|number| *number > 0.0)
}

/// Returns the number after a name that a unit follows.
pub(super) fn with_unit(line: &str, name: &str, unit: &str) -> Option<f64> {
    let (number, rest) = leading(after(line, name)?)?;
    (rest.starts_with(unit) && number >= 0.0).then_some(number)
}

/// Returns the whole number after a name.
pub(super) fn whole(line: &str, name: &str) -> Option<u64> {
    value(line, name).filter(|number| *number >= 0.0 && *number < 9e15).map(|number| number as u64)
}

/// Like [`whole`], of numbers from 1 that fit 32 bits.
pub(super) fn count(line: &str, name: &str) -> Option<u32> {
    whole(line, name).and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

/// Returns the number after a name with nanotron's suffix for thousands, millions, ...
pub(super) fn human(line: &str, name: &str) -> Option<f64> {
    let (number, rest) = leading(after(line, name)?)?;
    let suffixes = [("K ", 1e3), ("M ", 1e6), ("B ", 1e9), ("G ", 1e9), ("T ", 1e12), (" ", 1.0)];
    if rest.is_empty() {
        return Some(number);
    }
    let factor = suffixes.iter().find(|(suffix, _)| rest.starts_with(suffix)).map(|(_, factor)| *factor)?;
    Some(number * factor)
}
