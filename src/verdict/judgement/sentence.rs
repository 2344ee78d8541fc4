//! The verdict in a sentence, and its candidates as a table.

use super::part::Part;
use super::ranking::Candidate;
use super::seconds::time;
use super::verdict::{Outcome, Verdict};
use pipesim_report::{Table, number};

/// Most candidates of the table.
const MOST: usize = 6;
/// Ratio from which a measured time is a multiple of the prediction rather than a percentage above it.
const TIMES: f64 = 3.0;

/// Returns the verdict in a sentence.
pub fn of(verdict: &Verdict) -> String {
    let Verdict { outcome, measured_s, predicted_s, ratio, .. } = verdict;
    let side = if *ratio < 1.0 { "below" } else { "above" };
    let than = match ratio {
        _ if *ratio >= TIMES => format!("{} times", number(*ratio)),
        _ => format!("{:.0} % {side}", 100.0 * (ratio - 1.0).abs()),
    };
    let first = format!("{}{} is {than} the prediction of {}", time(*measured_s), spread(verdict), time(*predicted_s));
    let first = first + &among(verdict, side);
    let said = match outcome {
        Outcome::AsExpected => format!("As expected: {first}."),
        Outcome::Slower => {
            format!("Slower than expected: {first}: something costs about {}.", time(measured_s - predicted_s))
        }
        Outcome::Faster if verdict.speed.is_impossible() => {
            format!(
                "Impossible: {first}, and more than the GPU's peak; check the unit, the number of GPUs and the tokens of a step."
            )
        }
        Outcome::Faster => format!(
            "Faster than expected: {first}; check what was measured: tokens per step, sequence length, precision, recomputation."
        ),
    };
    match verdict.outside.as_slice() {
        [] => said,
        why => format!("{said} This says less than usual: {}.", why.join("; ")),
    }
}

/// Returns the range of several values, and how many lines of a log count.
fn spread(verdict: &Verdict) -> String {
    let within = if verdict.log.is_some() { "90 % within " } else { "" };
    let range = verdict.measured_range_s.map(|[least, most]| format!("{within}{} to {}", time(least), time(most)));
    let steps = verdict.log.as_ref().map(|log| {
        let dropped = log.dropped.first + log.dropped.after_pause + log.dropped.profiled + log.dropped.other_batch;
        format!("median of {} lines of the log, {dropped} dropped", log.steps)
    });
    let all: Vec<String> = steps.into_iter().chain(range).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join("; ")) }
}

/// Returns how many published runs are on the other side of this one.
fn among(verdict: &Verdict, side: &str) -> String {
    let Some(below) = verdict.share_below else { return String::new() };
    let share = if verdict.ratio < 1.0 { 1.0 - below } else { below };
    let share = if share > 0.995 { "all".to_string() } else { format!("{:.0} % of", 100.0 * share) };
    let kind = if verdict.outside.is_empty() { "of this kind" } else { "that were predicted without any like them" };
    format!(" and {side} {share} published runs {kind}")
}

impl Verdict {
    /// Returns the parts of a log's step as a table, the most likely candidates, and what to look at for each, with texts that name settings
    /// in backticks as `worded` writes them; none of what there is not.
    pub fn tables(&self, worded: fn(&str) -> String) -> Vec<Table> {
        let candidates = || self.candidates.iter().take(MOST).enumerate();
        let has_log = self.log.is_some();
        let row = |(at, one): (usize, &Candidate)| {
            let first = [
                format!("{} {}", at + 1, one.what),
                time(one.iteration_s - self.predicted_s),
                format!("{:.0} %", 100.0 * one.explains),
                format!("{:.0} %", 100.0 * one.share),
            ];
            let said = || one.evidence.as_ref().map_or_else(String::new, ToString::to_string);
            first.into_iter().chain(has_log.then(said)).collect()
        };
        let header = ["what could explain it", "costs", "of the gap", "likelihood"];
        let header: Vec<&str> = header.into_iter().chain(has_log.then_some("the log says")).collect();
        let rows: Vec<Vec<String>> = candidates().map(row).collect();
        let next: Vec<Vec<String>> =
            candidates().map(|(at, one)| vec![format!("{} {}", at + 1, worded(&one.next))]).collect();
        let candidates = [Table::new("", &header, rows), Table::new("", &["what to look at"], next)];
        Part::table(&self.parts)
            .into_iter()
            .chain(candidates.into_iter().filter(|table| !table.rows.is_empty()))
            .collect()
    }
}
