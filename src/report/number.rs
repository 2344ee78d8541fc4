//! How numbers are written for people, in every table, picture and page.

/// Shown for a number that is missing or not finite.
pub const MISSING: &str = "–";

/// Four significant digits, thousands separated by commas, no trailing zeros: `33`, `1,235`, `12.35`, `0.001235`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return MISSING.into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-6..15).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    trimmed(value, (3 - magnitude).clamp(0, 9) as usize)
}

/// Returns `value` with at most `decimals` decimals and thousands separated by commas.
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    let sign = if out == "0" { "" } else { sign };
    format!("{sign}{out}")
}

/// A fraction in percent with one decimal, from 1,000 % on with none: `27.3 %`, `14,950 %`.
pub fn percent(fraction: f64) -> String {
    if !fraction.is_finite() {
        return MISSING.into();
    }
    if fraction.abs() >= 10.0 {
        return format!("{} %", trimmed(fraction * 100.0, 0));
    }
    let text = format!("{:.1}", fraction * 100.0);
    format!("{} %", if text == "-0.0" { "0.0" } else { &text })
}

/// A fraction in percent with its sign: `+1.2 %`.
pub fn signed_percent(fraction: f64) -> String {
    let text = percent(fraction);
    if fraction.is_finite() && !text.starts_with('-') && text != "0.0 %" { format!("+{text}") } else { text }
}

/// Error of a prediction in words: `1.2 % too long`, `26.2 % too short`, `0.0 %`.
pub fn off_by(error: f64) -> String {
    let size = percent(error.abs());
    match size.as_str() {
        MISSING | "0.0 %" => size,
        _ => format!("{size} too {}", if error > 0.0 { "long" } else { "short" }),
    }
}

/// Noise as a share: `± 1.2 %`, from 10 % on `± 25 %`.
pub fn plus_minus(share: f64) -> String {
    let size =
        if share.is_finite() && share >= 0.0995 { format!("{} %", trimmed(share * 100.0, 0)) } else { percent(share) };
    format!("± {size}")
}

/// Percentage points with their sign: `+0.4 points`.
pub fn points(value: f64) -> String {
    if !value.is_finite() {
        return MISSING.into();
    }
    let text = format!("{value:+.1}");
    format!("{} points", if text == "-0.0" || text == "+0.0" { "0.0" } else { &text })
}

/// A number with its unit: `33 units`, `12.35 ms`.
pub fn quantity(value: f64, unit: &str) -> String {
    let number = number(value);
    let plural = if unit == "unit" && number != "1" { "s" } else { "" };
    format!("{number} {unit}{plural}")
}

/// Returns the distance between about `count` ticks on an axis of `length` (1, 2 or 5 times a power of ten), and the
/// decimals that labels need.
pub fn spacing(length: f64, count: usize) -> (f64, usize) {
    if !(length.is_finite() && length > 0.0) {
        return (1.0, 0);
    }
    let raw = length / count.max(1) as f64;
    let base = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * base >= raw * 0.999).unwrap_or(10.0);
    let step = factor * base;
    (step, (-step.log10().floor()).clamp(0.0, 9.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significant_digits_and_thousands() {
        for (value, text) in [
            (33.0, "33"),
            (0.0, "0"),
            (-0.0, "0"),
            (1234.5, "1,234"),
            (-1234567.0, "-1,234,567"),
            (12.3456, "12.35"),
            (0.0012345, "0.001234"),
            (0.1 + 0.2, "0.3"),
            (999.96, "1,000"),
            (f64::NAN, MISSING),
            (1e300, "1.000e300"),
        ] {
            assert_eq!(number(value), text, "{value:e}");
        }
    }

    #[test]
    fn percents_points_and_units() {
        assert_eq!(percent(0.2727), "27.3 %");
        assert_eq!(percent(-0.00001), "0.0 %");
        assert_eq!(percent(149.5), "14,950 %");
        assert_eq!(
            [0.2617, -0.012, 0.0004, -0.0004].map(off_by),
            ["26.2 % too long", "1.2 % too short", "0.0 %", "0.0 %"]
        );
        assert_eq!(
            [0.012, 0.0994, 0.0996, 0.25, 12.0].map(plus_minus),
            ["± 1.2 %", "± 9.9 %", "± 10 %", "± 25 %", "± 1,200 %"]
        );
        assert_eq!(signed_percent(0.012), "+1.2 %");
        assert_eq!(signed_percent(-0.012), "-1.2 %");
        assert_eq!(points(0.04), "0.0 points");
        assert_eq!(quantity(1.0, "unit"), "1 unit");
        assert_eq!(quantity(33.0, "unit"), "33 units");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(spacing(33.0, 6), (10.0, 0));
        assert_eq!(spacing(0.33, 6), (0.1, 1));
        assert_eq!(spacing(60.0, 10), (10.0, 0));
        assert_eq!([0.0, f64::NAN, f64::INFINITY].map(|length| spacing(length, 6)), [(1.0, 0); 3]);
    }
}
