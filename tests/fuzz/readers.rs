//! Checks for everything that is read: PyTorch's files, timelines, cost files, arguments.

use super::judged::{figures, schedule};
use super::xml::well_formed;
use pipesim::costs::{Decimal, Measured, Slow, StepCosts};
use pipesim::pictures::Colors;
use pipesim::simulation::Source;
use pipesim::{
    CostFile, CostTable, Costs, Delivery, Entry, GivenCosts, Op, Panel, Report, Selection, Setup, TaskGraph, Timeline,
    compare, simulation,
};

/// Timelines of more devices are read and evaluated, but not drawn.
const MOST_DRAWN: u64 = 1 << 10;

/// An input of the target `csv`: a file as PyTorch writes it.
pub fn csv(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match pipesim::schedules::read_csv("seed", "seed.csv", text) {
        Ok(imported) => schedule(&imported.schedule),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// An input of the target `timeline`: a file that `compare` reads.
pub fn timeline(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(timelines) = Timeline::list_from_json(text) else { return };
    assert!(!timelines.is_empty(), "a file of timelines holds one");
    let written = Timeline::list_to_json(&timelines.iter().collect::<Vec<_>>());
    assert_eq!(Timeline::list_from_json(&written).expect("it wrote this itself"), timelines);
    for timeline in &timelines {
        figures(&timeline.metrics());
        (0..timeline.devices.min(64)).for_each(|device| drop(timeline.activations(device)));
    }
    if timelines.iter().map(|timeline| u64::from(timeline.devices)).sum::<u64>() <= MOST_DRAWN {
        drawn(&report_of(timelines));
    }
}

/// Returns the panels of `compare`: each timeline alone, the last prediction with the last measurement.
fn report_of(timelines: Vec<Timeline>) -> Report {
    let panel = |timeline: &Timeline| Panel::new(timeline.clone(), timeline.metrics());
    let last = |source: Source| timelines.iter().rev().find(|timeline| timeline.source == source);
    let error = match (last(Source::Predicted), last(Source::Measured)) {
        (Some(predicted), Some(measured)) => compare(predicted, measured).ok(),
        _ => None,
    };
    let joined = Entry {
        name: "joined".to_string(),
        predicted: last(Source::Predicted).map(panel),
        measured: last(Source::Measured).map(panel),
        error,
        ..Entry::default()
    };
    let alone = |timeline: &Timeline| Entry {
        name: timeline.schedule.clone(),
        measured: Some(panel(timeline)),
        ..Entry::default()
    };
    let provenance = timelines.first().map(|timeline| timeline.provenance.clone()).unwrap_or_default();
    let entries = timelines.iter().map(alone).chain([joined]).collect();
    Report { title: "Seeds".to_string(), provenance, entries, ..Report::default() }
}

/// Checks that the output in every format is valid.
fn drawn(report: &Report) {
    for text in [report.json(), report.trace()] {
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|e| panic!("no JSON: {e}\n{text}"));
    }
    well_formed(&report.svg());
    assert!(report.html().trim_end().ends_with("</html>"));
    assert!(!report.markdown().is_empty() && !report.table(None).is_empty());
    let panels = report.entries.iter().flat_map(Entry::panels).count();
    assert!(report.csv().lines().count() > panels, "a row for each panel and one of names");
    for (width, ascii, colors) in
        [(20, true, Colors::None), (79, true, Colors::Sixteen), (100, false, Colors::True), (160, false, Colors::None)]
    {
        let text = report.terminal(width, ascii, colors);
        assert!(!ascii || text.is_ascii(), "{text:?} is to be ASCII");
        assert!(colors != Colors::None || !text.contains('\x1b'), "{text:?} is to have no colour");
        assert!(!text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\x1b')), "{text:?} controls the terminal");
    }
}

/// Small schedules with one stage per device, with two, and in two directions.
fn graphs() -> Vec<TaskGraph> {
    let graph = |(name, p, m): (&str, u32, u32)| Selection::new(p, m).resolve(name, &Costs::default()).unwrap().graph;
    [("1f1b", 2, 3), ("zb-v", 2, 3), ("dualpipe", 2, 4)].map(graph).into()
}

/// Small schedules, made once per thread.
fn with_graphs(each: impl Fn(&TaskGraph)) {
    thread_local! { static GRAPHS: Vec<TaskGraph> = graphs(); }
    GRAPHS.with(|graphs| graphs.iter().for_each(each));
}

/// An input of the target `costs`: a cost file.
pub fn costs(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(file) = CostFile::from_json(text) else { return };
    let again = CostFile::from_json(&serde_json::to_string(&file).unwrap()).expect("it wrote this itself");
    assert_eq!(again, file);
    with_graphs(|graph| {
        let schedule = graph.schedule();
        for clip in [false, true] {
            let costs = Costs::Measured(Measured { clip, ..Measured::of(file.clone()) });
            let Ok((table, steps)) = costs.table("", &schedule.placement, schedule.microbatches) else { return };
            predicted(graph, &table, steps);
        }
    });
}

/// Checks that a prediction has figures that are numbers, and a timeline that can be read.
fn predicted(graph: &TaskGraph, table: &CostTable, steps: StepCosts) {
    let predicted = simulation::predict(graph, table, &Setup { steps, ..Setup::default() }).unwrap();
    figures(predicted.metrics());
    let timeline = predicted.timeline();
    assert!(timeline.spans.iter().all(|span| span.start_ns <= span.end_ns), "{timeline:?}");
    assert_eq!(timeline.ops().count(), graph.len(), "every op has its span");
}

/// An input of the target `arguments`: lines, each tried as every argument of the command line that is not a plain number; the
/// second is how slow device 0 is.
pub fn arguments(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut slow = Slow::new();
    if let Some(Ok(factor)) = text.lines().nth(1).map(str::parse::<Decimal>)
        && factor.to_f64() > 0.0
    {
        slow.insert(0, factor);
    }
    for line in text.lines() {
        if let Ok(op) = line.parse::<Op>() {
            assert_eq!(op.to_string().parse::<Op>().unwrap(), op);
        }
        if let Ok(delivery) = line.parse::<Delivery>() {
            assert_eq!(delivery.to_string().parse::<Delivery>().unwrap(), delivery);
        }
        if let Ok(decimal) = line.parse::<Decimal>() {
            let expected: f64 = line.parse().unwrap_or_else(|_| panic!("{line:?} is no number"));
            assert!((decimal.to_f64() - expected).abs() <= 1e-14 * expected, "{line:?} was read as {decimal:?}");
        }
        if let Ok(given) = line.parse::<GivenCosts>() {
            with_graphs(|graph| {
                let schedule = graph.schedule();
                let Ok(table) = given.table(&schedule.placement, schedule.microbatches, &slow) else { return };
                predicted(graph, &table, StepCosts::default());
            });
        }
    }
}
