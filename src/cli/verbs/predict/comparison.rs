//! A report of predictions as a comparison.

use crate::cli::flags::as_flags;
use pipesim_answer::question::Case;
use pipesim_report::{ComparisonPoint, Entry, LeftOut, Report};

/// Returns the position of a schedule in a comparison.
pub fn point(case: &Case) -> ComparisonPoint {
    let left_out = case.left_out.as_ref().map(|left_out| LeftOut { what: left_out.what, why: as_flags(&left_out.why) });
    ComparisonPoint {
        schedule: case.schedule.clone(),
        number: case.number,
        devices: case.devices,
        microbatches: case.microbatches,
        above_cap: case.above_cap,
        left_out,
    }
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
