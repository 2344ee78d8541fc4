//! Errors on published steps that a fit had not seen: the committed file, the intervals made from it, and their coverage.

use crate::support::root;
use pipesim::costs::Estimate;
use pipesim::models::IntervalClass;
use pipesim::{ParallelConfig, Precision};
use pipesim_validation::fit::LeftOutRatios;
use pipesim_validation::left_out::{Class, KINDS, Kind, factors, intervals, measured, percentiles, read_ratios};
use pipesim_validation::{Row, read};
use std::collections::BTreeSet;

fn rows(kind: Kind) -> (Vec<Row>, Vec<LeftOutRatios>) {
    let text = std::fs::read_to_string(root().join(kind.table)).unwrap();
    (read(&text).unwrap().0, read_ratios(&root().join(kind.folder)).unwrap())
}

/// The intervals in the program are those of the committed ratios, one per row of the table whose order is not searched.
#[test]
fn intervals_follow_from_left_out_rows() {
    let committed = std::fs::read_to_string(root().join("hardware/intervals.toml")).unwrap();
    let published = std::fs::read_to_string(root().join("hardware/published.toml")).unwrap();
    for kind in KINDS {
        let (rows, ratios) = rows(kind);
        let fixed = rows.iter().filter(|row| !["zb-1p", "zb-2p", "v-half"].contains(&row.schedule()));
        assert_eq!(
            fixed.map(|row| &row.id).collect::<Vec<_>>(),
            ratios.iter().map(|ratios| &ratios.id).collect::<Vec<_>>()
        );
        assert!(committed.contains(&intervals(kind, &rows, &ratios)), "{}", kind.name);
        assert!(published.contains(&percentiles(kind, &rows, &ratios)), "{}", kind.name);
    }
}

/// Of rows whose group, or whose machine, neither the fit nor the interval has seen, about 90 % are inside.
#[test]
fn intervals_cover_nine_of_ten_unseen_rows() {
    for (kind, (key, class)) in KINDS.into_iter().flat_map(|kind| Class::ALL.map(|class| (kind, class))) {
        let (rows, ratios) = rows(kind);
        let name = |row: &Row| if class == Class::OtherMachine { row.gpu.clone() } else { row.group.clone() };
        let (mut inside, mut all) = (0.0, 0.0);
        for left_out in rows.iter().map(name).collect::<BTreeSet<String>>() {
            let (seen, unseen): (Vec<Row>, Vec<Row>) = rows.iter().cloned().partition(|row| name(row) != left_out);
            let [low, high] = factors(&measured(&seen, &ratios, class));
            for (time, weight) in measured(&unseen, &ratios, class) {
                all += weight;
                inside += if (low..=high).contains(&time) { weight } else { 0.0 };
            }
        }
        let coverage = inside / all;
        println!("{}-{key}: {:.1} %", kind.name, 100.0 * coverage);
        assert!((0.85..=0.95).contains(&coverage), "{}-{key}: {coverage}", kind.name);
    }
}

/// An interval contains the prediction and is wider for machines that no fit has seen, and for their changes.
#[test]
fn unseen_machines_have_wider_intervals() {
    let width = |hardware: &str, precision: Precision| {
        let [low, high] = IntervalClass { is_narrow: precision.is_narrow(), is_mixture: false, hardware }.factors();
        assert!(low < 1.0 && high > 1.0, "{hardware}");
        high - low
    };
    for precision in [Precision::Bf16, Precision::Fp8] {
        let seen = width("h100-sxm", precision);
        for other in ["b200", "mi300x", "mine.toml"] {
            assert!(width(other, precision) > seen, "{other} {precision}");
        }
    }
    let layout = ParallelConfig { pp: 4, micro: 8, ..ParallelConfig::default() };
    let costs = pipesim::models::model_costs("llama-3-8b", "h100-sxm", layout).unwrap();
    let estimate = costs.estimate("1f1b").unwrap();
    let [low, high] = estimate.iteration_interval_s;
    assert!(low < estimate.iteration_s && estimate.iteration_s < high);
}

/// The ends of intervals that the book states for mixtures without the rows of early software.
#[test]
fn intervals_without_early_software_are_what_the_book_says() {
    let kind = KINDS.into_iter().find(|kind| kind.name == "mixture").unwrap();
    let (rows, ratios) = rows(kind);
    let dgxc = ["057", "058", "059"].map(|number| format!("moe-dgxc-benchmarking-{number}"));
    let bridge = ["102", "123"].map(|number| format!("moe-megatron-bridge-{number}"));
    let recent: Vec<Row> =
        rows.iter().filter(|row| !dgxc.contains(&row.id) && !bridge.contains(&row.id)).cloned().collect();
    assert_eq!(rows.len() - recent.len(), 5);
    let page = std::fs::read_to_string(root().join("docs/src/hardware.md")).unwrap();
    for (key, class) in Class::ALL {
        let [all, without] = [&rows, &recent].map(|rows| factors(&measured(rows, &ratios, class))[1]);
        let stated = [format!("{without:.2}"), format!("{all:.2}")];
        assert!(stated.iter().all(|text| page.contains(text.as_str())), "{key}: {stated:?}");
    }
}
