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
    let magnitude = libm::log10(value.abs()).floor() as i32;
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

/// A relative change with its sign, as a percentage: `+1.2 %`, `−33.0 %`.
pub fn changed(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share).replace('-', "−")
}

/// A number with its unit: `33 units`, `12.35 ms`.
pub fn quantity(value: f64, unit: &str) -> String {
    let number = number(value);
    let plural = if unit == "unit" && number != "1" { "s" } else { "" };
    format!("{number} {unit}{plural}")
}

/// Bytes in GiB: `12.35 GiB`.
pub fn gibibytes(bytes: u64) -> String {
    quantity(bytes as f64 / f64::from(1 << 30), "GiB")
}

/// Returns the distance between about `count` ticks on an axis of `length` (1, 2 or 5 times a power of ten), and the
/// decimals that labels need.
pub fn spacing(length: f64, count: usize) -> (f64, usize) {
    if !(length.is_finite() && length > 0.0) {
        return (1.0, 0);
    }
    let raw = length / count.max(1) as f64;
    let base = libm::pow(10.0, libm::log10(raw).floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * base >= raw * 0.999).unwrap_or(10.0);
    let step = factor * base;
    (step, (-libm::log10(step).floor()).clamp(0.0, 9.0) as usize)
}
