//! `pipesim explain`: where time goes, what bounds it and what would shorten it, in sentences and tables.

mod culprit;
mod explained;
mod measured;
mod run;
mod sentences;
mod tables;

use crate::cli::Failure;
use crate::cli::options::costs::CostOptions;
use crate::cli::options::fsdp::FsdpOptions;
use crate::cli::options::hardware::HardwareOptions;
use crate::cli::options::output::{Format, PrintOptions, WriteOptions, origin, versioned};
use crate::cli::options::schedules::{SearchOptions, remark_balance};
use crate::cli::options::threshold::{Figures, Scope, ThresholdOptions};
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::{print, table, wrap};
use clap::Args;
use explained::Explained;
use pipesim_answer::advice::Advisor;
use pipesim_answer::resolve::Selection;
use pipesim_report::{self as report, Entry, Look, Panel, Report};
use std::path::PathBuf;

/// Most ops of a step that is explained.
const MAX_OPS: usize = 2_000_000;

#[derive(Args)]
#[command(
    after_help = "At most six sentences per schedule say what costs most, why, and what to try. Each suggestion is simulated: other \
schedules with 2 and 4 chunks per device, 2 and 4 times the micro-batches, split backwards, free links, equal stages, --balance. \
Tables for all schedules follow, each below its definitions. A timeline is explained as it was measured: what made it long comes first, \
what would help is predicted from its own costs. With --layers, how many layers to move, too."
)]
pub struct Explain {
    /// Timeline of a measured step (`pipesim import`, or `run -o FILE.json`) to explain instead of a prediction
    #[arg(value_name = "RUN.json")]
    timeline: Option<PathBuf>,
    #[command(flatten)]
    schedules: SearchOptions,
    #[command(flatten)]
    costs: CostOptions,
    #[command(flatten)]
    hardware: HardwareOptions,
    /// Whether --micro was given instead of --batch.
    #[arg(skip)]
    pub micro_given: bool,
    #[command(flatten)]
    fsdp: FsdpOptions,
    /// Prove the best makespan for each schedule's placement within its own activation peaks, in a search of at most STATES states; for small cases [default without a number: 2000000]
    #[arg(long, value_name = "STATES", num_args = 0..=1, default_missing_value = "2000000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    exact: Option<u64>,
    #[command(flatten)]
    print: PrintOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
    #[command(flatten)]
    thresholds: ThresholdOptions,
}

impl Explain {
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let explained = match &self.timeline {
            Some(path) => self.timelines(path)?,
            None => self.predictions()?,
        };
        let (explanations, entries) = explained.into_iter().unzip();
        self.show(explanations, entries)
    }

    /// Explains predicted steps, each with its timelines if they are written.
    fn predictions(&self) -> Result<Vec<(Explained, Entry)>, Failure> {
        let mut question = self.schedules.question();
        self.costs.ask(&mut question);
        self.hardware.ask(&mut question);
        self.fsdp.ask(&mut question);
        if !self.micro_given {
            question.micro.clear();
        }
        let prepared = question.prepare(&Sandbox, &self.remarks)?;
        let unit = if prepared.layouts().is_empty() { self.costs.time_unit() } else { "ms" };
        self.thresholds.check_scope(Scope::Predictions { unit, whole_steps: false })?;
        let mut all_explained = Vec::new();
        let Some((asked, costs)) = prepared.questions(&Sandbox)?.into_iter().next() else { return Ok(all_explained) };
        let mut advisor = None;
        let (all, selection) =
            (asked.resolved(&costs, &Sandbox, &self.remarks)?, asked.selection_of(&costs, &Sandbox)?);
        let selection = Selection { balance: false, ..selection };
        for (name, resolved) in asked.names().iter().zip(all) {
            remark_balance(&resolved, self.remarks);
            let graph = &resolved.graph;
            if graph.len() > MAX_OPS {
                return Err(Failure::Usage(format!(
                    "{} has {} ops; explain takes up to {MAX_OPS}: ask for fewer micro-batches",
                    graph.schedule().name,
                    graph.len()
                )));
            }
            let predicted = resolved.predict()?;
            let _busy = self.remarks.busy(&format!("explaining {}", graph.schedule().name), None);
            let advisor = advisor.get_or_insert_with(|| Advisor::new(&selection, &costs));
            let advice = advisor.advise(name, &resolved, &predicted);
            let sensitivities = advisor.sensitivities(name, &predicted);
            let explained = Explained::new(&predicted, advice, sensitivities, self.exact, self.remarks)?;
            let mut entry = Entry::default();
            if !self.write.output.is_empty() {
                let name = graph.schedule().name.clone();
                let (predicted, notes) = (Some(Panel::predicted(&predicted)), explained.sentences.clone());
                entry = Entry { name, predicted, notes, ..entry };
            }
            all_explained.push((explained, entry));
        }
        Ok(all_explained)
    }

    /// Prints and writes the explanations.
    fn show(&self, explanations: Vec<Explained>, mut entries: Vec<Entry>) -> Result<(), Failure> {
        if self.write.output.is_empty() {
            entries.clear();
        }
        let report = Report { extra_tables: tables::all(&explanations), ..Report::default() };
        let json = || versioned("explanations", &explanations);
        self.print.show_assumed(&self.costs)?;
        let sentences = explanations.iter().map(|e| (e.schedule.as_str(), e.sentences.as_slice()));
        if self.print.format == Format::Md {
            let list = |(name, sentences): (&str, &[String])| {
                let lines: Vec<String> = sentences.iter().flat_map(|text| report::wrapped(text, None)).collect();
                format!("**{}**\n\n- {}\n\n", report::wrapped(name, None).concat(), lines.join("\n- "))
            };
            print(&self.print.plain(sentences.clone().map(list).collect()))?;
        }
        let untried = explanations.iter().map(|e| e.advice.untried).max().unwrap_or(0);
        let untried = match untried {
            0 => Vec::new(),
            n => vec![format!(
                "{n} more were not tried, as they are searched or have too many ops. `predict -s auto` searches."
            )],
        };
        let text = || {
            let list = |(name, sentences): (&str, &[String])| {
                format!("{}{}\n", wrap(&[name.to_string()], 0), wrap(sentences, 2))
            };
            let sentences = sentences.map(list).collect::<String>();
            let rest = if untried.is_empty() { String::new() } else { wrap(&untried, 0) + "\n" };
            format!("{sentences}{rest}{}", table(&report))
        };
        let printed = self.print.show(&report, json, text, || intervals(&explanations));
        let (p, m) = explanations.first().map_or((0, 0), |e| (e.devices, e.microbatches));
        let title = format!("Explained: {p} devices, {m} micro-batches");
        let look = Look { causes: true, ..self.write.look.look() };
        let provenance = origin().collect();
        let subtitle = self.costs.costs.as_ref().map(|_| self.costs.given().described()).unwrap_or_default();
        self.write.write(
            &Report { title, subtitle, entries, look, provenance, ..report },
            &[],
            printed,
            self.remarks,
        )?;
        let figures =
            explanations.iter().map(|e| Figures::new(&e.schedule, &e.time_unit).with_metrics(e.side(), &e.metrics));
        self.thresholds.judge(&figures.collect::<Vec<_>>())?.result()
    }
}

/// Makes a CSV row per idle interval.
fn intervals(explanations: &[Explained]) -> String {
    let mut text = String::from("schedule,device,start,end,cause,next,op,on\n");
    for e in explanations {
        for idle in &e.idle.idle {
            let cause = serde_json::to_value(idle.cause).ok().and_then(|cause| cause.as_str().map(str::to_string));
            let on = idle.on.map_or_else(String::new, |on| on.to_string());
            let [next, op] = [&idle.next, &idle.op].map(|op| op.clone().unwrap_or_default());
            text += &format!(
                "{},{},{},{},{},{next},{op},{on}\n",
                report::csv_cell(&e.schedule),
                idle.device,
                idle.start,
                idle.end,
                cause.unwrap_or_default()
            );
        }
    }
    text
}
