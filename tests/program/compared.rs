//! `compare`: every output says which file is which.

use crate::cli::{json, pipesim};
use serde_json::Value;

/// Labels of the entries that `compare` makes of `files`.
fn labels(files: &str) -> Vec<Value> {
    let found = json(&format!("compare -q --format json {files}"));
    found["schedules"].as_array().unwrap().iter().map(|one| one["label"].clone()).collect()
}

#[test]
fn files_of_one_schedule_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display().to_string();
    for (index, name) in ["a.json", "b.json", "one/x.json", "two/x.json", "three/two/x.json"].iter().enumerate() {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        let line = format!("predict -q -p 2 -m 4 -s 1f1b --costs F={0},I=1,W=1 --format csv -o {at}/{name}", index + 1);
        assert_eq!(pipesim(&line).0, 0);
    }
    let two = format!("predict -q -p 2 -m 4 -s 1f1b,gpipe --format csv -o {at}/two.json");
    assert_eq!(pipesim(&two).0, 0);
    assert_eq!(pipesim(&format!("predict -q -p 2,4 -m 4 -s 1f1b --format csv -o {at}/sweep.json")).0, 0);
    assert_eq!(pipesim(&format!("predict -q -p 2 -m 4 -s 1f1b --format csv -o {at}/run1 -o {at}/run2")).0, 0);
    for (files, expected) in [
        ("a.json", vec![None]),
        ("a.json b.json", vec![Some("a.json"), Some("b.json")]),
        ("a.json b.json one/x.json", vec![Some("a.json"), Some("b.json"), Some("x.json")]),
        ("one/x.json two/x.json", vec![Some("one/x.json"), Some("two/x.json")]),
        ("one/x.json two/x.json a.json", vec![Some("one/x.json"), Some("two/x.json"), Some("a.json")]),
        ("one/x.json three/two/x.json", vec![Some("one/x.json"), Some("two/x.json")]),
        ("a.json a.json", vec![Some("1"), Some("2")]),
        ("a.json b.json a.json", vec![Some("a.json, 1"), Some("b.json"), Some("a.json, 2")]),
        ("two.json", vec![None, None]),
        ("two.json a.json", vec![Some("two.json"), None, Some("a.json")]),
        ("two.json two.json", vec![Some("1"), Some("1"), Some("2"), Some("2")]),
        ("sweep.json", vec![Some("p=2 m=4"), Some("p=4 m=4")]),
        ("sweep.json a.json", vec![Some("sweep.json, p=2 m=4"), Some("sweep.json, p=4 m=4"), Some("a.json")]),
        ("run1 run2", vec![Some("run1"), Some("run2")]),
    ] {
        let files = files.split(' ').map(|name| format!("{at}/{name}")).collect::<Vec<_>>().join(" ");
        let expected: Vec<Value> = expected.into_iter().map(|label| label.map_or(Value::Null, Value::from)).collect();
        assert_eq!(labels(&files), expected, "{files}");
    }
    // The shortest end that tells apart: the whole is needed where one is the end of the other.
    let nested = labels(&format!("{at}/two/x.json {at}/three/two/x.json"));
    let ends: Vec<bool> = nested
        .iter()
        .zip(["two/x.json", "three/two/x.json"])
        .map(|(label, end)| label.as_str().unwrap().ends_with(end))
        .collect();
    assert!(nested[0] != nested[1] && ends == [true, true], "{nested:?}");
    every_format(&at);
}

/// What people and programs read has the label of both files, and the JSON the schedule's own name.
fn every_format(at: &str) {
    let (a, b) = ("1f1b (a.json)", "1f1b (b.json)");
    let files = format!("{at}/a.json {at}/b.json");
    for format in ["table", "md", "csv", "latex"] {
        let (code, out, err) = pipesim(&format!("compare -q {files} --format {format}"));
        let plain = out.replace('\\', "");
        assert!(code == 0 && plain.contains(a) && plain.contains(b), "{format}: {out} {err}");
    }
    let found = json(&format!("compare -q {files} --format json"));
    assert_eq!(
        (&found["schedules"][0]["schedule"], &found["schedules"][1]["label"]),
        (&"1f1b".into(), &"b.json".into())
    );
    for name in ["x.svg", "x.html", "x.csv", "x.tex", "x.trace.json", "folder/timeline.svg", "folder/index.html"] {
        let output = name.split('/').next().unwrap();
        assert_eq!(pipesim(&format!("compare -q {files} --format csv -o {at}/{output}")).0, 0);
        let text = std::fs::read_to_string(format!("{at}/{name}")).unwrap();
        assert!(text.contains(a) && text.contains(b), "{name}");
    }
    let judged = pipesim(&format!("compare -q {files} --fail-if makespan>1"));
    assert!(
        judged.0 == 4 && judged.2.contains(&format!("{a}: ")) && judged.2.contains(&format!("{b}: ")),
        "{judged:?}"
    );
}

/// Two predictions in one picture: what was asked differently, and what it gains. 1F1B takes 33 units on 4 devices with 8
/// micro-batches, ZB-V 25.5 (Qi et al., arXiv 2405.15362, at equal costs).
#[test]
fn a_change_says_what_differs_and_what_it_gains() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display().to_string();
    let predict = "predict -q -p 4 -m 8 --format csv -s";
    for (names, file) in [("1f1b", "a"), ("zb-v", "b"), ("1f1b,zb-v", "two")] {
        assert_eq!(pipesim(&format!("{predict} {names} -o {at}/{file}.json")).0, 0);
    }
    let line = format!("compare --before {at}/a.json --after {at}/b.json --format json -o {at}/change.svg");
    let (code, printed, told) = pipesim(&line);
    assert_eq!(code, 0, "{told}");
    let svg = std::fs::read_to_string(folder.path().join("change.svg")).unwrap();
    for text in [
        "chunks 1 to 2, schedule 1f1b to zb-v",
        "The makespan is 7.5 units shorter (−22.7 %)",
        "bubble 27.3 % to 5.9 %",
        "peak activations 4 to 4",
    ] {
        assert!(printed.contains(text) && svg.contains(text), "{text}: {printed}");
    }
    assert!(svg.contains("before: 1f1b 33 units, after: zb-v 25.5 units (−22.7 %)"));
    let (code, _, told) = pipesim(&format!("compare --before {at}/two.json --after {at}/b.json"));
    assert!(code == 2 && told.contains("expected a file with one timeline, found 2"), "{code} {told}");
    let figures = pipesim("predict -q -p 4 -m 8 -s 1f1b --format json").1;
    std::fs::write(folder.path().join("figures.json"), figures).unwrap();
    let (code, _, told) = pipesim(&format!("compare --before {at}/figures.json --after {at}/b.json"));
    assert!(code == 2 && told.contains("-o timelines.json") && !told.contains("json.json"), "{code} {told}");
}
