//! Long lists of predictions: rows come while the rest is computed, and are those of the same predictions alone.

use crate::cli::{fails, json, pipesim};
use crate::support::PROGRAM;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Reads `count` lines of a command's output, then closes it. Returns the lines and how the command ended.
fn first_lines(arguments: &str, count: usize) -> (Vec<String>, Option<i32>) {
    let mut child = Command::new(PROGRAM)
        .args(arguments.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().take(count);
    let lines = lines.map(|line| line.expect("text")).collect();
    (lines, child.wait().expect("the program ends").code())
}

/// The cells of CSV without quotes.
fn rows(csv: &str) -> Vec<Vec<String>> {
    csv.lines().map(|line| line.split(',').map(str::to_string).collect()).collect()
}

/// All rows would take hours; that the command ends once nobody reads shows that rows were printed before the last was computed.
#[test]
fn rows_are_printed_while_the_rest_is_computed() {
    for (sweep, first) in [
        ("-p 2..11+1 -m 2..10001+1 -s 1f1b", "-p 2 -m 2..41+1 -s 1f1b"),
        ("-p 2..101+1 -m 2..2001+1 -s 1f1b,zb-h1,gpipe", "-p 2 -m 2..15+1 -s 1f1b,zb-h1,gpipe"),
        ("-p 4 -m 7..100006+1 -s interleaved-1f1b,dualpipe", "-p 4 -m 7..26+1 -s interleaved-1f1b,dualpipe"),
    ] {
        let alone = pipesim(&format!("predict {first} --format csv -q")).1;
        let (lines, code) = first_lines(&format!("predict {sweep} --format csv -q"), 40);
        assert_eq!(code, Some(0), "{sweep}");
        let best = alone.lines().next().unwrap().split(',').position(|name| name == "best").unwrap();
        for (line, alone) in lines.iter().zip(alone.lines()) {
            // The best of 100,000 rows of one schedule is not known at the first.
            let cells = |line: &str| -> Vec<String> {
                let cells = line.split(',').enumerate().filter(|(column, _)| *column != best || sweep.contains(",zb"));
                cells.map(|(_, cell)| cell.to_string()).collect()
            };
            if line.starts_with("schedule,") {
                assert_eq!(line, alone);
            } else {
                assert_eq!(cells(line), cells(alone), "{sweep}");
            }
        }
        assert_eq!(lines.len(), 40);
    }
}

/// The column `best` by trying all rivals, over several hundred rows; and the same rows in JSON.
#[test]
fn streamed_rows_have_the_best_of_their_rivals() {
    let mut count = 0;
    for line in [
        "-p 2..8+2 -m 3..12+1 -s 1f1b,gpipe,zb-h1,interleaved-1f1b,dualpipe",
        "-p 2..5 -m 2..9 -s zb-v,1f1b,gpipe --memory-cap 3",
        "-p 3 -m 2..30 -s 1f1b,naive --costs F=1,I=2,W=1,comm=0.5",
        "-p 2..6 -m 7 -s 1f1b",
    ] {
        let csv = pipesim(&format!("predict -q {line} --format csv")).1;
        let found = rows(&csv);
        let column = |name: &str| found[0].iter().position(|cell| cell == name).unwrap();
        let several = line.contains(",gpipe") || line.contains(",naive");
        let [schedule, makespan, devices, micro, best] =
            ["schedule", "makespan", "devices", "microbatches", "best"].map(column);
        let printed = json(&format!("predict -q {line} --format json"));
        let (predictions, left_out) = (printed["predictions"].as_array().unwrap(), printed["left_out"].as_array());
        assert_eq!(found.len() - 1, predictions.len() + left_out.map_or(0, Vec::len));
        let cap = line.split_once("--memory-cap ").map_or(f64::INFINITY, |(_, cap)| cap.parse().unwrap());
        let peak = column("peak_activations");
        let mut places: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
        let time = |row: &Vec<String>| row[makespan].parse::<f64>().ok();
        let fits = |row: &Vec<String>| row[peak].parse::<f64>().is_ok_and(|peak| peak <= cap + 1e-9);
        let place = |row: &[String]| (row[devices].clone(), row[micro].clone());
        for row in found[1..].iter().filter(|row| fits(row)) {
            places.entry(place(row)).or_default().push(time(row).unwrap());
        }
        let mut json_rows = predictions.iter();
        for row in &found[1..] {
            count += 1;
            let Some(own) = time(row) else { continue };
            let printed = json_rows.next().unwrap();
            assert_eq!(
                (printed["schedule"].as_str(), printed["makespan"].as_f64()),
                (Some(&*row[schedule]), Some(own))
            );
            let names: Vec<&str> =
                printed["best"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            assert_eq!(names.join(" "), row[best]);
            if several {
                let rivals = places.get(&place(row)).map_or(&[][..], Vec::as_slice);
                let least = rivals.iter().copied().fold(f64::INFINITY, f64::min);
                let most = rivals.iter().copied().fold(0.0, f64::max);
                let wins = fits(row) && own == least && least < most;
                assert_eq!(names.contains(&"makespan"), wins, "{row:?}");
            }
        }
    }
    assert!(count > 300, "{count}");
}

/// Spans that are written prediction by prediction are those of each prediction alone.
#[test]
fn files_of_spans_are_those_of_single_predictions() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let (code, out, err) = pipesim(&format!("predict -p 2,3 -m 2..4 -s 1f1b,gpipe -o {at}/all.csv --format csv"));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("wrote") && out.lines().count() == 1 + 12, "{out} {err}");
    let all = std::fs::read_to_string(format!("{at}/all.csv")).unwrap();
    let mut expected = Vec::new();
    for (p, m, s) in [2, 3]
        .into_iter()
        .flat_map(|p| [2, 3, 4].map(|m| (p, m)))
        .flat_map(|(p, m)| ["1f1b", "gpipe"].map(|s| (p, m, s)))
    {
        assert_eq!(pipesim(&format!("predict -q -p {p} -m {m} -s {s} -o {at}/one.csv")).0, 0);
        let one = std::fs::read_to_string(format!("{at}/one.csv")).unwrap();
        expected.extend(one.lines().skip(1).map(|line| line.replacen(s, &format!("{s} p={p} m={m}"), 1)));
    }
    assert_eq!(all.lines().skip(1).collect::<Vec<_>>(), expected);
    // A table beside, and slices, which have a column.
    let line = format!("predict -q -p 2 -m 2,3 -s 1f1b,seq1f1b:slices=2 -o {at}/cut.csv");
    let (code, out, err) = pipesim(&line);
    assert!(code == 0 && out.contains("best of its p and m"), "{out} {err}");
    let cut = std::fs::read_to_string(format!("{at}/cut.csv")).unwrap();
    let widths: Vec<usize> = cut.lines().map(|line| line.split(',').count()).collect();
    assert!(
        cut.starts_with("schedule,source,device,queue,op,kind,stage,microbatch,slice,")
            && widths.iter().all(|&width| width == 13),
        "{cut}"
    );
}

#[test]
fn limits_say_what_takes_more() {
    fails("predict -p 1..500 -m 1..500 -s 1f1b", 2, &["at most 100000 combinations", "found 250000", "--format csv"]);
    fails("predict -p 1..500 -m 1..500 -s 1f1b -o x.html", 2, &["at most 10000 combinations", "found 250000"]);
    fails("predict -p 1..5000 -m 1..500 -s 1f1b --format csv", 2, &["at most 1000000 combinations", "found 2500000"]);
}

/// A map needs no timelines; a picture of one p and m has them, even if several were asked for.
#[test]
fn a_sweep_with_one_possible_point_draws_its_timeline() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let (code, _, err) = pipesim(&format!("predict -q -p 4 -m 4,9 -s interleaved-1f1b:v=2 -o {at}/one.svg"));
    assert_eq!(code, 0, "{err}");
    let one = std::fs::read_to_string(format!("{at}/one.svg")).unwrap();
    assert!(one.contains("0F0") && one.contains("use a multiple of p"), "the ops are drawn");
    assert_eq!(pipesim(&format!("predict -q -p 4 -m 4,8 -s interleaved-1f1b:v=2 -o {at}/map.svg")).0, 0);
    assert!(!std::fs::read_to_string(format!("{at}/map.svg")).unwrap().contains("0F0"));
}
