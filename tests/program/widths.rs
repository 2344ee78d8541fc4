//! What is printed keeps to the terminal's width.

use crate::support::PROGRAM;
use crate::support::root;
use assert_cmd::Command;
use std::collections::BTreeSet;

const ASKED: [&str; 10] = [
    "predict -p 4 -m 8 -s 1f1b,zb-v,interleaved-1f1b",
    "predict -p 16 -m 32 -s naive,interleaved-1f1b --color always",
    "predict --model llama-3-8b --hardware h100-sxm -p 4 -m 16 -s 1f1b,zb-v,chimera",
    "explain -p 4 -m 8 -s 1f1b,zb-v",
    "check -p 4 -m 8 -s 1f1b,zb-v",
    "schedules",
    "compare reports/cpu-2-devices/1f1b-predicted.json reports/cpu-2-devices/1f1b-measured.json",
    "compare reports/cpu-2-devices/1f1b-measured.json reports/cpu-2-devices/zb-v-measured.json",
    "doctor",
    "tour",
];

/// The columns of a line without what sets colours.
fn columns(line: &str) -> usize {
    line.split("\x1b[")
        .enumerate()
        .map(|(i, part)| if i == 0 { part } else { part.split_once('m').unwrap().1 }.chars().count())
        .sum()
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_string).collect()
}

/// From 20 columns on; nothing that a pipe gets is missing but what is drawn or cut to fit, which is marked.
#[test]
fn no_line_is_wider_than_the_terminal() {
    for line in ASKED {
        let print = |width: Option<usize>| {
            let mut command = Command::new(PROGRAM);
            command.current_dir(root()).args(line.split(' ')).env_remove("COLUMNS").env("TERM", "xterm");
            let output = command.envs(width.map(|width| ("COLUMNS", width.to_string()))).output().unwrap();
            assert!(!output.stdout.is_empty(), "{line}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let piped = print(None);
        let of_tables = |text: &str| {
            words(text).into_iter().filter(|word| word.len() > 4 && word.len() < 16).collect::<BTreeSet<_>>()
        };
        for width in [20, 26, 33, 40, 54, 60, 80, 120] {
            let text = print(Some(width));
            for one in text.lines() {
                assert!(columns(one) <= width, "{line}, {width} columns: {} in {one:?}", columns(one));
            }
            if width >= 40 && !line.contains("color") {
                // headings of narrow timelines leave out the iteration, which the first lines have
                let left_out = |word: &String| width < 80 && ["which", "pipeline"].contains(&word.as_str());
                let drawn = |word: &String| left_out(word) || word.chars().all(|c| "FIWB0123456789o".contains(c));
                let missing: Vec<String> =
                    of_tables(&piped).difference(&of_tables(&text)).filter(|word| !drawn(word)).cloned().collect();
                assert!(missing.is_empty(), "{line}, {width} columns: no {missing:?} in\n{text}");
            }
        }
    }
}

/// Numbers stay in one line with their names of rows: a table is put under itself, with these.
#[test]
fn a_table_too_wide_is_continued_below() {
    let mut command = Command::new(PROGRAM);
    let arguments = "predict -p 4 -m 8 -s 1f1b,zb-v,interleaved-1f1b -q".split(' ');
    let output = command.args(arguments).env("COLUMNS", "40").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("interleaved-1f1b ")).collect();
    let cells: Vec<&str> = rows.iter().flat_map(|row| row.split_whitespace().skip(1)).collect();
    assert!(rows.len() > 2, "{text}");
    assert_eq!(cells.join(" "), "28.5 units 15.8 % 15.8 % 18.8 % 5.5 28.5 0.0 %", "{text}");
}
