//! A changed question or machine, and its prediction: what `predict` says of the command with the change.

use pipesim_answer::question::{Question, Silent};
use pipesim_answer::resolve::{Error, Host, usage};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_cost::analytic::{Analytic, Platform};
use serde_json::Value;

/// What is asked about one step, with the files that it names read.
pub struct Asked<'a> {
    /// The question, of one schedule on one layout.
    pub question: &'a Question,
    /// Its schedule.
    pub name: &'a str,
    /// Its model on hardware.
    pub analytic: Analytic,
    /// Who reads files.
    pub host: &'static dyn Host,
}

/// Numbers of a hardware or stack file, each with its key.
pub type Numbers = Vec<(&'static str, f64)>;

/// What is different.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Settings.
    Question(Box<Question>),
    /// Numbers of the hardware.
    Hardware(Numbers),
    /// Numbers of the training software.
    Stack(Numbers),
}

impl Asked<'_> {
    /// Reads what a question names.
    ///
    /// # Errors
    /// A question that is not about one layout of a model on hardware.
    pub fn new<'a>(question: &'a Question, name: &'a str, host: &'static dyn Host) -> Result<Asked<'a>, Error> {
        let analytic = analytic(question, host)?;
        Ok(Asked { question, name, analytic, host })
    }

    /// Predicts the step with a change.
    ///
    /// # Errors
    /// The changed question has no answer.
    pub fn predict(&self, change: &Change) -> Result<StepEstimate, Error> {
        match change {
            Change::Question(question) => {
                let name = question.schedule.first().map_or(self.name, String::as_str);
                self.estimate(question, name, &analytic(question, self.host)?)
            }
            Change::Hardware(numbers) => self.on_machine(numbers, |machine, key| machine.hardware.field_mut(key)),
            Change::Stack(numbers) => self.on_machine(numbers, |machine, key| machine.stack.field_mut(key)),
        }
    }

    fn on_machine(
        &self,
        numbers: &Numbers,
        field: impl for<'m> Fn(&'m mut Platform, &str) -> Option<&'m mut f64>,
    ) -> Result<StepEstimate, Error> {
        let mut machine = Platform::clone(&self.analytic.machine);
        for (key, value) in numbers {
            if let Some(number) = field(&mut machine, key) {
                *number = *value;
            }
        }
        let analytic = Analytic::new(self.analytic.model, machine, self.analytic.layout.clone())?;
        self.estimate(self.question, self.name, &analytic)
    }

    fn estimate(&self, question: &Question, name: &str, analytic: &Analytic) -> Result<StepEstimate, Error> {
        question.under(analytic, self.host)?.selection(self.host)?.estimate(name, analytic)
    }

    /// Returns the change as settings in backticks, each with its value, and the text of the file that they name, if any.
    pub fn command(&self, change: &Change) -> (String, Option<String>) {
        let file = |base: &str, numbers: &Numbers| {
            let text = |key: &str, value: f64| match key {
                "overlaps_chunks" => (value > 0.0).to_string(),
                _ => value.to_string(),
            };
            let lines = numbers.iter().map(|(key, value)| format!("{key} = {}\n", text(key, *value)));
            Some(format!("base = \"{base}\"\n{}", lines.collect::<String>()))
        };
        match change {
            Change::Question(question) => (settings(self.question, question), None),
            Change::Hardware(numbers) => {
                let base = self.question.hardware.as_deref().unwrap_or_default();
                ("`hardware` changed.toml".to_string(), file(base, numbers))
            }
            Change::Stack(numbers) => ("`stack` changed.toml".to_string(), file(&self.question.stack, numbers)),
        }
    }
}

/// Returns the only layout of a question.
fn analytic(question: &Question, host: &'static dyn Host) -> Result<Analytic, Error> {
    let prepared = question.prepare(host, &Silent)?;
    match prepared.layouts() {
        [analytic] => Ok(analytic.clone()),
        _ => Err(usage(
            "expected one layout of a model on hardware to judge a measured step, found none or several; give `model`, `hardware` and one \
             layout",
        )),
    }
}

/// Returns the settings in which two questions differ, with the values of the second.
fn settings(from: &Question, to: &Question) -> String {
    let all = |question: &Question| question.settings(&[]).collect::<std::collections::BTreeMap<String, Value>>();
    let (from, to) = (all(from), all(to));
    let changed = to.iter().filter(|(name, value)| from.get(*name) != Some(value));
    let text = |value: &Value| match value {
        Value::Bool(_) => String::new(),
        Value::Array(list) => list
            .iter()
            .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_string))
            .collect::<Vec<_>>()
            .join(","),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let given = changed.map(|(name, value)| format!("`{name}` {}", text(value)).trim_end().to_string());
    let left = from.keys().filter(|name| !to.contains_key(*name)).map(|name| format!("without `{name}`"));
    given.chain(left).collect::<Vec<_>>().join(" ")
}
