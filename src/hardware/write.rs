//! A machine as a file.

use super::{Field, Hardware};
use std::fmt::Write;

/// Returns a hardware file with these numbers on top of `base`; `head` are comment lines on their source.
pub fn toml(base: &str, head: &[String], numbers: &[(&'static str, f64)]) -> String {
    let mut text = String::new();
    head.iter().for_each(|line| _ = writeln!(text, "# {}", line.replace(['\n', '\r'], " ")));
    let _ = writeln!(text, "base = \"{base}\"\n");
    for (name, number) in numbers {
        let what = Hardware::FIELDS.iter().find(|field| field.name == *name).map_or("", |field: &Field| field.what);
        let _ = writeln!(text, "{:<31} # {what}", format!("{name} = {}", digits(*number)));
    }
    text
}

/// Rounds to four significant digits.
fn digits(number: f64) -> String {
    let whole = format!("{number:.3e}").parse::<f64>().unwrap_or(number);
    format!("{whole}")
}

#[cfg(test)]
mod tests {
    use crate::hardware::{Error, hardware, hardware_file};

    #[test]
    fn what_is_written_is_read() {
        let numbers =
            [("bf16_tflops", 0.123456), ("link_latency_us", 0.0), ("gpus_per_node", 4.0), ("memory_gib", 1e-7)];
        let text = super::toml("cpu", &["a line\nor two".to_string()], &numbers);
        let read = hardware_file("mine.toml", &text, &|path| Err(Error::new(path.to_string()))).unwrap();
        let mut expected = hardware("cpu").unwrap();
        expected.name = "mine.toml".to_string();
        for (name, number) in
            [("bf16_tflops", 0.1235), ("link_latency_us", 0.0), ("gpus_per_node", 4.0), ("memory_gib", 1e-7)]
        {
            *expected.field_mut(name).unwrap() = number;
        }
        assert_eq!(read, expected);
    }
}
