//! `pipesim explain`: where time goes, what bounds it and what would shorten it, in sentences and tables.

use crate::cli::Failure;
use crate::cli::file_kind;
use crate::cli::flags::{as_flags, in_report};
use crate::cli::job_file::{JobGpus, JobOptions};
use crate::cli::options::costs::{CostOptions, read_text};
use crate::cli::options::fsdp::FsdpOptions;
use crate::cli::options::hardware::HardwareOptions;
use crate::cli::options::output::{Format, PrintOptions, WriteOptions, origin, versioned};
use crate::cli::options::schedules::{SearchOptions, remark_balance};
use crate::cli::options::threshold::{Figures, Scope, Side, ThresholdOptions};
use crate::cli::question_file::QuestionOptions;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::{print, table, wrap};
use crate::cli::verbs::import::{read_traces, verdict};
use clap::Args;
use pipesim_answer::advice::Advisor;
use pipesim_answer::explanation::{ExplainedRun, StepExplanation, Unexplained};
use pipesim_answer::question::{Observer, Question, Remark};
use pipesim_answer::resolve::Resolved;
use pipesim_import::ImportOptions;
use pipesim_report::{self as report, Entry, ITERATION, Panel, Report};
use pipesim_schedule::timeline::{Source, Timeline};
use pipesim_sim::exact;
use pipesim_verdict::prediction;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(
    after_help = "At most six sentences per schedule say what costs most, why, and what to try. Each suggestion is simulated: other \
schedules with 2 and 4 chunks per device, 2 and 4 times the micro-batches, split backwards, free links, equal stages, --balance. \
--tables adds tables for all schedules, each below its definitions. A timeline is explained as it was measured: what made it long comes first, \
what would help is predicted from its own costs; of traces, the step with the median makespan. With --layers, how many layers to move, too."
)]
pub struct Explain {
    /// A measured step to explain instead of a prediction: its timeline (`pipesim import`, or `run -o FILE.json`), or the traces that import reads, one file per rank or their folder
    #[arg(value_name = "RUN.json")]
    timeline: Vec<PathBuf>,
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
    /// Print the tables, too: causes of idle time, bounds, sensitivities, critical path, activations
    #[arg(long, conflicts_with = "format")]
    tables: bool,
    #[command(flatten)]
    pub print: PrintOptions,
    #[command(flatten)]
    write: WriteOptions,
    #[command(flatten)]
    pub remarks: RemarkOptions,
    #[command(flatten)]
    thresholds: ThresholdOptions,
    #[command(flatten)]
    file: QuestionOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub job_gpus: JobGpus,
}

/// An explained step, what is drawn of it, and the times of its whole step: alone, and between steps without a barrier.
type Explained = (StepExplanation, Entry, [Option<f64>; 2]);

impl Explain {
    pub fn run(&self) -> Result<(), Failure> {
        self.write.check_writable()?;
        let mut asked = None;
        let explained = match self.timeline.as_slice() {
            [] => self.predictions(&mut asked)?,
            [path] if path.is_file() && !file_kind::is_trace(path) => {
                let read = Timeline::list_from_json(&read_text(path, 4 << 30)?);
                let timelines = read.map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
                self.timelines(path, &timelines)?
            }
            paths => {
                let run = read_traces(paths, &ImportOptions::default(), self.remarks)?;
                let shown = run.timeline(None).map_err(Failure::usage)?;
                self.remarks.remark(&verdict(&run, &[shown]));
                self.timelines(&paths[0], std::slice::from_ref(shown))?
            }
        };
        let (explanations, rest): (Vec<_>, Vec<_>) =
            explained.into_iter().map(|(explanation, entry, step)| (explanation, (entry, step))).unzip();
        let (entries, whole_steps): (Vec<_>, Vec<_>) = rest.into_iter().unzip();
        self.show(asked, &explanations, entries)?;
        let figures = explanations.iter().zip(whole_steps).map(|(e, [iteration, period])| {
            let figures = Figures::new(&e.schedule, &e.time_unit).with_metrics(side(e), &e.metrics);
            figures.with_step(side(e), iteration, period)
        });
        self.thresholds.judge(&figures.collect::<Vec<_>>())?.result()
    }

    /// Explains every timeline of those that are from `path`.
    fn timelines(&self, path: &Path, timelines: &[Timeline]) -> Result<Vec<Explained>, Failure> {
        let at = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
        let named = |failure| match failure {
            Failure::Usage(text) => at(text),
            other => other,
        };
        let selection = self.schedules.selection()?;
        let explained = |timeline: &Timeline| {
            let _busy = self.remarks.busy(&format!("explaining {}", timeline.schedule), None);
            let found = ExplainedRun::new(timeline, self.costs.layers.as_deref(), &selection);
            let ExplainedRun { mut explanation, mut entry, resolved } = found.map_err(|error| match error {
                error @ Unexplained::Step(pipesim_diagnosis::Error::Abstract) => Failure::from(error),
                error => named(error.into()),
            })?;
            self.prove(&mut explanation, &resolved).map_err(named)?;
            spell(&mut explanation);
            entry.notes.clone_from(&explanation.sentences);
            let saved = |panel: &Panel| Some(1e3 * panel.timeline.provenance.get(ITERATION)?.parse::<f64>().ok()?);
            let whole = entry.measured.as_ref().map(|panel| saved(panel).unwrap_or_else(|| panel.iteration()));
            Ok((explanation, entry, [whole, None]))
        };
        timelines.iter().map(explained).collect()
    }

    /// Searches for the best order, if it was asked for.
    fn prove(&self, explanation: &mut StepExplanation, resolved: &Resolved) -> Result<(), Failure> {
        let Some(states) = self.exact else { return Ok(()) };
        let name = explanation.schedule.clone();
        let _busy = self.remarks.busy(&format!("searching up to {states} states for the best order of {name}"), None);
        let refused = |error: exact::Error| Failure::Usage(format!("{name}: --exact: {error}"));
        explanation.prove(&resolved.graph, &resolved.costs, states).map_err(refused)
    }

    /// Explains predicted steps, each with its timelines if they are written; `said` is what was asked of a model.
    fn predictions(&self, said: &mut Option<String>) -> Result<Vec<Explained>, Failure> {
        let mut question = self.schedules.question();
        self.name_once(&mut question);
        self.costs.ask(&mut question);
        self.hardware.ask(&mut question);
        self.fsdp.ask(&mut question);
        if !self.micro_given {
            question.micro.clear();
        }
        let prepared = question.prepare(&Sandbox, &self.remarks).map_err(|error| self.print.without_answer(error))?;
        self.file.save(&question, self.remarks)?;
        let on_hardware = !prepared.layouts().is_empty();
        let unit = if on_hardware { "ms" } else { self.costs.time_unit() };
        self.thresholds
            .check_scope(Scope::Predictions { unit, whole_steps: on_hardware || question.profile.is_some() })?;
        let mut all_explained = Vec::new();
        let Some((asked, costs)) = prepared.questions(&Sandbox)?.into_iter().next() else { return Ok(all_explained) };
        *said = costs.analytic().map(prediction::asked);
        let mut advisor = None;
        let (all, selection) =
            (asked.resolved(&costs, &Sandbox, &self.remarks)?, asked.selection_of(&costs, &Sandbox)?);
        for (name, resolved) in asked.names().iter().zip(all) {
            remark_balance(&resolved, self.remarks);
            let graph = &resolved.graph;
            let most = StepExplanation::MAX_OPS;
            if graph.len() > most {
                return Err(Failure::Usage(format!(
                    "{} has {} ops; explain takes up to {most}: ask for fewer micro-batches",
                    graph.schedule().name,
                    graph.len()
                )));
            }
            if let Some(analytic) = costs.analytic() {
                let against = Remark::against(analytic, graph.schedule())?;
                against.iter().for_each(|remark| Observer::remark(&self.remarks, remark));
            }
            let predicted = resolved.predict()?;
            let _busy = self.remarks.busy(&format!("explaining {}", graph.schedule().name), None);
            let advisor = advisor.get_or_insert_with(|| Advisor::new(&selection, &costs));
            let mut explained = advisor.explain(name, &resolved, &predicted);
            self.prove(&mut explained, &resolved)?;
            let placement = &graph.schedule().placement;
            let point = costs.analytic().map(|one| one.hull_point(placement.stages() / placement.devices().max(1)));
            let outside = point.map_or_else(Vec::new, |point| point.outside(&[])).join("; ");
            explained
                .sentences
                .extend((!outside.is_empty()).then(|| format!("Its time is less certain than usual: {outside}.")));
            if let Some(analytic) = costs.analytic() {
                let step = resolved.estimated(analytic, &predicted)?;
                prediction::complete(&mut explained.sentences, &explained.schedule, &step);
                (explained.iteration_s, explained.fits) = (Some(step.iteration_s), Some(step.memory.fits));
            }
            spell(&mut explained);
            let figures = &predicted.prediction;
            let iteration = explained.iteration_s.map(|seconds| 1e3 * seconds).or(figures.iteration);
            let whole_step = [iteration, figures.period];
            let mut entry = Entry::default();
            if !self.write.output.is_empty() {
                let name = graph.schedule().name.clone();
                let (predicted, notes) = (Some(Panel::predicted(&predicted)), explained.sentences.clone());
                entry = Entry { name, predicted, notes, ..entry };
            }
            all_explained.push((explained, entry, whole_step));
        }
        Ok(all_explained)
    }

    /// Keeps the first of schedules that are named twice.
    fn name_once(&self, question: &mut Question) {
        let mut seen = BTreeSet::new();
        let named = std::mem::take(&mut question.schedule);
        let only = question.only; // counts all of them
        let (once, twice): (Vec<String>, Vec<String>) =
            named.into_iter().partition(|name| only.is_some() || seen.insert(name.clone()));
        question.schedule = once;
        for name in twice.iter().collect::<BTreeSet<_>>() {
            self.remarks.remark(&format!("note: {name} is named more than once, and explained once"));
        }
    }

    /// Prints and writes the explanations.
    fn show(
        &self,
        asked: Option<String>,
        explanations: &[StepExplanation],
        mut entries: Vec<Entry>,
    ) -> Result<(), Failure> {
        if self.write.output.is_empty() {
            entries.clear();
        }
        let mut report = Report { extra_tables: StepExplanation::tables(explanations), ..Report::default() };
        in_report(&mut report);
        let json = || versioned("explanations", explanations).map(as_flags);
        self.print.show_assumed(&self.costs)?;
        let sentences = explanations.iter().map(|e| (e.schedule.as_str(), e.sentences.as_slice()));
        if self.print.format == Format::Md {
            let list = |(name, sentences): (&str, &[String])| {
                let lines: Vec<String> = sentences.iter().flat_map(|text| report::wrapped(text, None)).collect();
                format!("**{}**\n\n- {}\n\n", report::wrapped(name, None).concat(), lines.join("\n- "))
            };
            print(&self.print.plain(sentences.clone().map(list).collect()))?;
        }
        let untried = explanations.iter().filter_map(|e| Some(e.advice.as_ref()?.untried)).max().unwrap_or(0);
        let balance = self.costs.balance.then(|| "Other schedules and micro-batches are balanced, too.".to_string());
        let untried = (untried > 0).then(|| {
            format!(
                "{untried} more schedules were not tried, as they are searched or have too many ops. `predict -s auto` searches."
            )
        });
        let untried: Vec<String> = balance.into_iter().chain(untried).collect();
        let text = || {
            let is_one = asked.is_some() && explanations.len() == 1;
            let list = |e: &StepExplanation| {
                let sentences = if self.tables { &e.sentences } else { e.shown(explanations) };
                match sentences.split_first() {
                    Some((first, rest)) if is_one => {
                        wrap(&[&[format!("{}: {first}", e.schedule)], rest].concat(), 0) + "\n"
                    }
                    _ => format!("{}{}\n", wrap(std::slice::from_ref(&e.schedule), 0), wrap(sentences, 2)),
                }
            };
            let opening = asked.iter().cloned().chain(StepExplanation::opening(explanations)).map(as_flags);
            let opening: Vec<String> = opening.collect();
            let gap = if is_one { "" } else { "\n" };
            let opening = if opening.is_empty() { String::new() } else { wrap(&opening, 0) + gap };
            let sentences = opening + &explanations.iter().map(list).collect::<String>();
            let rest = if untried.is_empty() { String::new() } else { wrap(&untried, 0) + "\n" };
            // a proof has its row
            let tables = match self.tables || self.exact.is_some() {
                true => table(&report),
                false => {
                    let all = if explanations.len() > 1 { "says all of each schedule, and " } else { "says " };
                    wrap(&[format!("--tables {all}when and why each device idles, and what bounds the step.")], 0)
                }
            };
            format!("{sentences}{rest}{tables}")
        };
        let printed = self.print.show(&report, json, text, || StepExplanation::csv(explanations));
        let (p, m) = explanations.first().map_or((0, 0), |e| (e.devices, e.microbatches));
        let title = format!("Explained: {p} devices, {m} micro-batches");
        let subtitle = self.costs.costs.as_ref().map(|_| self.costs.given().described()).unwrap_or_default();
        let mut report = Report { title, subtitle, entries, provenance: origin().collect(), ..report };
        self.write.look.apply(&mut report).iter().for_each(|why| self.remarks.remark(why));
        report.look.causes = true;
        self.write.write(&report, &[], printed, self.remarks)
    }
}

fn side(explanation: &StepExplanation) -> Side {
    let measured = explanation.measured.as_ref();
    if measured.is_some_and(|run| run.source == Source::Measured) { Side::Measured } else { Side::Predicted }
}

/// Writes the settings in sentences as flags, and the settings in changes as code.
fn spell(explanation: &mut StepExplanation) {
    let changes = explanation.advice.iter().flat_map(|advice| &advice.changes).map(|change| change.what.to_string());
    let changes: Vec<String> = changes.filter(|change| change.starts_with('`')).collect();
    for sentence in &mut explanation.sentences {
        for change in &changes {
            *sentence = sentence.replace(change, &format!("`{}`", as_flags(change)));
        }
        *sentence = as_flags(&sentence);
    }
}
