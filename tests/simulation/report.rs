//! Reports: every format, from predictions and from timelines made by hand to be odd.

use crate::support::{costs_of, graph};
use crate::xml::well_formed;
use pipesim::costs::{StepCosts, StepEpilogue};
use pipesim::pictures::Comparison;
use pipesim::pictures::{Colors, KindError};
use pipesim::simulation::{Config, Jitter, OpTimes, Source};
use pipesim::{
    Costs, Entry, GivenCosts, Look, Panel, Queue, Report, Resolved, Selection, Setup, Span, Table, Timeline, simulation,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Nanoseconds of one unit of cost.
const UNIT: u64 = 1_000_000_000;

/// What is predicted of a schedule at unit costs; or the same as if measured: in ms, with durations that vary by chance, and
/// with an optimizer at the end.
fn timeline(name: &str, p: u32, m: u32, comm: f64, measured: bool) -> Timeline {
    let graph = graph(name, p, m, None).unwrap();
    let unit = if measured { "1.0001" } else { "1" }; // has ticks that are fine enough to vary
    let costs = costs_of(&graph, &format!("F={unit},I={unit},W={unit},comm={comm}"));
    let mut setup = Setup::default();
    if measured {
        let jitter = Some(Jitter { sigma_per_mille: 30, seed: name.len() as u64, sample: 0 });
        setup.machine = Some(Config { jitter, ..Config::default() });
        setup.steps = StepCosts::new(StepEpilogue::optimizers(p), |_| (costs.units.ticks_per_unit as u64, 0));
    }
    let predicted = simulation::predict(&graph, &costs, &setup).unwrap();
    let timeline = Timeline { lower_bound_ns: None, typical_makespan_ns: None, ..predicted.timeline() };
    if measured { Timeline { source: Source::Measured, ..in_ms(timeline) } } else { timeline }
}

/// The same times in ms instead of units.
fn in_ms(mut timeline: Timeline) -> Timeline {
    for span in &mut timeline.spans {
        span.start_ns /= 1000;
        span.end_ns /= 1000;
    }
    (timeline.unit_ns, timeline.time_unit) = (1_000_000, "ms".into());
    timeline
}

fn panel(timeline: Timeline) -> Panel {
    let mut metrics = timeline.metrics();
    metrics.lower_bound = Some(metrics.ideal);
    metrics.gap_to_bound = Some(metrics.makespan / metrics.ideal - 1.0);
    Panel::new(timeline, metrics)
}

pub fn entry(name: &str, p: u32, m: u32, comm: f64, measured: bool) -> Entry {
    let mut entry = Entry { name: name.into(), ..Entry::default() };
    let predicted = timeline(name, p, m, comm, false);
    if measured {
        let (predicted, measured) = (panel(in_ms(predicted)), panel(timeline(name, p, m, comm, true)));
        entry.error = Some(Comparison {
            makespan: predicted.metrics.makespan / measured.metrics.makespan - 1.0,
            bubble: (predicted.metrics.bubble - measured.metrics.bubble) * 100.0,
            op_start_p50: 0.006,
            op_start_p95: 0.0181,
            steps: None,
            noise: None,
            iteration: Some(0.012),
            period: Some(0.013),
            self_replay: Some(0.002),
            per_kind: [("F", 1.0, 1.013), ("B", 2.0, 2.031)]
                .map(|(kind, predicted_ms, measured_ms)| KindError {
                    kind: kind.into(),
                    predicted_ms,
                    measured_ms,
                    count: 32,
                })
                .into(),
            wait_ms_per_device: vec![3.0, 2.5, 2.0, 1.5],
            transfer_ms_per_device: vec![0.8; 4],
            op_start_cdf: (0..=20).map(|i| (f64::from(i * i) * 5e-5, f64::from(i) / 20.0)).collect(),
        });
        (entry.predicted, entry.measured) = (Some(predicted), Some(measured));
    } else {
        entry.predicted = Some(panel(predicted));
    }
    entry
}

/// naive, gpipe, 1f1b and zb-v.
pub fn sample(p: u32, m: u32, comm: f64, measured: bool) -> Report {
    Report {
        title: "Four schedules".into(),
        subtitle: "4 devices, 8 micro-batches".into(),
        provenance: [("program", "pipesim 0.1.0"), ("costs", "F=1,I=1,W=1")].map(|(k, v)| (k.into(), v.into())).into(),
        entries: ["naive", "gpipe", "1f1b", "zb-v"].map(|name| entry(name, p, m, comm, measured)).into(),
        extra_tables: vec![Table {
            caption: "Idle time".into(),
            header: ["schedule", "cause", "share"].map(String::from).into(),
            rows: vec![vec!["1f1b".into(), "fill".into(), "9.1 %".into()]],
        }],
        ..Report::default()
    }
}

fn hostile() -> Report {
    let mut report = sample(2, 3, 0.5, true);
    let name = "</script><!-- \"a,b\"\r\n\u{1b}[31m & <b>'日本語'</b> ]]> {{data}} %s \u{202e}\\";
    report.title = name.into();
    report.subtitle = name.into();
    report.provenance.insert(name.into(), name.into());
    report.extra_tables.push(Table {
        caption: name.into(),
        header: vec![name.into()],
        rows: vec![vec![name.into(); 3], vec![]],
    });
    for entry in &mut report.entries {
        entry.name = name.into();
        entry.notes.push(name.into());
        for panel in [&mut entry.predicted, &mut entry.measured].into_iter().flatten() {
            panel.timeline.schedule = name.into();
            panel.timeline.time_unit = name.into();
            panel.timeline.provenance.insert(name.into(), name.into());
            for span in &mut panel.timeline.spans {
                span.phase = Some(name.into());
                if span.op == "optimizer" {
                    span.op = name.into();
                }
            }
        }
    }
    report
}

fn single(start_ns: u64, end_ns: u64) -> Report {
    let mut timeline = timeline("naive", 1, 1, 0.0, false);
    timeline.spans.truncate(1);
    (timeline.spans[0].start_ns, timeline.spans[0].end_ns) = (start_ns, end_ns);
    let predicted = Some(Panel::new(timeline.clone(), timeline.metrics()));
    Report { entries: vec![Entry { name: "one".into(), predicted, ..Entry::default() }], ..Report::default() }
}

fn overlapping() -> Report {
    let mut report = single(0, UNIT);
    let timeline = &mut report.entries[0].predicted.as_mut().unwrap().timeline;
    let mut second = timeline.spans[0].clone();
    (second.op, second.start_ns, second.end_ns) = ("0B0".into(), UNIT / 2, 2 * UNIT);
    timeline.spans.push(second);
    report
}

/// Every kind of report that could break a format.
pub fn all() -> Vec<(&'static str, Report)> {
    let mut long = sample(2, 2, 0.0, false);
    long.entries[0].name = "x".repeat(5000);
    let mut empty_entry = Report::default();
    empty_entry.entries.push(Entry { name: "nothing".into(), ..Entry::default() });
    let mut mixed = sample(2, 2, 0.0, true);
    mixed.entries[0].predicted = Some(panel(timeline("naive", 2, 2, 0.0, false)));
    mixed.entries[1].predicted = None;
    vec![
        ("plain", sample(4, 8, 0.0, false)),
        ("both", sample(4, 8, 0.2, true)),
        ("hostile", hostile()),
        ("empty", Report::default()),
        ("empty entry", empty_entry),
        ("zero-length", single(0, 0)),
        ("zero-length later", single(7, 7)),
        ("far away", single(u64::MAX - 1, u64::MAX)),
        ("overlapping", overlapping()),
        ("long name", long),
        ("mixed units", mixed),
        ("64 devices", Report { entries: vec![entry("1f1b", 64, 12, 0.1, false)], ..Report::default() }),
        ("300 devices", Report { entries: vec![entry("1f1b", 300, 2, 0.0, false)], ..Report::default() }),
    ]
}

#[test]
fn svg_is_well_formed_and_bounded() {
    for (name, report) in all() {
        let svg = report.svg();
        well_formed(&svg);
        assert!(svg.chars().all(|c| c == '\n' || !c.is_control()), "{name}: control characters");
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: a coordinate is no number");
    }
    let svg = sample(4, 8, 0.0, false).svg();
    for text in [">F7<", ">device 3<", "bubble 27.3 %", "makespan 25.5 units", ">steady<", "prefers-color-scheme:dark"]
    {
        assert!(svg.contains(text), "the picture lacks {text}");
    }
    assert!(svg.len() < 60_000, "the picture of four schedules takes {} bytes", svg.len());
    // Ops below a pixel share columns: many more of them do not make a larger picture.
    let size = |m| {
        let entries = vec![entry("zb-v", 17, m, 0.0, false)];
        Report { entries, ..Report::default() }.svg().len()
    };
    let (few, many) = (size(60), size(240));
    assert!(many < 2 * few && many < 500_000, "{few} bytes for 6,120 ops, {many} for 24,480");
}

#[test]
fn png_has_its_header_size_and_pixels() {
    for (name, report) in all() {
        if ["plain", "long name", "mixed units", "zero-length"].contains(&name) {
            continue; // as others; compression is slow in debug builds
        }
        let png = report.png().unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), "{name}");
        let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
        let (width, height) = (number(16), number(20));
        assert!(width == 2400 && height >= 100, "{name}: {width} x {height}");
        let length = number(33);
        assert_eq!(&png[37..41], b"IDAT");
        let mut pixels = Vec::new();
        flate2::read::ZlibDecoder::new(&png[41..41 + length]).read_to_end(&mut pixels).unwrap();
        assert_eq!(pixels.len(), height * (1 + width * 3), "{name}");
        assert!(png.ends_with(b"\0\0\0\0IEND\xae\x42\x60\x82"), "{name}");
    }
}

#[test]
fn traces_have_paired_arrows_and_slices_that_do_not_overlap() {
    for (name, report) in all() {
        let trace: Value = serde_json::from_str(&report.trace()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(trace["displayTimeUnit"], "ns");
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();
        let time = |e: &Value, key: &str| (e[key].as_f64().unwrap() * 1000.0).round();
        let mut threads: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
        for slice in of("X") {
            let thread = (slice["pid"].as_u64().unwrap(), slice["tid"].as_u64().unwrap());
            threads.entry(thread).or_default().push((time(slice, "ts"), time(slice, "ts") + time(slice, "dur")));
        }
        for (thread, slices) in &threads {
            for pair in slices.windows(2) {
                assert!(pair[0].1 <= pair[1].0 && pair[0].0 <= pair[1].0, "{name}: {thread:?} {pair:?}");
            }
        }
        let spans: usize = report.entries.iter().flat_map(|e| e.panels()).map(|p| p.timeline.spans.len()).sum();
        assert_eq!(of("X").len(), spans, "{name}");
        let (starts, ends) = (of("s"), of("f"));
        let finish: BTreeMap<u64, &Value> = ends.iter().map(|e| (e["id"].as_u64().unwrap(), *e)).collect();
        assert_eq!((starts.len(), ends.len()), (finish.len(), finish.len()), "{name}");
        for start in starts {
            let end = finish[&start["id"].as_u64().unwrap()];
            assert!(time(start, "ts") <= time(end, "ts"), "{name}: an arrow leads back in time");
            for place in [start, end] {
                let thread = (place["pid"].as_u64().unwrap(), place["tid"].as_u64().unwrap());
                let at = time(place, "ts");
                assert!(threads[&thread].iter().any(|s| s.0 <= at && at <= s.1), "{name}: an arrow hangs in the air");
            }
        }
    }
    let trace = sample(4, 8, 0.2, true).trace();
    for text in
        ["\"1f1b measured · device 0\"", "\"name\":\"0F3\"", "\"activations\"", "\"phase\":\"steady\"", "\"receive\""]
    {
        assert!(trace.contains(text), "the trace lacks {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut unpacked = String::new();
    let packed = fs::read(&sample(4, 8, 0.2, true).save(folder.path().join("x.trace.json.gz")).unwrap()[0]).unwrap();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, trace);
    assert!(sample(4, 8, 0.0, false).trace().contains("\"ph\":\"s\""), "without sends arrows start at ops");
}

/// Fields of RFC 4180 text.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted && chars.next_if_eq(&'\n').is_some() => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(row.is_empty() && field.is_empty(), "the last line has no end");
    rows
}

#[test]
fn csv_has_a_line_for_each_span_and_quotes() {
    for (name, report) in all() {
        let rows = parse_csv(&report.csv());
        let spans: Vec<(&Entry, &Panel, &Span)> = report
            .entries
            .iter()
            .flat_map(|e| e.panels().flat_map(move |p| p.timeline.spans.iter().map(move |s| (e, p, s))))
            .collect();
        assert_eq!(rows.len(), spans.len() + 1, "{name}");
        for (row, (entry, panel, span)) in rows[1..].iter().zip(spans) {
            assert_eq!(row.len(), 12, "{name}");
            assert_eq!((&row[0], &row[4], &row[11]), (&entry.name, &span.op, &panel.timeline.time_unit));
            assert_eq!(row[10].parse::<f64>().unwrap(), span.end_ns as f64 / panel.timeline.unit_ns as f64);
        }
    }
}

fn integer(value: &Value) -> i128 {
    value.as_i64().map(i128::from).or(value.as_u64().map(i128::from)).unwrap()
}

#[test]
fn pages_are_self_contained_and_nothing_breaks_out() {
    for (name, report) in all() {
        let html = report.html();
        assert_eq!(html.matches("</script").count(), 2, "{name}: a text ends a script");
        assert_eq!(html.matches("<!--").count(), 0, "{name}");
        assert_eq!(html.matches("<html").count(), 1, "{name}");
        for outside in ["src=\"http", "href=\"http", "@import", "fetch(", "XMLHttpRequest", "{{style}}", "{{script}}"] {
            assert!(!html.contains(outside), "{name}: {outside}");
        }
        let (_, rest) = html.split_once("id=\"data\">").unwrap();
        let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
        assert_eq!(data["title"].as_str().unwrap().contains("</script>"), report.title.contains("</script>"));
        assert!(!html.contains('\u{202e}') && !html.contains("\\u202e"), "{name}: text can be reversed");
        for (entry, raw) in report.entries.iter().zip(data["entries"].as_array().unwrap()) {
            for (panel, raw) in entry.panels().zip(raw["panels"].as_array().unwrap()) {
                let mut end = 0i128;
                let compute = raw["rows"][0][0].as_array().unwrap();
                let tick = raw["tick"].as_u64().unwrap();
                let spans = panel.timeline.spans.iter().filter(|s| s.device == 0 && s.queue == Queue::Compute);
                for (span, numbers) in spans.zip(compute.chunks(8)) {
                    let start = end + integer(&numbers[3]);
                    end = start + integer(&numbers[4]);
                    let times = [span.start_ns, span.end_ns].map(i128::from);
                    assert_eq!([start * i128::from(tick), end * i128::from(tick)], times, "{name}");
                }
            }
        }
    }
}

/// Text without ANSI escapes.
fn visible(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or("").to_string();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[test]
fn terminals_are_never_overrun() {
    let wide =
        |c: char| if ('\u{1100}'..'\u{ff60}').contains(&c) && !('\u{2010}'..'\u{2600}').contains(&c) { 2 } else { 1 };
    for (name, report) in all() {
        for width in [20, 60, 80, 120] {
            for (ascii, colors) in
                [Colors::None, Colors::Sixteen, Colors::Cube, Colors::True].map(|c| [(false, c), (true, c)]).concat()
            {
                let text = report.terminal(width, ascii, colors);
                for line in text.lines().map(visible) {
                    let columns: usize = line.chars().map(wide).sum();
                    assert!(columns <= width, "{name} in {width} columns: {columns}\n{line}");
                    assert!(!ascii || line.is_ascii(), "{name}: not ASCII: {line}");
                    assert!(!line.chars().any(char::is_control), "{name}: control characters in {line:?}");
                }
                assert!(colors != Colors::None || !text.contains('\x1b'), "{name}");
            }
        }
    }
    let text = sample(4, 8, 0.0, false).terminal(80, false, Colors::None);
    for part in ["1f1b  33 units, bubble 27.3 %", "0 │F0F1F2F3···", "B7━", "unit", "F forward", "94 %"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn measured_steps_are_told_by_a_verdict_and_one_error_each() {
    let mut report = sample(4, 8, 0.2, true);
    report.verdict = "Predictions agree with the measurement.".to_string();
    let spoken =
        |error: f64| format!("{:.1} % too {}", 100.0 * error.abs(), if error > 0.0 { "long" } else { "short" });
    for (steps, interval) in [(5, "range"), (6, "95 % interval")] {
        for error in report.entries.iter_mut().filter_map(|entry| entry.error.as_mut()) {
            (error.steps, error.noise) = (Some(steps), Some(0.014));
        }
        let markdown = report.markdown();
        assert!(markdown.starts_with("Predictions agree with the measurement.\n\n"), "{markdown}");
        assert!(markdown.contains(&format!("half the {interval} over {steps} steps")), "{markdown}");
        for entry in &report.entries {
            let row = markdown.lines().find(|line| line.starts_with(&format!("| {} |", entry.name))).unwrap();
            let error = entry.error.as_ref().unwrap().makespan;
            assert!(row.contains(&format!("| {} | 1.4 % |", spoken(error))), "{error}: {row}");
        }
        for (width, cut) in [(80, "…"), (100, "…")] {
            let drawn = report.terminal(width, false, Colors::None) + &report.table(Some(width));
            let wide = drawn.lines().filter(|line| line.chars().count() > width || line.contains(cut)).count();
            assert_eq!(wide, 0, "{width} columns:\n{drawn}");
        }
    }
}

#[test]
fn tables_name_every_figure() {
    let both = sample(4, 8, 0.2, true);
    let (table, markdown) = (both.table(Some(80)), both.markdown());
    for part in ["zb-v", "27.3 %", "lower", "Predicted", "Measured", "Idle time"] {
        let text = if part == "27.3 %" { sample(4, 8, 0.0, false).table(Some(80)) } else { table.clone() };
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let figures = "makespan, bubble, span bubble, bubble over ideal, peak activations, lower bound, gap, iteration";
    for name in figures.split(", ") {
        assert!(markdown.contains(&format!("| {name} |")), "no {name} in\n{markdown}");
    }
    for (name, report) in all() {
        let mut columns = 0;
        for line in report.markdown().lines() {
            let bars = line.replace("\\\\", "").replace("\\|", "").matches('|').count();
            columns = if line.starts_with('|') && columns > 0 { columns } else { bars };
            assert_eq!(bars, columns, "{name}: {line}");
        }
        assert!(report.table(None).ends_with('\n'), "{name}");
    }
    assert!(sample(4, 8, 0.0, false).table(Some(80)).lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    let files = |folder: &Path| -> BTreeMap<String, Vec<u8>> {
        let paths = sample(4, 8, 0.2, true).save(folder.join("")).unwrap();
        paths.iter().map(|p| (p.file_name().unwrap().to_string_lossy().into(), fs::read(p).unwrap())).collect()
    };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (files(first.path()), files(&second.path().join("made/on/the/way")));
    assert!(first == second, "two writings differ");
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    for name in
        ["index.html", "timeline.svg", "report.json", "trace.json.gz", "1f1b-predicted.json", "zb-v-measured.json"]
    {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    let timeline = Timeline::from_json(std::str::from_utf8(&first["zb-v-measured.json"]).unwrap()).unwrap();
    assert_eq!(Some(timeline), sample(4, 8, 0.2, true).entries.remove(3).measured.map(|p| p.timeline));
    let json: Value = serde_json::from_slice(&first["report.json"]).unwrap();
    assert_eq!(json["schedules"][2]["predicted"]["timeline"], "1f1b-predicted.json");
    assert!(json["schedules"][2]["error"]["makespan"].is_f64());
    let plain: Value = serde_json::from_str(&sample(4, 8, 0.0, false).json()).unwrap();
    assert_eq!(plain["schedules"][2]["predicted"]["bubble"].as_f64(), Some(36.0 / 132.0));
    assert!(single(0, 9).png().unwrap() == single(0, 9).png().unwrap());
}

#[test]
fn files_are_whole_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let count = || fs::read_dir(folder.path()).unwrap().count();
    let file = folder.path().join("a.svg");
    let (one, two) = (sample(4, 8, 0.0, false), sample(2, 2, 0.0, false));
    one.save(&file).unwrap();
    two.save(&file).unwrap();
    assert_eq!((fs::read_to_string(&file).unwrap(), count()), (two.svg(), 1));
    fs::create_dir(folder.path().join("b.svg")).unwrap();
    for unwritable in [folder.path().join("b.svg"), folder.path().join("absent/a.svg"), file.join("a.svg")] {
        let error = format!("{:#}", one.save(&unwritable).unwrap_err());
        assert!(error.contains("expected to write") && error.contains("-o"), "{error}");
        assert_eq!(count(), 2, "something was left behind");
    }
    assert!(two.save(file.join("")).is_err());
    let twice = Report {
        entries: ["A b", "a/b", "../..", ""]
            .map(|name| Entry { name: name.into(), ..entry("naive", 2, 2, 0.0, false) })
            .into(),
        ..Report::default()
    };
    let written = twice.save(folder.path().join("r/")).unwrap();
    assert!(written.iter().all(|path| path.parent() == Some(&folder.path().join("r")) && path.is_file()));
    assert_eq!(written.len(), 10, "files of one name overwrite each other: {written:?}");
}

#[test]
fn panels_of_predictions_say_why_every_idle_moment_is_one() {
    let costs = Costs::given("F=10,I=12,W=7,comm=1".parse::<GivenCosts>().unwrap());
    let selection = Selection { memory_cap: Some(4.0), ..Selection::new(4, 8) };
    let resolved: Vec<Resolved> =
        ["naive", "1f1b", "interleaved-1f1b", "zb-v"].map(|name| selection.resolve(name, &costs).unwrap()).into();
    let predictions: Vec<_> = resolved.iter().map(|one| one.predict().unwrap()).collect();
    for (entry, resolved) in Report::predicted(&predictions).entries.iter().zip(&resolved) {
        let panel = entry.predicted.as_ref().unwrap();
        assert_eq!(panel.memory_cap, Some(4.0));
        for (device, figures) in (0..).zip(&panel.metrics.per_device) {
            let gaps: Vec<_> = panel.idle.iter().filter(|gap| gap.device == device).collect();
            let told: f64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
            assert!((told - figures.idle).abs() < 1e-9, "{} {device}: {told}", entry.name);
            let busy = panel.timeline.spans.iter().filter(|s| s.device == device && s.queue == Queue::Compute);
            let unit = panel.timeline.unit_ns as f64;
            for span in busy {
                let (start, end) = (span.start_ns as f64 / unit, span.end_ns as f64 / unit);
                assert!(gaps.iter().all(|gap| gap.end <= start + 1e-6 || gap.start >= end - 1e-6), "{}", entry.name);
            }
        }
        // the same causes as in the table, and none where queues decide, of which they know nothing
        let times = OpTimes::swept(&resolved.graph, &resolved.costs);
        let table = simulation::explain(&resolved.graph, &resolved.costs, &times, Some(4.0));
        assert_eq!(panel.idle, table.report(&resolved.graph, &resolved.costs).idle);
    }
    let machine = Setup { machine: Some(Config::default()), ..resolved[1].setup.clone() };
    let under_queues = simulation::predict(&resolved[1].graph, &resolved[1].costs, &machine).unwrap();
    assert!(under_queues.idle().is_empty());
}

#[test]
fn pages_carry_the_gaps_that_the_explanation_found() {
    let costs = Costs::given("F=10,I=12,W=7,comm=1".parse::<GivenCosts>().unwrap());
    let selection = Selection { memory_cap: Some(4.0), ..Selection::new(4, 8) };
    let resolved: Vec<Resolved> =
        ["1f1b", "zb-v"].map(|name| selection.resolve(name, &costs).unwrap()).into_iter().collect();
    let predictions: Vec<_> = resolved.iter().map(|one| one.predict().unwrap()).collect();
    let report = Report::predicted(&predictions);
    let html = report.html();
    let (_, rest) = html.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let mut blamed = 0;
    for (number, entry) in report.entries.iter().enumerate() {
        let (panel, raw) = (entry.predicted.as_ref().unwrap(), &data["entries"][number]["panels"][0]);
        assert_eq!(raw["cap"], 4.0);
        let tick = raw["tick"].as_f64().unwrap() / raw["unitNs"].as_f64().unwrap();
        let mut gaps = panel.idle.iter();
        for row in raw["rows"].as_array().unwrap() {
            let mut at = 0;
            for numbers in row[4].as_array().unwrap().chunks(7) {
                let [cause, after, long, code, stage, microbatch, on]: [i128; 7] =
                    numbers.iter().map(integer).collect::<Vec<_>>().try_into().unwrap();
                let gap = gaps.next().unwrap();
                let start = (at + after) as f64 * tick;
                at += after + long;
                assert!((start - gap.start).abs() < 1e-6 && (at as f64 * tick - gap.end).abs() < 1e-6, "{gap:?}");
                let told = &data["causes"][cause as usize];
                assert_eq!(
                    (&told["name"], &told["text"]),
                    (&json!(gap.cause.name(true)), &json!(gap.cause.definition(true)))
                );
                let name = (code >= 0).then(|| format!("{stage}{}{microbatch}", ["F", "I", "W", "B"][code as usize]));
                assert_eq!((name.as_ref(), (on >= 0).then_some(on as u32)), (gap.op.as_ref(), gap.on));
                blamed += usize::from(name.is_some());
            }
        }
        assert!(gaps.next().is_none());
    }
    assert!(blamed > 10, "{blamed}");
}

#[test]
fn gaps_have_the_hatches_of_their_causes_where_that_is_asked_for() {
    let resolved = Selection::new(4, 8).resolve("1f1b", &Costs::default()).unwrap();
    let plain = Report::predicted(&[resolved.predict().unwrap()]);
    let coloured = Report { look: Look { causes: true, ..Look::default() }, ..plain.clone() };
    let (plain, coloured) = (plain.svg(), coloured.svg());
    well_formed(&coloured);
    // those of the table for this case: fill 6, drain 12, dependence 12, own peak 6, nothing else
    for (cause, there) in [
        ("fill", true),
        ("drain", true),
        ("dependence", true),
        ("own peak", true),
        ("order", false),
        ("imbalance", false),
    ] {
        assert_eq!(coloured.contains(&format!(">{cause}<")), there, "{cause}");
        // a phase of the schedule is called drain, too
        assert!(cause == "drain" || !plain.contains(&format!(">{cause}<")), "{cause}");
    }
    assert!(plain.contains(">idle<") && !coloured.contains(">idle<"));
}
