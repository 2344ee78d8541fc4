//! Everything that `pipesim plan` says.

use crate::cli::Failure;
use crate::cli::flags::as_flags;
use crate::cli::options::calibrate::with_corrections;
use crate::cli::options::output::json;
use crate::cli::terminal::{table, wrap};
use pipesim_answer::plan::{PlanFlags, PlanReport};
use pipesim_report::Report;
use pipesim_verdict::calibration::{Corrected, FirstTry};
use pipesim_verdict::choice::{MemoryMargin, lines, others};
use pipesim_verdict::cluster::Clusters;
use pipesim_verdict::standing::Standing;
use serde::Serialize;
use serde_json::Value;

/// The plans, and what was asked beside them.
pub(super) struct Shown<'a> {
    pub answer: PlanReport<'a>,
    pub corrected: Vec<Corrected>,
    pub standing: Option<Standing>,
    pub clusters: Option<Clusters>,
    pub margin: Option<MemoryMargin>,
    /// Plans to measure first.
    pub tries: Vec<FirstTry>,
}

impl Shown<'_> {
    /// Returns all of it as JSON.
    pub fn json(&self) -> Result<String, Failure> {
        let mut value = self.answer.json();
        let mut add = |key: &str, part: Option<Value>| part.into_iter().for_each(|part| value[key] = part);
        add("mine", as_value(self.standing.as_ref())?);
        add("sizes", as_value(self.clusters.as_ref())?);
        add("memory_margin", as_value(self.margin.as_ref())?);
        if !self.tries.is_empty() {
            value["measure_first"] = serde_json::to_value(&self.tries).map_err(anyhow::Error::from)?;
        }
        with_corrections(json(&value)?, "plans", &self.corrected)
    }

    /// Returns the answer for the terminal: a few lines, options to paste, and the tables if they are asked for.
    pub fn terminal(&self, report: &Report, tables: bool) -> String {
        let answer = &self.answer;
        let standing = self.standing.iter().map(|standing| standing.sentence.clone());
        let of_sizes = self.clusters.iter().map(|clusters| vec![clusters.sentence.clone()]);
        let mut text = String::new();
        let rows = [lines(answer, self.margin.as_ref(), &self.tries), others(answer)];
        for part in of_sizes.chain(standing.map(|sentence| vec![sentence])).chain(rows) {
            text += &as_flags(wrap(&part, 0));
            text.push('\n');
        }
        if tables {
            text += &table(report);
            for sentence in answer.why.iter().flatten() {
                text += &format!("\n{sentence}\n");
            }
            text += &self.to_measure();
        } else if let Some(first) = &answer.first {
            text += &table(&Report { extra_tables: vec![first.clone()], ..Report::default() });
        }
        text.trim_end().to_string() + "\n" + &self.pasted(tables)
    }

    /// Returns the plans to measure first with their commands.
    fn to_measure(&self) -> String {
        let Some(last) = self.tries.last() else { return String::new() };
        let saving = format!("{:.1} %", 100.0 * last.expected_saving);
        let mut text = format!(
            "\nTo measure first: choosing again after these (`--calibrate runs.csv`) is expected to save {saving} of the step.\n"
        );
        let target = self.answer.targets().unwrap_or_default().into_iter().next();
        for FirstTry { plan, .. } in &self.tries {
            let found =
                target.and_then(|target| self.answer.flags(self.answer.plans.plans.get(plan - 1)?, target).ok());
            text += &found.map_or_else(String::new, |flags| format!("plan {plan}: {}\n", flags.text));
        }
        text
    }

    /// Returns plan 1 as options of the programs that it is written for first.
    fn pasted(&self, tables: bool) -> String {
        let Some(best) = self.answer.plans.plans.first() else { return String::new() };
        let mut text = String::new();
        for target in self.answer.targets().unwrap_or_default() {
            match self.answer.flags(best, target) {
                Ok(PlanFlags { text: flags, notes }) => {
                    text += &format!("\nPlan 1 for {}:\n{flags}\n", target.title());
                    notes.iter().for_each(|note| text += &format!("note: {note}\n"));
                }
                Err(why) => text += &format!("\nPlan 1 for {}: {why}\n", target.title()),
            }
        }
        if !tables {
            let plans = self.answer.plans.plans.len();
            text += &format!(
                "\n--tables shows all {plans} plans, what their time goes to, what was ruled out, and what would beat plan 1.\n"
            );
        }
        text
    }
}

/// Returns a part of the JSON, its texts with flags.
fn as_value(part: Option<&impl Serialize>) -> Result<Option<Value>, Failure> {
    let text = |part| serde_json::to_string(part).map(as_flags);
    let value = part.map(|part| text(part).and_then(|text| serde_json::from_str(&text)));
    Ok(value.transpose().map_err(anyhow::Error::from)?)
}
