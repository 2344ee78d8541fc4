//! Nsight Systems' SQLite export: ranges, and the GPU work that was launched within them.

use super::error::ImportError;
use super::event::{Class, Fields};
use super::label::LabelRules;
use super::trace::Trace;
use rusqlite::{Connection, OpenFlags, Row};
use std::path::Path;

/// Reads the NVTX ranges, launches and kernels of a report; its times count from 1970.
///
/// # Errors
/// It cannot be read, or has no NVTX ranges.
pub fn read(path: &Path, rules: &LabelRules) -> Result<Trace, ImportError> {
    let shown = path.display();
    let failed = |error: rusqlite::Error| ImportError::new(format!("cannot read {shown}: {error}; export it again"));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let report = Connection::open_with_flags(path, flags).map_err(failed)?;
    if !has_columns(&report, "NVTX_EVENTS", &["start", "end", "text", "globalTid"]) {
        return Err(ImportError::new(format!(
            "expected a report with NVTX ranges, found no table NVTX_EVENTS in {shown}; record with `nsys profile --trace cuda,nvtx`"
        )));
    }
    let mut trace = Trace { has_events: true, is_nsight: true, ..Trace::default() };
    let start = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1";
    trace.base_ns = report.query_row(start, [], |row| row.get(0)).unwrap_or_default();
    // Old reports have all names in `text`.
    let names = has_columns(&report, "NVTX_EVENTS", &["textId"]) && has_columns(&report, "StringIds", &["id", "value"]);
    let name = if names { "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))" } else { "text" };
    let mut add = |class: Option<Class>, row: &Row<'_>| {
        let number = |at: &str| row.get::<_, Option<i64>>(at).ok().flatten();
        if let Some(class) = class {
            trace.add(class, number("thread"), number("start"), number("end"));
        }
    };
    let ranges = format!("SELECT start, end, globalTid AS thread, {name} AS name FROM NVTX_EVENTS WHERE end NOT NULL");
    each(&report, &ranges, |row| {
        let label = row.get::<_, String>("name").ok().and_then(|name| rules.label(&name));
        add(label.map(Class::Label), row);
    })
    .map_err(failed)?;
    if has_columns(&report, "CUPTI_ACTIVITY_KIND_RUNTIME", &["start", "end", "globalTid", "correlationId"]) {
        let launches = "SELECT start, end, globalTid AS thread, correlationId AS id FROM CUPTI_ACTIVITY_KIND_RUNTIME";
        each(&report, launches, |row| add(id(row).map(Class::Launch), row)).map_err(failed)?;
    }
    let columns = ["start", "end", "globalPid", "correlationId", "shortName"];
    if has_columns(&report, "CUPTI_ACTIVITY_KIND_KERNEL", &columns) {
        let kernels = "SELECT start, end, globalPid AS thread, correlationId AS id, (SELECT value FROM StringIds WHERE id = shortName) \
             AS name FROM CUPTI_ACTIVITY_KIND_KERNEL";
        each(&report, kernels, |row| {
            let name = row.get::<_, String>("name").unwrap_or_default();
            let fields = Fields { category: "kernel", name: &name, correlation: id(row), ..Fields::default() };
            add(Class::of(&fields, rules), row);
        })
        .map_err(failed)?;
    }
    trace.finish();
    Ok(trace)
}

/// Returns the correlation of a launch and its work, which is unique in its process only.
fn id(row: &Row<'_>) -> Option<u64> {
    row.get::<_, i64>("id").ok().map(|id| id as u64)
}

fn each(report: &Connection, query: &str, mut of_row: impl FnMut(&Row<'_>)) -> rusqlite::Result<()> {
    let mut statement = report.prepare(query)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        of_row(row);
    }
    Ok(())
}

fn has_columns(report: &Connection, table: &str, columns: &[&str]) -> bool {
    let count = |column: &&str| {
        let query = "SELECT COUNT(*) FROM pragma_table_info(?1) WHERE name = ?2";
        report.query_row(query, [table, column], |row| row.get::<_, i64>(0)).unwrap_or(0)
    };
    columns.iter().all(|column| count(column) > 0)
}
