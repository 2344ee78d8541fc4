//! Who is best in a comparison: table, JSON, files, maps and their text agree with trying every rival, and do so for long lists.

use crate::report::sample;
use crate::support::Dice;
use pipesim::pictures::{ComparisonPoint, LeftOut, Plot};
use pipesim::{Entry, Report};
use std::collections::BTreeMap;

type Place = (u32, u32);

/// A comparison by chance: few different makespans, so that ties are frequent; some entries are above a cap or left out.
fn random(dice: &mut Dice, devices: &[u32], microbatches: &[u32], schedules: usize) -> Report {
    let entry = sample(2, 4, 0.0, false).entries.remove(0);
    let mut report = Report::default();
    for &p in devices {
        for &m in microbatches {
            for number in 0..schedules {
                let mut entry = entry.clone();
                let panel = entry.predicted.as_mut().unwrap();
                (panel.timeline.devices, panel.timeline.microbatches) = (p, m);
                panel.metrics.makespan = (20 + dice.below(4)) as f64;
                panel.metrics.bubble = dice.below(5) as f64 / 8.0;
                let left_out = (dice.below(6) == 0).then(|| LeftOut { what: "none", why: "it does not exist".into() });
                if left_out.is_some() {
                    entry.predicted = None;
                }
                let above_cap = (left_out.is_none() && dice.below(3) == 0).then_some(4.0);
                let schedule = format!("s{number}");
                entry.name = format!("{schedule} p={p} m={m}");
                entry.point =
                    Some(ComparisonPoint { schedule, number, devices: p, microbatches: m, above_cap, left_out });
                report.entries.push(entry);
            }
        }
    }
    report
}

fn point(entry: &Entry) -> &ComparisonPoint {
    entry.point.as_ref().unwrap()
}

/// The makespan of an entry that competes: predicted, and within the cap.
fn competing(entry: &Entry) -> Option<f64> {
    entry.predicted.as_ref().filter(|_| point(entry).above_cap.is_none()).map(|panel| panel.metrics.makespan)
}

/// By place: the names of the shortest within the cap, and the share by which the next of all others is longer.
fn shortest(report: &Report) -> BTreeMap<Place, (Vec<String>, Option<f64>)> {
    let mut found = BTreeMap::new();
    for entry in &report.entries {
        let place = (point(entry).devices, point(entry).microbatches);
        let rivals: Vec<(&Entry, f64)> = report
            .entries
            .iter()
            .filter(|other| (point(other).devices, point(other).microbatches) == place)
            .filter_map(|other| Some((other, competing(other)?)))
            .collect();
        let least = rivals.iter().map(|rival| rival.1).fold(f64::INFINITY, f64::min);
        let names = rivals.iter().filter(|rival| rival.1 == least).map(|rival| point(rival.0).schedule.clone());
        let mut sorted: Vec<f64> = rivals.iter().map(|rival| rival.1).collect();
        sorted.sort_by(f64::total_cmp);
        found.insert(place, (names.collect(), sorted.get(1).map(|second| 1.0 - least / second)));
    }
    found
}

#[test]
fn table_map_and_files_name_the_same_winners() {
    let mut dice = Dice(41);
    let (mut stars, mut maps) = (0, 0);
    for _ in 0..250 {
        let devices: Vec<u32> = (0..2 + dice.below(2) as u32).map(|i| 2 << i).collect();
        let microbatches: Vec<u32> = (0..2 + dice.below(3) as u32).map(|i| 4 << i).collect();
        let schedules = 2 + dice.below(3);
        let report = random(&mut dice, &devices, &microbatches, schedules);
        let expected = shortest(&report);
        let is_star = |entry: &Entry| {
            let place = (point(entry).devices, point(entry).microbatches);
            let rivals = report
                .entries
                .iter()
                .filter(|other| (point(other).devices, point(other).microbatches) == place)
                .filter_map(competing);
            let longest = rivals.fold(0.0, f64::max);
            competing(entry).is_some_and(|own| expected[&place].0.contains(&point(entry).schedule) && own < longest)
        };
        let table = &report.comparison()[0];
        let column = table.header.iter().position(|name| name.starts_with("makespan")).unwrap();
        for ((entry, row), best) in report.entries.iter().zip(&table.rows).zip(report.best()) {
            let star = is_star(entry);
            stars += usize::from(star);
            assert_eq!(row[column].starts_with('*'), star, "{row:?}");
            assert_eq!(best.contains(&"makespan"), star, "{best:?}");
        }
        for plot in report.plots().plots {
            let Plot::HeatMap(map) = plot else { continue };
            for (p, row) in devices.iter().zip(&map.cells) {
                for (m, cell) in microbatches.iter().zip(row) {
                    let (names, lead) = &expected[&(*p, *m)];
                    if map.series.is_empty() {
                        let schedule = map.title.split(':').next().unwrap();
                        let is_it = |entry: &&Entry| {
                            (point(entry).devices, point(entry).microbatches) == (*p, *m)
                                && point(entry).schedule == schedule
                        };
                        let entry = report.entries.iter().find(is_it).unwrap();
                        assert_eq!(cell.is_some(), entry.predicted.is_some());
                        let marked = cell.as_ref().is_some_and(|cell| cell.1.ends_with('*'));
                        assert_eq!(marked, is_star(entry), "{schedule} {p} {m}");
                    } else {
                        maps += 1;
                        let winner = cell.as_ref().map(|cell| &map.series[cell.0 as usize]);
                        assert_eq!(winner, names.first(), "{p} {m}: {cell:?}");
                        let shown = lead.map_or(String::new(), |lead| format!("{:.1} %", 100.0 * lead));
                        assert!(cell.as_ref().is_none_or(|cell| cell.1 == shown), "{cell:?} {shown}");
                    }
                }
            }
        }
        let told = report.changes().unwrap();
        for name in (0..schedules).map(|number| format!("s{number}")) {
            let wins = expected.values().any(|(names, _)| names.contains(&name));
            assert_eq!(told.contains(&name), wins, "{told}");
        }
    }
    assert!(stars > 1000 && maps > 500, "{stars} {maps}");
}

/// If each row looked at all others, these would be 10^10 looks; at all others for each of them, 10^15.
#[test]
fn a_hundred_thousand_rows_are_compared() {
    let mut dice = Dice(42);
    let one = sample(2, 4, 0.0, false).entries.remove(0);
    let numbers: Vec<u32> = (1..=50_000).collect();
    let mut report = Report::default();
    for &m in &numbers {
        for number in 0..2 {
            let mut panel = one.predicted.clone().unwrap();
            panel.timeline.spans.clear();
            panel.metrics.makespan = (20 + dice.below(4)) as f64;
            let schedule = format!("s{number}");
            let point = ComparisonPoint { schedule, number, devices: 2, microbatches: m, ..ComparisonPoint::default() };
            report.entries.push(Entry { point: Some(point), predicted: Some(panel), ..Entry::default() });
        }
    }
    let best = report.best();
    let wins = best.iter().filter(|best| best.contains(&"makespan")).count();
    let ties = report.entries.chunks(2).filter(|pair| competing(&pair[0]) == competing(&pair[1])).count();
    assert_eq!(wins + ties, numbers.len());
    let table = report.comparison().remove(0);
    assert_eq!(table.rows.len(), report.entries.len());
    assert_eq!(table.rows.iter().filter(|row| row[3].starts_with('*')).count(), wins);
}
