//! Comparisons in one command: variants of schedules, units of costs, what costs are of.

use crate::cli::{fails, json, pipesim};
use serde_json::Value;

fn predicted(arguments: &str) -> Vec<Value> {
    let found = json(&format!("predict -q --format json {arguments}"));
    found["predictions"].as_array().unwrap().clone()
}

fn makespan(arguments: &str) -> f64 {
    predicted(arguments)[0]["makespan"].as_f64().unwrap()
}

fn names(arguments: &str) -> Vec<String> {
    predicted(arguments).iter().map(|one| one["schedule"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_variant_is_the_schedule_with_its_options() {
    let at = "-p 4 -m 8";
    assert_eq!(
        names(&format!("{at} -s interleaved-1f1b:v=2,Interleaved_1F1B:v=4,1f1b")),
        ["interleaved-1f1b:v=2", "interleaved-1f1b:v=4", "1f1b"]
    );
    for (variant, flags) in [
        ("interleaved-1f1b:v=4", "-s interleaved-1f1b --chunks 4"),
        ("looped-bfs:v=3", "-s looped-bfs --set v=3"),
        ("group-interleaved:v=2,group=2", "-s group-interleaved --chunks 2 --set group=2"),
        ("hanayo:waves=2", "-s hanayo --set waves=2"),
        ("auto:v=2", "-s auto --chunks 2"),
        ("auto:cap=1", "-s auto --memory-cap 1"),
    ] {
        let at = if variant.starts_with("auto") { "-p 2 -m 4" } else { at };
        let [a, b] = [format!("{at} -s {variant}"), format!("{at} {flags}")].map(|line| predicted(&line));
        assert_eq!((&a[0]["makespan"], &a[0]["chunks"]), (&b[0]["makespan"], &b[0]["chunks"]), "{variant}");
        assert_eq!(a[0]["per_device"], b[0]["per_device"], "{variant}");
        let name = a[0]["schedule"].as_str().unwrap();
        assert!(name.split(' ').next().unwrap().contains(':'), "{name}");
    }
    // PyTorch's interleaving: a bubble of (p - 1) / (v m) over the ideal.
    for v in [1.0, 2.0, 4.0] {
        let one = &predicted(&format!("{at} -s interleaved-1f1b:v={v}"))[0];
        assert_eq!(one["bubble_over_ideal"].as_f64().unwrap(), 3.0 / (v * 8.0));
    }
}

#[test]
fn files_have_variants_and_reports_files_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.star");
    let text = "def device(r, p, m, extra = 0):\n    w = min(p - 1 - r + extra, m)\n    return w * F + (m - w) * (F + B) + w * B\n";
    std::fs::write(&path, text).unwrap();
    let path = path.display();
    assert_eq!(names(&format!("-p 4 -m 8 -s {path}:extra=1,{path}")), ["mine:extra=1", "mine"]);
    let out = folder.path().join("report");
    let same = "-s interleaved-1f1b:v=2 -s Interleaved-1F1B:v=2,interleaved-1f1b:v=4";
    assert_eq!(pipesim(&format!("predict -q -p 4 -m 8 {same} -o {}", out.display())).0, 0);
    for name in ["interleaved-1f1b-v-2", "interleaved-1f1b-v-2-2", "interleaved-1f1b-v-4"] {
        assert!(out.join(format!("{name}-predicted.json")).exists(), "{name}");
    }
    let page = std::fs::read_to_string(out.join("timeline.svg")).unwrap();
    assert!(page.contains("interleaved-1f1b:v=4"), "the picture names the variant");
    for (line, parts) in [
        ("-s 1f1b:v=2", ["1f1b:v=2 has 1 stage per device", "omit"]),
        ("-s interleaved-1f1b:w=2", ["no option 'w'", "it has v"]),
        ("-s interleaved-1f1b:v", ["KEY=VALUE", "interleaved-1f1b:v=4"]),
        ("-s interleaved-1f1b:v=0", ["from 1 to 1048576", "found 0"]),
        ("-s interleaved-1f1b:v=two", ["from 1 to 1048576", "found two"]),
        ("-s auto:group=2", ["no option 'group'", "auto"]),
        ("-s auto:cap=none", ["cap = none", "activation units"]),
        ("-s auto:cap=4 --memory-cap 3", ["--memory-cap", "auto:cap=4"]),
        ("-s interleaved-1f1b:v=x:v=2", ["expected v", "found x:v=2"]),
    ] {
        fails(&format!("predict -p 4 -m 8 {line}"), 2, &parts);
    }
}

#[test]
fn other_verbs_know_variants() {
    let checked = json("check -p 4 -m 8 -q --format json -s interleaved-1f1b:v=2,interleaved-1f1b:v=4");
    assert_eq!((&checked["checks"][0]["chunks"], &checked["checks"][1]["chunks"]), (&2.into(), &4.into()));
    assert_eq!(checked["checks"][1]["schedule"], "interleaved-1f1b:v=4");
    let explained = json("explain -p 2 -m 4 -q --format json -s interleaved-1f1b:v=3");
    assert_eq!(explained["explanations"][0]["schedule"], "interleaved-1f1b:v=3");
    let exported = pipesim("export -p 2 -m 4 -q --to pytorch-csv -s interleaved-1f1b:v=3").1;
    assert!(exported.contains("5B3") && !exported.contains("6B3"), "six stages: {exported}");
    let timed =
        "run -q -p 2 -m 4 -s interleaved-1f1b:v=2,interleaved-1f1b:v=3 --device timed --unit-ms 1 --steps 1 --warmup 0";
    let folder = tempfile::tempdir().unwrap();
    let run = json(&format!("{timed} --format json -o {}/r", folder.path().display()));
    assert_eq!(
        (&run["runs"][0]["schedule"], &run["runs"][1]["schedule"]),
        (&"interleaved-1f1b:v=2".into(), &"interleaved-1f1b:v=3".into())
    );
}

#[test]
fn flags_apply_where_they_are_known_and_conflicts_are_refused() {
    let (code, out, err) =
        pipesim("predict -p 4 -m 8 --format csv -s 1f1b,interleaved-1f1b,group-interleaved --chunks 4 --set group=2");
    assert_eq!(code, 0, "{err}");
    let chunks: Vec<&str> = out.lines().skip(1).map(|line| line.split(',').nth(2).unwrap()).collect();
    assert_eq!(chunks, ["1", "4", "4"]);
    assert!(
        err.contains("--chunks 4: 1f1b has a fixed") && err.contains("--set group=2: 1f1b, interleaved-1f1b has no"),
        "{err}"
    );
    for (line, parts) in [
        ("-s 1f1b,zb-v --chunks 4", ["--chunks 4: 1f1b, zb-v", "leave it out"]),
        ("-s 1f1b,zb-v --set group=4", ["--set group=4: 1f1b, zb-v", "leave it out"]),
        ("-s interleaved-1f1b --chunks 3 --set v=4", ["--chunks and --set v", "leave one of the two out"]),
        (
            "-s interleaved-1f1b --set v=2 -s interleaved-1f1b --set v=4",
            ["--set gives v twice", "-s 'interleaved-1f1b:v=2' -s 'interleaved-1f1b:v=4'"],
        ),
        ("-s 1f1b,interleaved-1f1b:v=2 --chunks 4", ["--chunks and interleaved-1f1b:v=2", "leave one of the two out"]),
        ("-s interleaved-1f1b:v=2 --set v=2", ["--set and interleaved-1f1b:v=2", "leave one of the two out"]),
    ] {
        fails(&format!("predict -p 4 -m 8 {line}"), 2, &parts);
    }
}

#[test]
fn costs_have_a_unit_for_all_or_for_none() {
    let at = "-p 4 -m 8 -s 1f1b,zb-v,zb-2p";
    let figures = |costs: &str| predicted(&format!("{at} --costs {costs}"));
    let plain = figures("F=18.5,I=18.1,W=9.3,comm=0.3,keep=0.5");
    for (costs, unit, factor) in [
        ("F=18.5ms,I=18.1ms,W=9.3ms,comm=300us,keep=0.5", "ms", 1.0),
        ("F=18500us,I=18100us,W=9300µs,comm=300us,keep=0.5", "us", 1e3),
        ("F=0.0185s,I=18.1ms,W=9.3ms,comm=300000ns,keep=0.5", "s", 1e-3),
        ("F=18500000ns,I=18100000ns,W=9300000ns,comm=300000ns,keep=0.5", "ns", 1e6),
    ] {
        for (one, plain) in figures(costs).iter().zip(&plain) {
            assert_eq!((&one["time_unit"], &one["schedule"]), (&unit.into(), &plain["schedule"]));
            let [found, wanted] = [one, plain].map(|one| one["makespan"].as_f64().unwrap());
            assert!((found / (wanted * factor) - 1.0).abs() < 1e-12, "{costs}: {found} {wanted}");
            assert_eq!(one["bubble"], plain["bubble"], "{costs}");
        }
    }
    let (_, out, _) = pipesim("predict -p 2 -m 2 -s 1f1b --costs F=18.5ms,comm=300us");
    assert!(out.contains(" ms, bubble") && out.contains("I = W = F is assumed"), "{out}");
    let timeline = json("predict -p 1 -m 1 -s 1f1b --costs F=2us,I=3us,W=1us -q --format json");
    assert_eq!(timeline["predictions"][0]["makespan"], 6.0);
    for (costs, parts) in [
        ("F=1ms,I=1", ["found I=1 without one", "write I=1ms"]),
        ("F=1ms,comm=0.5", ["found comm=0.5 without one", "write comm=0.5ms"]),
        ("F=1,comm=300us", ["found F=1 without one", "write F=1us"]),
        ("F=1h", ["expected a number", "1h"]),
        ("keep=1ms", ["keep is a share", "leave its unit out"]),
        ("F=1000000000s", ["104 days", "less than s"]),
    ] {
        fails(&format!("predict -p 4 -m 8 -s 1f1b --costs {costs}"), 2, &parts);
    }
    assert_eq!(pipesim("predict -p 4 -m 8 -s 1f1b --costs F=1ms,comm=0 -q").0, 0);
    // A threshold with a unit is held against times in any.
    let judged = |limit: &str| {
        pipesim(&format!("predict -q -p 1 -m 1 -s 1f1b --costs F=2us,I=3us,W=1us --fail-if makespan>{limit}")).0
    };
    assert_eq!([judged("5.9us"), judged("6us"), judged("5999ns"), judged("0.0061ms"), judged("5.9")], [4, 0, 4, 0, 4]);
    fails("run -p 2 -m 2 --device timed --costs F=1ms --unit-ms 2", 2, &["--unit-ms", "leave it out"]);
}

#[test]
fn timelines_of_several_units_are_compared_in_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let line = "predict -q -p 2 -m 2 -s 1f1b --format csv";
    assert_eq!(pipesim(&format!("{line} --costs F=300us,I=200us,W=100us -o {out}/us.json")).0, 0);
    assert_eq!(pipesim(&format!("{line} --costs F=3ms,I=2ms,W=1ms -o {out}/ms.json")).0, 0);
    let figures = |files: &str| {
        let found = json(&format!("compare -q --format json {files}"));
        let of =
            |one: &Value| (one["predicted"]["time_unit"].to_string(), one["predicted"]["makespan"].as_f64().unwrap());
        found["schedules"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(figures(&format!("{out}/us.json")), [("\"us\"".to_string(), 1800.0)]);
    let both = figures(&format!("{out}/us.json {out}/ms.json"));
    assert_eq!(both, [("\"ms\"".to_string(), 1.8), ("\"ms\"".to_string(), 18.0)]);
}

#[test]
fn costs_are_of_a_device_a_stage_a_layer_or_the_model() {
    let costs = "--costs F=32,I=32,W=32,comm=0.5";
    // One model over p: on so many devices each has a p-th of it.
    for p in [2, 4, 8] {
        let share = 32.0 / f64::from(p);
        let same = makespan(&format!("-p {p} -m 8 -s 1f1b --costs F={share},I={share},W={share},comm=0.5"));
        assert_eq!(makespan(&format!("-p {p} -m 8 -s 1f1b {costs} --costs-per model")), same, "p = {p}");
        let stages = format!("-p {p} -m 8 -s interleaved-1f1b:v=2 --costs F=1,I=1,W=1,comm=0.5");
        let devices = makespan(&format!("-p {p} -m 8 -s interleaved-1f1b:v=2 --costs F=2,I=2,W=2,comm=0.5"));
        assert_eq!(makespan(&format!("{stages} --costs-per stage")), devices, "p = {p}");
        let layers = format!("{stages} --costs-per layer --layers {}", 2 * p);
        assert_eq!(makespan(&layers), devices, "p = {p}: a layer a stage");
    }
    let per_device = &predicted("-p 4 -m 8 -s 1f1b --costs F=32ms,I=32ms,W=32ms --costs-per model")[0];
    assert_eq!(per_device["costs"]["F"], 8.0);
    fails("predict -p 2 -m 2 -s 1f1b --costs-per layer", 2, &["--costs-per layer", "--layers 32"]);
    fails("predict -p 2 -m 2 -s 1f1b --costs F=1 --layers 1,2,3", 2, &["1f1b", "layers for 2 stages, found 3"]);
    fails("predict -p 4 -m 2 -s 1f1b --costs F=1 --layers 3", 2, &["1f1b", "at most as many stages", "3 layers"]);
}

#[test]
fn layers_make_stages_unequal() {
    // GPipe without a backward to speak of: the slowest stage works m times, the others once before and after.
    let line = "-p 4 -m 8 -s gpipe --costs F=8,I=0,W=0,B=0 --layers 7,8,8,9";
    assert_eq!(makespan(line), 7.0 + 8.0 + 8.0 + 8.0 * 9.0);
    let per_layer = "-p 4 -m 8 -s gpipe --costs F=1,I=0,W=0,B=0 --costs-per layer --layers 7,8,8,9";
    assert_eq!(makespan(per_layer), makespan(line));
    let even = "-p 4 -m 8 -s 1f1b,zb-v,interleaved-1f1b --costs F=3,I=2,W=1,comm=0.25";
    assert_eq!(
        predicted(&format!("{even} --layers 32")),
        predicted(even),
        "equal stages are what they are without layers"
    );
    // Ten layers over four stages: the first two have one more.
    let ten = makespan("-p 4 -m 8 -s gpipe --costs F=1,I=0,W=0,B=0 --costs-per layer --layers 10");
    assert_eq!(ten, makespan("-p 4 -m 8 -s gpipe --costs F=1,I=0,W=0,B=0 --costs-per layer --layers 3,3,2,2"));
}

/// The best schedules by makespan at each p and m, as a reader of the JSON finds them.
fn shortest(found: &Value) -> Vec<(u64, u64, Vec<String>)> {
    let mut points: Vec<(u64, u64, f64, Vec<String>)> = Vec::new();
    for one in found["predictions"].as_array().unwrap() {
        let key = ["devices", "microbatches"].map(|key| one[key].as_u64().unwrap());
        let (time, name) = (one["makespan"].as_f64().unwrap(), one["schedule"].as_str().unwrap().to_string());
        match points.iter_mut().find(|(p, m, ..)| [*p, *m] == key) {
            None => points.push((key[0], key[1], time, vec![name])),
            Some((.., least, names)) if time < *least => (*least, *names) = (time, vec![name]),
            Some((.., least, names)) if time == *least => names.push(name),
            Some(_) => {}
        }
    }
    points.into_iter().map(|(p, m, _, names)| (p, m, names)).collect()
}

#[test]
fn all_combinations_in_one_command() {
    let line = "predict -q -p 4,6 -m 4..16*2 -s 1f1b,zb-h1,dualpipe --costs F=8,I=8,W=8,comm=2";
    let found = json(&format!("{line} --format json"));
    let (all, left_out) = (found["predictions"].as_array().unwrap(), found["left_out"].as_array().unwrap());
    assert_eq!((all.len(), left_out.len()), (15, 3));
    for missing in left_out {
        let [p, m] = ["devices", "microbatches"].map(|key| missing[key].as_u64().unwrap());
        assert!(missing["schedule"] == "dualpipe" && m < 2 * p, "{missing}");
        assert!(missing["why"].as_str().unwrap().contains("needs an even m >= 2 p"), "{missing}");
    }
    for one in all {
        let [name, p, m] = [&one["schedule"], &one["devices"], &one["microbatches"]].map(|v| v.to_string());
        let alone = predicted(&format!("-p {p} -m {m} -s {} --costs F=8,I=8,W=8,comm=2", name.trim_matches('"')));
        assert_eq!(alone[0]["makespan"], one["makespan"], "{name} p = {p}, m = {m}");
        let wins = one["best"].as_array().unwrap().contains(&"makespan".into());
        let best =
            shortest(&found).into_iter().find(|(bp, bm, _)| [bp.to_string(), bm.to_string()] == [p.clone(), m.clone()]);
        assert_eq!(wins, best.unwrap().2.contains(&name.trim_matches('"').to_string()), "{one}");
    }
    let wanted = [
        (4, 4, "zb-h1"),
        (4, 8, "dualpipe"),
        (4, 16, "dualpipe"),
        (6, 4, "zb-h1"),
        (6, 8, "zb-h1"),
        (6, 16, "dualpipe"),
    ];
    assert_eq!(shortest(&found), wanted.map(|(p, m, name)| (p, m, vec![name.to_string()])));
    let table = pipesim(line).1;
    let changes =
        "Shortest at p = 4: zb-h1 at m = 4, dualpipe at m = 8 to 16; at p = 6: zb-h1 at m = 4 to 8, dualpipe at m = 16";
    assert!(table.lines().next().unwrap().ends_with(changes), "{table}");
    assert_eq!(found["changes"], changes);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |start: [&str; 3]| rows.iter().find(|row| row.starts_with(&start)).unwrap();
    assert!(row(["dualpipe", "4", "8"])[3].starts_with('*') && row(["dualpipe", "4", "4"])[3] == "none", "{table}");
    assert!(table.contains("needs an even m >= 2 p = 12, found 8"), "{table}");
    let csv = pipesim(&format!("{line} --format csv")).1;
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines.len() == 19 && lines[0].ends_with(",best,left_out"), "{csv}");
    assert!(lines.iter().any(|line| line.starts_with("dualpipe,4,,4,") && line.contains("even m")), "{csv}");
}

#[test]
fn pictures_and_folders_hold_all_combinations() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let line =
        format!("predict -q -p 2,4 -m 4,9 -s 1f1b,interleaved-1f1b:v=2 -o {out}/all -o {out}/x.html -o {out}/x.csv");
    assert_eq!(pipesim(&line).0, 0);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for (p, m) in [(2, 4), (4, 4)] {
        for stem in ["1f1b", "interleaved-1f1b-v-2"] {
            let timeline: Value =
                serde_json::from_str(&read(&format!("all/{stem}-p-{p}-m-{m}-predicted.json"))).unwrap();
            assert_eq!((&timeline["devices"], &timeline["microbatches"]), (&p.into(), &m.into()));
        }
        for name in ["all/timeline.svg", "x.html", "x.csv"] {
            assert!(read(name).contains(&format!("interleaved-1f1b:v=2 p={p} m={m}")), "{name}");
        }
    }
    // Nine micro-batches make no whole rounds.
    let report: Value = serde_json::from_str(&read("all/report.json")).unwrap();
    let missing: Vec<&Value> =
        report["schedules"].as_array().unwrap().iter().filter(|one| one["predicted"].is_null()).collect();
    assert_eq!((missing.len(), &missing[0]["schedule"]), (2, &"interleaved-1f1b:v=2".into()));
    assert!(missing[0]["left_out"].as_str().unwrap().contains("p = 2, m = 9"), "{missing:?}");
    assert!(read("all/timeline.svg").contains("use a multiple of p"), "the picture says why one is not there");
}

#[test]
fn one_schedule_is_compared_over_p_and_m() {
    let (code, out, err) = pipesim("predict -p 2,4 -m 8 -s 1f1b --costs F=4,I=4,W=4 --costs-per model");
    assert!(code == 0 && out.contains("Shortest: p = 4") && !err.contains("note:"), "{out} {err}");
    // (m + p - 1) (F + B) of a p-th of the model.
    let times: Vec<f64> = predicted("-p 2,4 -m 8 -s 1f1b --costs F=4,I=4,W=4 --costs-per model")
        .iter()
        .map(|one| one["makespan"].as_f64().unwrap())
        .collect();
    assert_eq!(times, [9.0 * 12.0 / 2.0, 11.0 * 12.0 / 4.0]);
    let (_, _, err) = pipesim("predict -p 2,4 -m 8 -s 1f1b --costs F=4,I=4,W=4");
    assert!(err.contains("note: costs are per device") && err.contains("--costs-per model"), "{err}");
    let (_, out, err) = pipesim("predict -p 4 -m 4,8,16 -s 1f1b");
    assert!(out.contains("Least time per micro-batch: m = 16") && !err.contains("note:"), "{out} {err}");
    let (_, _, err) = pipesim("predict -p 4 -m 8 -s interleaved-1f1b:v=2,interleaved-1f1b:v=4");
    assert!(err.contains("a chunk costs 1/v"), "{err}");
    // What holds more than the cap wins nothing.
    let capped = predicted_with_best("-p 4 -m 8 -s 1f1b,zb-h2,zb-v --memory-cap 4");
    assert_eq!(capped, ["", "", "makespan bubble span_bubble bubble_over_ideal"]);
    let limits = pipesim("predict -q -p 4 -m 8,9 -s 1f1b --costs F=1,I=1,W=1 --fail-if makespan>34");
    assert!(
        limits.0 == 4 && limits.2.contains("1f1b p=4 m=9: makespan>34 holds") && !limits.2.contains("m=8"),
        "{limits:?}"
    );
    for (line, code, parts) in [
        ("predict -p 3,5 -m 4 -s dualpipe", 3, ["dualpipe does not exist for p = 3", "even number"]),
        ("predict -p 2,4 -m 8 -s 1f1b --delivery channel", 3, ["1f1b p=2 m=8: under channel", "wait for one another"]),
        ("predict -p 2,4 -m 4 -s zbb", 2, ["no schedule is called 'zbb'", "zb-v"]),
        ("predict -p 1..500 -m 1..500 -s 1f1b", 2, ["at most 100000 combinations", "found 250000"]),
        ("predict -p 8..4 -m 8", 2, ["--stages", "write 4..8"]),
        ("explain -p 2,4 -m 8 -s 1f1b", 2, ["--stages takes one number here", "predict compares several"]),
        ("check -p 2 -m 4..8 -s 1f1b", 2, ["--micro takes one number here", "predict compares several"]),
        ("export -p 2,4 -m 4 -s 1f1b --to json", 2, ["--stages takes one number here", "predict"]),
        ("run -p 2,4 -m 4 -s 1f1b", 2, ["--stages takes one number here", "predict"]),
        ("profile -p 2 -m 4,8", 2, ["--micro takes one number here", "predict"]),
    ] {
        fails(line, code, &parts);
    }
}

/// The figures that each wins, as JSON has them.
fn predicted_with_best(arguments: &str) -> Vec<String> {
    let names = |one: &Value| {
        let best = one["best"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        best.collect::<Vec<_>>().join(" ")
    };
    predicted(arguments).iter().map(names).collect()
}

#[test]
fn what_the_help_of_schedules_shows_can_be_run() {
    let help = pipesim("schedules --help").1;
    let folder = tempfile::tempdir().unwrap();
    let mut texts: Vec<(String, String)> = Vec::new();
    for line in help.lines().skip_while(|line| !line.starts_with("To write one")) {
        let heading =
            line.strip_prefix("  ").filter(|line| !line.starts_with(' ')).and_then(|line| line.split_once(':'));
        match (line.strip_prefix("    "), heading) {
            (Some(code), _) => texts.last_mut().unwrap().1 += &format!("{code}\n"),
            (None, Some((name, _))) => texts.push((name.replace(' ', "-"), String::new())),
            _ => {}
        }
    }
    texts.retain(|(_, text)| text.contains("def device"));
    let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["options", "placements", "caps", "greedy-over-chunks"]);
    for (name, text) in &texts {
        let path = folder.path().join(format!("{name}.star"));
        std::fs::write(&path, text).unwrap();
        let own = if name == "options" { ":late=2" } else { "" };
        let found = &predicted(&format!("-p 2 -m 4 -s {}{own}", path.display()))[0];
        let peak = found["per_device"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["peak_activations"].as_f64().unwrap())
            .fold(0.0, f64::max);
        let wanted: fn(f64) -> bool = match name.as_str() {
            "options" => |peak| peak == 4.0,    // 2 + late
            "placements" => |peak| peak == 4.0, // all forwards first
            "caps" => |peak| peak == 1.0,       // of 1.5
            _ => |peak| peak <= 2.0,            // cap = p
        };
        assert!(wanted(peak), "{name}: {peak}");
    }
    for line in ["interleaved-1f1b:v=4", "group-interleaved:v=2,group=2"] {
        assert!(help.contains(&format!("-s {line}")) && !predicted(&format!("-p 4 -m 8 -s {line}")).is_empty());
    }
}

/// Of several schedules those that do not exist, or deadlock, are left out with a note; one alone fails, and so do all.
#[test]
fn schedules_that_do_not_exist_are_left_out() {
    let asked = "predict -p 4 -m 7 -s 1f1b,interleaved-1f1b,dualpipe";
    let (code, out, err) = pipesim(asked);
    assert!(code == 0 && err.contains("note: dualpipe is left out: dualpipe does not exist for p = 4, m = 7"), "{err}");
    assert!(
        out.contains("Left out") && out.lines().any(|line| line.starts_with("dualpipe") && line.contains("none")),
        "{out}"
    );
    let found = json(&format!("{asked} -q --format json"));
    let names: Vec<&str> =
        found["predictions"].as_array().unwrap().iter().map(|p| p["schedule"].as_str().unwrap()).collect();
    assert_eq!(names, ["1f1b", "interleaved-1f1b"]);
    assert_eq!(
        (&found["left_out"][0]["schedule"], found["left_out"].as_array().unwrap().len()),
        (&"dualpipe".into(), 1)
    );
    fails("predict -p 4 -m 7 -s dualpipe", 3, &["dualpipe does not exist for p = 4, m = 7"]);
    fails("predict -p 5 -m 7 -s dualpipe,chimera", 3, &["dualpipe does not exist for p = 5"]);
    let stuck = "predict -p 4 -m 8 -s 1f1b,zb-v --delivery batched";
    let (code, _, err) = pipesim(stuck);
    assert!(code == 0 && err.contains("note: zb-v is left out: under batched delivery"), "{err}");
    fails("predict -p 4 -m 8 -s zb-v,dualpipe --delivery batched", 3, &["zb-v: under batched delivery"]);
    fails("predict -p 4 -m 7 -s 1f1b,zzz", 2, &["no schedule is called 'zzz'"]);
}

/// A peak above the cap is marked, also where one schedule is asked for alone.
#[test]
fn a_peak_above_the_cap_is_marked() {
    for (options, above) in [("-s 1f1b --memory-cap 2", true), ("-s 1f1b --memory-cap 4", false), ("-s 1f1b", false)] {
        let (code, out, _) = pipesim(&format!("predict -p 4 -m 8 {options}"));
        assert!(code == 0 && out.contains("4 > 2") == above, "{options}: {out}");
    }
}

/// What `auto` chose, asked for by the name in brackets with the same options, is the same.
#[test]
fn the_choice_of_auto_can_be_asked_for() {
    let common = "-p 3 -m 6 --costs F=1,I=1.1,W=0.7,comm=0.1 --transfer 0.2";
    for more in ["", "--memory-cap 2", "--chunks 2", "--chunks 4 --memory-cap 6"] {
        let auto = &predicted(&format!("{common} {more} -s auto"))[0];
        let name = auto["schedule"].as_str().unwrap().strip_prefix("auto (").unwrap().trim_end_matches(')');
        let again = &predicted(&format!("{common} {more} -s {name}"))[0];
        assert_eq!(auto["makespan"], again["makespan"], "{more}: {name}");
    }
}

/// What nothing knows about passes of a shared vocabulary is refused by their name.
#[test]
fn passes_of_a_vocabulary_are_predicted_only() {
    assert!(makespan("-p 2 -m 4 -s 1f1b-vocab --costs F=1,S=1") > makespan("-p 2 -m 4 -s 1f1b-vocab"));
    let at = "-p 2 -m 4 -s 1f1b-vocab";
    for (line, code) in [("run --steps 1", 3), ("check --delivery pytorch", 2), ("export --to pytorch-csv", 3)] {
        fails(&format!("{line} {at}"), code, &["1f1b-vocab", "passes of"]);
    }
    let found = json(&format!("check {at} --format json"));
    let verdicts = found["checks"][0]["deliveries"].as_array().unwrap();
    for verdict in verdicts {
        let delivery = verdict["delivery"].as_str().unwrap();
        let has_none = delivery.starts_with("pytorch") || delivery == "megatron";
        assert_eq!((verdict["survives"].is_null(), verdict["refused"].is_string()), (has_none, has_none));
    }
}

/// The authors' own plan, a row of their program's output: p = 4, m = 8, v = 2, groups of 4, a copy of 0.2 of a chunk's F + I + W.
#[test]
fn the_planner_of_pipeoffload_can_be_asked_for() {
    let all: Value = serde_json::from_str(include_str!("../golden/slices/offload.json")).unwrap();
    let is_row = |case: &&Value| {
        let numbers = ["p", "m", "v", "group", "offload_chunks"].map(|key| case[key].as_u64().unwrap());
        numbers == [4, 8, 2, 4, 1] && case["offload_time"] == 0.2 && case["comm"] == 0.0
    };
    let case = all["cases"].as_array().unwrap().iter().find(is_row).unwrap();
    let at = "-p 4 -m 8 -s pipeoffload:planned=1 --costs F=2,I=2,W=2,copy=1.2";
    let (code, text, _) = pipesim(&format!("export {at} --to json"));
    assert_eq!(code, 0);
    let found: Value = serde_json::from_str(&text).unwrap();
    for device in 0..4 {
        let program = found["programs"][device].as_array().unwrap().iter().map(|op| op.as_str().unwrap());
        for (key, name) in [("d2h", "OFFLOAD"), ("h2d_start", "RELOAD")] {
            let mut theirs: Vec<&Value> = case[key][device].as_array().unwrap().iter().collect();
            theirs.sort_by(|one, other| one[1].as_f64().unwrap().total_cmp(&other[1].as_f64().unwrap()));
            let theirs: Vec<&str> = theirs.iter().map(|copy| copy[0].as_str().unwrap()).collect();
            let ours: Vec<&str> = program.clone().filter(|op| op.contains(name)).collect();
            assert_eq!(ours, theirs, "device {device}, {name}");
        }
    }
    let peak = |line: &str| predicted(line)[0]["per_device"][0]["peak_activations"].as_f64().unwrap();
    assert!(peak(at) < peak("-p 4 -m 8 -s group-interleaved --chunks 2 --costs F=2,I=2,W=2"));
    fails("predict -p 4 -m 8 -s pipeoffload:planned=1", 3, &["needs the time of a copy", "copy=0.5"]);
}
