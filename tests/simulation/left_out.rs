//! Errors on published steps that a fit had not seen: the committed files, the intervals made from them, and their coverage.

use crate::support::root;
use pipesim::models::IntervalClass;
use pipesim_validation::fit::LeftOutRatios;
use pipesim_validation::left_out::{
    COVERAGES, Class, EARLY, KINDS, Kind, LeftOutRow, coverage, factors, intervals, left_out_rows, measured,
    percentiles, read_ratios, read_regions,
};
use pipesim_validation::{Row, read};

fn rows(kind: Kind) -> (Vec<Row>, Vec<LeftOutRatios>) {
    let text = std::fs::read_to_string(root().join(kind.table)).unwrap();
    (read(&text).unwrap().0, read_ratios(&root().join(kind.folder)).unwrap())
}

fn left_out(kind: Kind) -> Vec<LeftOutRow> {
    let (rows, ratios) = rows(kind);
    left_out_rows(&root(), &rows, &ratios, &read_regions(&root().join(kind.folder)).unwrap()).unwrap()
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
        let rows = left_out(kind);
        assert!(committed.contains(&intervals(kind, &rows)), "{}", kind.name);
        assert!(published.contains(&percentiles(kind, &rows)), "{}", kind.name);
    }
}

/// Of rows whose group, or whose region, neither the fit nor the interval has seen, about 90 % are inside, and half in the middle. The
/// rows of mixtures in 16 bits are of few groups.
#[test]
fn intervals_cover_nine_of_ten_unseen_rows() {
    for kind in KINDS {
        let rows = left_out(kind);
        for (key, class) in Class::all(kind) {
            let [wide, middle] = COVERAGES.map(|(share, _)| coverage(&rows, class, share));
            println!("{}-{key}: {wide} {middle}", kind.name);
            let least = if kind.name == "dense" { 0.8 } else { 0.6 };
            assert!((least..=0.96).contains(&wide), "{}-{key}: {wide}", kind.name);
            assert!((0.3..=0.6).contains(&middle), "{}-{key}: {middle}", kind.name);
        }
    }
}

/// Early software is a question's own: rows that took three times as long widen no other interval.
#[test]
fn early_software_has_its_own_intervals() {
    let kind = KINDS.into_iter().find(|kind| kind.name == "mixture").unwrap();
    let rows = left_out(kind);
    for (early, usual, is_narrow) in [(Class::EarlyWide, Class::Wide, false), (Class::EarlyNarrow, Class::Narrow, true)]
    {
        let [early, usual] = [early, usual].map(|class| measured(&rows, class));
        let count = read(&std::fs::read_to_string(root().join(kind.table)).unwrap()).unwrap().0;
        let expected =
            count.iter().filter(|row| EARLY.contains(&row.id.as_str()) && row.is_narrow() == is_narrow).count();
        assert_eq!(early.len() - usual.len(), expected);
        let [[_, early], [_, usual]] = [early, usual].map(|rows| factors(&rows, COVERAGES[0].0));
        assert!(early > 1.3 * usual, "{early} {usual}");
        let class = IntervalClass { is_narrow, is_mixture: true, ..IntervalClass::default() };
        assert!((class.factors()[1] - usual).abs() < 1e-3);
        assert!((IntervalClass { is_early: true, ..class }.factors()[1] - early).abs() < 1e-3);
    }
}
