//! Plots: what a report's figures become, in every format.

use crate::report::sample;
use crate::xml::well_formed;
use pipesim::Report;
use pipesim::pictures::{Chart, ComparisonPoint, LeftOut, Plot, PlotAxis, Plots, Series, SeriesStyle};

/// Predictions of four schedules at each p and m.
fn sweep(devices: &[u32], microbatches: &[u32]) -> Report {
    let mut all = Report { title: "A sweep".into(), ..Report::default() };
    for &p in devices {
        for &m in microbatches {
            for (number, mut entry) in sample(p, m, 0.0, false).entries.into_iter().enumerate() {
                let schedule = entry.name.clone();
                entry.point = Some(ComparisonPoint {
                    schedule,
                    number,
                    devices: p,
                    microbatches: m,
                    ..ComparisonPoint::default()
                });
                all.entries.push(entry);
            }
        }
    }
    all
}

fn charts(plots: &Plots) -> Vec<&Chart> {
    plots.plots.iter().filter_map(|plot| if let Plot::Chart(chart) = plot { Some(chart) } else { None }).collect()
}

#[test]
fn a_sweep_over_m_is_lines_and_over_both_heat_maps() {
    let plots = sweep(&[4], &[4, 8, 16]).plots();
    let bubble = charts(&plots)[0];
    assert_eq!(bubble.series.len(), 4);
    let line = bubble.series.iter().find(|series| series.name == "1f1b").unwrap();
    // 1F1B's bubble is (p - 1) / (m + p - 1).
    for (m, percent) in &line.points {
        assert!((percent - 300.0 / (m + 3.0)).abs() < 1e-9, "{m}: {percent}");
    }
    let plots = sweep(&[2, 4], &[4, 8]).plots();
    let maps = plots.plots.iter().filter(|plot| matches!(plot, Plot::HeatMap(map) if map.rows == ["p = 2", "p = 4"]));
    assert_eq!(maps.count(), 4);
    let Plot::HeatMap(zb_v) = &plots.plots[3] else { panic!("no heat map") };
    assert!(zb_v.cells.iter().flatten().all(|cell| cell.as_ref().unwrap().1.ends_with('*')), "{zb_v:?}");
    assert!(sweep(&[2, 4], &[4]).is_plotted() && !sample(4, 8, 0.0, false).is_plotted());
    let mut windowed = sweep(&[2, 4], &[4]);
    windowed.look.window = Some((1.0, 2.0));
    assert!(!windowed.is_plotted(), "an option about timelines draws timelines");
}

#[test]
fn a_map_shows_where_another_schedule_becomes_the_shortest() {
    let mut report = sweep(&[2, 4], &[4, 8]);
    let shortest = report.entries.iter().map(|entry| entry.predicted.as_ref().unwrap().metrics.makespan);
    let half = shortest.fold(f64::INFINITY, f64::min) / 2.0;
    let is_first = |at: &ComparisonPoint| at.schedule == "gpipe" && (at.devices, at.microbatches) == (4, 8);
    let entry = report.entries.iter_mut().find(|entry| entry.point.as_ref().is_some_and(is_first)).unwrap();
    entry.predicted.as_mut().unwrap().metrics.makespan = half;
    let Plot::HeatMap(map) = &report.plots().plots[0] else { panic!("no map") };
    let names = |row: &[Option<(f64, String)>]| -> Vec<String> {
        row.iter().map(|cell| map.series[cell.as_ref().unwrap().0 as usize].clone()).collect()
    };
    assert_eq!(map.cells.iter().map(|row| names(row)).collect::<Vec<_>>(), [["zb-v", "zb-v"], ["zb-v", "gpipe"]]);
    assert!(report.plots().svg().unwrap().contains("Shortest makespan"));
}

#[test]
fn a_map_says_why_cells_are_empty() {
    let mut report = sweep(&[2, 4], &[4, 8]);
    for (entry, why) in
        report.entries.iter_mut().filter(|entry| entry.name == "zb-v").zip(["needs m >= 9", "another reason"])
    {
        entry.predicted = None;
        let point = entry.point.as_mut().unwrap();
        point.left_out = Some(LeftOut {
            what: "none",
            why: format!("zb-v does not exist for p = {}, m = {}: {why}", point.devices, point.microbatches),
        });
    }
    let told = "–: zb-v at p = 2, m = 4: needs m >= 9; another cell is empty, too";
    assert!(report.plots().notes.iter().any(|note| note == told), "{:?}", report.plots().notes);
    assert!(sweep(&[2, 4], &[4, 8]).plots().notes.iter().all(|note| !note.contains('–')));
}

#[test]
fn the_front_holds_what_nothing_beats() {
    let plots = sample(4, 8, 0.0, false).plots();
    let chart = *charts(&plots).iter().find(|chart| chart.title.starts_with("Time against memory")).unwrap();
    let (front, schedules) = chart.series.split_last().unwrap();
    assert_eq!(front.style, SeriesStyle::Steps);
    let at: Vec<(f64, f64)> = schedules.iter().map(|series| series.points[0]).collect();
    for point in &front.points[1..front.points.len() - 1] {
        assert!(at.contains(point));
        assert!(at.iter().all(|other| other.0 > point.0 || other.1 > point.1 || other == point));
    }
}

#[test]
fn measured_runs_have_errors_over_m_and_step_times() {
    let mut report = sample(4, 8, 0.2, true);
    report.entries.extend(sample(4, 4, 0.2, true).entries);
    report.entries[0].step_ms = (0..50).map(|step| 30.0 + f64::from(step * step % 7)).collect();
    let plots = report.plots();
    let error = *charts(&plots).iter().find(|chart| chart.title.starts_with("Error")).unwrap();
    assert!(error.series.len() == 4 && error.series.iter().all(|series| series.points.len() == 2));
    let steps = *charts(&plots).iter().find(|chart| chart.title == "Step times").unwrap();
    let counted: f64 = steps.series[0].points.iter().map(|point| point.1).sum();
    assert_eq!(counted, 50.0);
}

#[test]
fn every_format_draws_every_plot() {
    let hostile = "</text><!-- \"a\" & 'b' ]]>\u{1b}[31m\u{202e}";
    let odd = |points: &[(f64, f64)], log: bool| {
        let axis = || PlotAxis { label: hostile.into(), log, ..PlotAxis::default() };
        let series = [SeriesStyle::Line, SeriesStyle::Dots, SeriesStyle::Steps].map(|style| Series {
            name: hostile.into(),
            style,
            points: points.to_vec(),
        });
        let guides = vec![[(1.0, 1.0), (2.0, 2.0)]];
        Plot::Chart(Chart { title: hostile.into(), x: axis(), y: axis(), series: series.into(), guides })
    };
    let odd = Plots {
        title: hostile.into(),
        plots: vec![
            odd(&[], false),
            odd(&[(0.0, 0.0)], true),
            odd(&[(1e-9, 1e9), (1e9, 1e-9)], true),
            odd(&[(f64::NAN, 1.0), (f64::MAX, f64::MIN_POSITIVE), (3.0, 3.0)], false),
        ],
        ..Plots::default()
    };
    for plots in [sweep(&[4], &[4, 8]).plots(), sweep(&[2, 4], &[4, 8]).plots(), Plots::default(), odd] {
        let svg = plots.svg().unwrap();
        well_formed(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains('\u{202e}'), "{svg}");
        assert!(plots.png().unwrap().starts_with(b"\x89PNG"));
        assert!(plots.pdf().unwrap().starts_with(b"%PDF"));
        assert!(plots.svg().unwrap() == svg && plots.png().unwrap() == plots.png().unwrap());
        assert!(plots.pdf().unwrap() == plots.pdf().unwrap());
    }
}
