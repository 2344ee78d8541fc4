//! The verdict in a sentence, and its candidates as a table.

use super::{Outcome, Verdict};
use pipesim_report::{Table, number, percent, quantity};

/// Most candidates of the table.
const MOST: usize = 6;

fn time(seconds: f64) -> String {
    if seconds < 1.0 { quantity(1e3 * seconds, "ms") } else { format!("{} s", number(seconds)) }
}

/// Returns the verdict in a sentence.
pub fn of(verdict: &Verdict) -> String {
    let Verdict { outcome, measured_s, predicted_s, ratio, share_below, .. } = verdict;
    let off = percent((ratio - 1.0).abs());
    let side = if *ratio < 1.0 { "below" } else { "above" };
    let first = format!("{} is {off} {side} the prediction of {}", time(*measured_s), time(*predicted_s));
    let share = |share: f64| format!("{:.0} % of published runs of this kind", 100.0 * share);
    let among = |above: bool| {
        let found = share_below.map(|below| if above { below } else { 1.0 - below });
        found.map_or_else(String::new, |found| format!(" and {side} {}", share(found)))
    };
    match outcome {
        Outcome::AsExpected => {
            format!("As expected: {first}{}, inside the interval of 90 % of them.", among(*ratio >= 1.0))
        }
        Outcome::Slower => {
            format!(
                "Slower than expected: {first}{}: something costs about {}.",
                among(true),
                time(measured_s - predicted_s)
            )
        }
        Outcome::Faster => format!(
            "Faster than predicted: {first}{}: check what was measured (tokens per step, sequence length, precision, recomputation).",
            among(false)
        ),
    }
}

impl Verdict {
    /// Returns the most likely candidates as a table, with texts that name settings in backticks as `worded` writes them; `None` if there
    /// are none.
    pub fn table(&self, worded: fn(&str) -> String) -> Option<Table> {
        let row = |one: &super::Candidate| {
            let change = one
                .file
                .as_ref()
                .map_or_else(String::new, |file| format!(" with {}", file.trim_end().replace('\n', ", ")));
            vec![
                one.what.clone(),
                worded(&format!("{}{change}", one.change)),
                time(one.iteration_s),
                percent(one.explains),
                percent(one.share),
                one.evidence.as_ref().map_or_else(String::new, |found| found.to_string()),
                worded(&one.next),
            ]
        };
        let header =
            ["what would explain it", "as a change", "step then", "explains", "likelihood", "the log says", "look at"];
        let rows: Vec<Vec<String>> = self.candidates.iter().take(MOST).map(row).collect();
        let caption = "What would explain the difference, each predicted; the likelihood is how often it is the reason, times how \
                       well its time agrees with the measured one";
        (!rows.is_empty()).then(|| Table::new(caption, &header, rows))
    }
}
