//! Values of options: numbers, lists and ranges, thresholds, lengths and intervals; what is rejected, and why.

use pipesim::internals::cli;

/// The error of `predict` with this option, or nothing if it is accepted.
fn refusal(option: &str, value: &str) -> Option<String> {
    let stages = if option == "--stages" { "-q" } else { "-p2" };
    let line = ["pipesim", "predict", stages, "-m2", &format!("{option}={value}")].map(str::to_string);
    cli::parse(line).err().map(|error| error.to_string())
}

fn check(option: &str, cases: &[(&str, &str)]) {
    for (value, part) in cases {
        let refused = refusal(option, value).unwrap_or_else(|| panic!("{option}={value} is accepted"));
        assert!(refused.contains(part), "{option}={value}: {refused}");
    }
}

#[test]
fn whole_numbers() {
    check(
        "--max-ops",
        &[
            ("8k", "expected a whole number, found '8k'; write 8192 or 8000"),
            ("1.5K", "write 1536 or 1500"),
            ("2Mi", "write 2097152 or 2000000"),
            ("1e3", "write 1000"),
            ("8.0", "write 8"),
            ("1.5", "write 1 or 2"),
            ("4,096", "write 4096"),
            ("1_000_000", "write 1000000"),
            ("0x10", "write 16"),
            ("4,8", "found '4,8'; give one number, and ask once for each"),
            ("2..8", "found '2..8'; give one number, and ask once for each"),
            ("four", "found 'four'; write one such as 8"),
            ("inf", "write one such as 8"),
            ("nan", "write one such as 8"),
            ("1e300", "write one such as 8"),
            ("-1.5", "write one such as 8"),
            ("-", "write one such as 8"),
            ("0", "expected 1 or more, found 0"),
            ("-3", "expected 1 or more, found -3"),
            ("99999999999999999999999", "expected at most"),
        ],
    );
    assert_eq!(refusal("--max-ops", " 12 "), None);
}

#[test]
fn lists_and_ranges() {
    for value in ["4", "4,8,16", "4..64*2", "4..16+4", "4..8", "3..20*3, 9, 1"] {
        assert_eq!(refusal("--stages", value), None, "{value}");
    }
    check(
        "--stages",
        &[
            ("4,", "expected a whole number"),
            ("four", "write one such as 8, or a range"),
            ("0", "expected 1 or more, found 0"),
            ("99999999999", "found 99999999999"),
            ("8..4", "write 4..8"),
            ("4..", "expected a whole number"),
            ("4..8*1", "a step of 2 or more"),
            ("4..8+0", "a step of 1 or more"),
            ("4..8+x", "a step of 1 or more"),
            ("1..1000002", "at most 1000000 numbers"),
        ],
    );
}

#[test]
fn thresholds() {
    for value in
        ["bubble > 15 %", "bubble_error>2%", "measured.makespan>=1.5s", "|makespan_error|>5%", "makespan_error<-5%"]
    {
        assert_eq!(refusal("--fail-if", value), None, "{value}");
    }
    check(
        "--fail-if",
        &[
            (" ", "as in 'bubble>0.15'"),
            ("bubble", "one of > >= < <="),
            ("bubble==0.1", "one of > >= < <="),
            ("bubble=>0.1", "one of > >= < <="),
            ("bubble!=0.1", "one of > >= < <="),
            ("0.1<bubble<0.2", "no figure is called '0.1'"),
            ("bubble>", "finite number for bubble"),
            ("bubble>nan", "finite number"),
            ("bubble>1e400", "finite number"),
            ("bubble>0,15", "finite number"),
            ("bubble>15%%", "finite number"),
            ("bubble>100ms", "not a time"),
            ("peak_activations>8%", "not a share"),
            ("makespan>10%", "not a share"),
            ("Bubble>0.1", "did you mean bubble?"),
            ("span-bubble>0.1", "did you mean span_bubble?"),
            ("speed>1", "expected one of makespan"),
            ("measured.tokens_per_second>1", "write tokens_per_second alone"),
            ("predicted.bubble_error>1", "write bubble_error alone"),
            ("meassured.bubble>1", "no figure is called"),
        ],
    );
}

#[test]
fn intervals_and_lengths() {
    let drawn = |option: &str, value: &str| {
        let line = ["pipesim", "predict", "-p2", "-m2", "-ox.svg", &format!("{option}={value}")].map(str::to_string);
        cli::parse(line).err().map(|error| error.to_string())
    };
    for value in ["100..160", "2.5..", "..1e3", " 0 .. 1 "] {
        assert_eq!(drawn("--window", value), None, "{value}");
    }
    for value in ["..", "100", "160..100", "5..5", "-1..5", "nan..5", "1..nan", "inf..", "1...5..9", "1ms..5ms"] {
        assert!(drawn("--window", value).is_some_and(|why| why.contains(&format!("'{value}'"))), "{value}");
    }
    for value in ["320", "3.5in", "254 mm", "25.4cm", "300pt"] {
        assert_eq!(drawn("--width", value), None, "{value}");
    }
    for value in ["px", "-300", "nan", "inf", "199", "10001", "3e2e", "1e400", "300em"] {
        assert!(drawn("--width", value).is_some_and(|why| why.contains(&format!("'{value}'"))), "{value}");
    }
}
