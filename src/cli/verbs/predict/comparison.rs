//! A report of predictions as a comparison.

use crate::cli::flags::as_flags;
use pipesim_answer::question::Case;
use pipesim_report::{ComparisonPoint, Entry, Report};

/// Returns the position of a schedule in a comparison.
pub fn point(case: &Case) -> ComparisonPoint {
    let mut point = case.point.clone();
    point.left_out.iter_mut().for_each(|left_out| left_out.why = as_flags(&left_out.why));
    point
}

/// Makes a comparison of a report whose entries are the schedules that are not left out, in their order.
pub fn compared(report: Report, cases: &[Case], several: bool) -> Report {
    let mut extra_tables = report.extra_tables;
    // Jitter has a row per prediction.
    for table in &mut extra_tables {
        let there = cases.iter().filter(|case| case.exists());
        table.rows.iter_mut().zip(there).for_each(|(row, case)| row[0] = case.label(several));
    }
    let mut there = report.entries.into_iter();
    let entry = |case: &Case| {
        let found = if case.exists() { there.next() } else { None };
        Entry { name: case.label(several), point: Some(point(case)), ..found.unwrap_or_default() }
    };
    Report { entries: cases.iter().map(entry).collect(), extra_tables, ..report }
}
