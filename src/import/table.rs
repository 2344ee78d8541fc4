//! A table of op times: `rank,stage,kind,microbatch,start_us,end_us`, with an optional column `step`.

use super::error::ImportError;
use super::rank::{RankOp, RankRun, RankStep, Stages};
use pipesim_schedule::csv::Cells;
use pipesim_schedule::op::{Kind, Op};
use std::collections::BTreeMap;

const COLUMNS: [&str; 6] = ["rank", "stage", "kind", "microbatch", "start_us", "end_us"];

/// Reads a table; all times are on one clock.
///
/// # Errors
/// A missing column or a wrong cell; the text names the line.
pub fn read(file: &str, text: &str) -> Result<Vec<RankRun>, ImportError> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for cell in Cells::new(text) {
        rows.resize_with(cell.row + 1, Vec::new);
        let text = cell.text.ok_or_else(|| fault(file, cell.row, "a quote that is closed", "none", "close it"))?;
        rows[cell.row].push(text.trim().to_string());
    }
    let (header, rows) = rows.split_first().ok_or_else(|| fault(file, 0, &COLUMNS.join(","), "nothing", "write it"))?;
    let column = |name: &str| header.iter().position(|found| found.eq_ignore_ascii_case(name));
    let mut columns = [0; COLUMNS.len()];
    for (at, name) in columns.iter_mut().zip(COLUMNS) {
        *at = column(name).ok_or_else(|| {
            fault(
                file,
                0,
                &format!("the columns {}", COLUMNS.join(",")),
                &format!("no {name}"),
                "name the columns in line 1",
            )
        })?;
    }
    let mut steps: BTreeMap<(u32, u64), Vec<RankOp>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| row.iter().any(|cell| !cell.is_empty())) {
        let line = number + 1;
        let cell = |at: usize| row.get(at).map(String::as_str).unwrap_or_default();
        let whole = |at: usize, most: u32| {
            let found = cell(columns[at]).parse::<u32>().ok().filter(|&found| found <= most);
            found.ok_or_else(|| {
                fault(file, line, &format!("{} from 0 to {most}", COLUMNS[at]), cell(columns[at]), "correct it")
            })
        };
        let time = |at: usize| {
            let found = cell(columns[at]).parse::<f64>().ok().filter(|us| us.abs() < 4e15);
            let found = found.map(|us| (us * 1e3).round() as i64);
            found.ok_or_else(|| fault(file, line, &format!("{} in us", COLUMNS[at]), cell(columns[at]), "correct it"))
        };
        let mut letters = cell(columns[2]).chars();
        let kind = letters.next().and_then(Kind::from_letter).filter(|_| letters.next().is_none());
        let kind = kind.ok_or_else(|| fault(file, line, "a kind: F, I, W or B", cell(columns[2]), "correct it"))?;
        let (rank, stage, microbatch) = (whole(0, 65_535)?, whole(1, 1 << 20)?, whole(3, u32::MAX - 1)?);
        let (start, end) = (time(4)?, time(5)?);
        if end < start {
            return Err(fault(file, line, "end_us at start_us or later", cell(columns[5]), "correct it"));
        }
        let step = match column("step").map(cell) {
            None => 0,
            Some(text) => text.parse().map_err(|_| fault(file, line, "a step from 0", text, "correct it"))?,
        };
        steps.entry((rank, step)).or_default().push(RankOp::new(Op::new(kind, stage, microbatch), start, end));
    }
    let mut runs: BTreeMap<u32, RankRun> = BTreeMap::new();
    for ((rank, number), ops) in steps {
        let run = runs.entry(rank).or_insert_with(|| RankRun::of_table(file, rank));
        let mut step = RankStep { number, ops, ..RankStep::default() };
        run.warnings.extend(step.check(file, rank));
        run.steps.push(step);
    }
    Ok(runs.into_values().collect())
}

impl RankRun {
    /// Returns the run of a rank whose ops are read from `file` as they are.
    pub(super) fn of_table(file: &str, rank: u32) -> RankRun {
        RankRun {
            file: file.to_string(),
            rank: Some(rank),
            world_size: None,
            groups: Vec::new(),
            version: None,
            has_step_ops: false,
            stages: Stages::Global,
            is_counted: false,
            is_alone: false,
            steps: Vec::new(),
            first: 0,
            warnings: Vec::new(),
        }
    }
}

fn fault(file: &str, row: usize, expected: &str, found: &str, remedy: &str) -> ImportError {
    let found = if found.is_empty() { "nothing" } else { found };
    ImportError::new(format!("{file}, line {}: expected {expected}, found {found}; {remedy}", row + 1))
}
