//! `pipesim plan`: the best layouts of a model on a number of GPUs.

mod files;
mod mine;
mod ranked;
mod shown;
mod watch;

use crate::cli::Failure;
use crate::cli::job_file::JobOptions;
use crate::cli::options::calibrate::CalibrateOptions;
use crate::cli::options::hardware::spellings;
use crate::cli::options::output::{Format, PrintOptions, origin};
use crate::cli::options::schedules::{Names as ScheduleNames, memory_cap, names};
use crate::cli::options::values::{Numbers, one_of, real, tokens, whole};
use crate::cli::question_file::QuestionOptions;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::print;
use crate::cli::terminal::progress::RemarkOptions;
use clap::Args;
use files::Files;
use mine::{MineOptions, RANKED};
use pipesim_answer::plan::{
    Fixed, Names, Objective, Observer, PlanError, PlanFlags, PlanReport, Risk, Search, Target, Variation,
    sensitivities, why,
};
use pipesim_answer::question::{MemoryCap, Question};
use pipesim_models::hardware::STACKS;
use pipesim_models::layout::{Attention, Precision};
use pipesim_report::Report;
use pipesim_verdict::calibration::{SEARCHED, corrected_plans, first_tries};
use pipesim_verdict::choice::margin;
use pipesim_verdict::cluster::{Clusters, Training, clusters};
use shown::Shown;
use std::path::PathBuf;
use watch::Watch;

/// Changes that are mentioned next to the answer.
const MENTIONED: [Variation; 2] = [Variation::Network(2.0), Variation::Batch(2)];

#[derive(Args)]
pub struct PlanVerb {
    /// Model: a name (llama-3-70b, gpt-3-175b, gpt2-xl, ...) or a Hugging Face config.json
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Hardware: a name (h100-sxm, gb200, ...) or a .toml file
    #[arg(long, value_name = "NAME|FILE")]
    hardware: String,
    /// Number of GPUs; several: 16,32,64, or 16..512, each twice the last, or 16..64+16
    #[arg(long, value_name = "N", value_parser = numbers_of_gpus)]
    gpus: Numbers,
    /// Global batch size: sequences per step over all GPUs
    #[arg(long, value_name = "N", aliases = ["global-batch-size", "gbs"], value_parser = whole::<u32>(1..=1 << 27))]
    batch: u32,
    /// Tokens per sequence
    #[arg(long, value_name = "S", aliases = ["seq-length", "seq-len", "sequence-length"], value_parser = whole::<u32>(1..=1 << 27))]
    seq: u32,
    /// Memory limit per GPU in bytes, as in 75GiB [default: the hardware's memory, less 3 %]
    #[arg(long, value_name = "BYTES", value_parser = memory_cap)]
    memory_cap: Option<MemoryCap>,
    /// Training software, which limits the layouts: a name (megatron-core, torchtitan, fsdp, ...) or a .toml file
    #[arg(long, value_name = "NAME|FILE", default_value = STACKS[0])]
    stack: String,
    /// Version of the framework that the stack runs [default: the newest that is known]
    #[arg(long, value_name = "VERSION")]
    framework_version: Option<String>,
    /// Schedules to choose from, or all [default: those that the stack implements]
    #[arg(long, short = 's', value_name = "NAMES", visible_alias = "schedule", value_parser = names)]
    schedules: Vec<ScheduleNames>,
    /// Fixed values, as in tp=8,pp=4: tp, pp, dp, cp, ep, micro-batch-size, chunks, recompute, zero, shard, sequence-parallel, dispatcher, cuda-graph, moe-overlap, delay-wgrad, optimizer-offload, layers; a key given twice allows both values
    #[arg(long, value_name = "KEY=VALUE,..", value_parser = fixed)]
    fix: Vec<String>,
    /// Precision of matrix products
    #[arg(long = "precision", value_name = "PRECISION", default_value = "bf16", value_parser = one_of(Precision::ALL.iter().map(|&p| (spellings(p), "", p))))]
    compute_precision: Precision,
    /// Attention kernel [default: the stack's]
    #[arg(long, value_name = "HOW", value_parser = one_of(Attention::ALL.iter().map(|&a| (a.name(), "", a))))]
    attention: Option<Attention>,
    /// Objective: time per step, tokens per second and GPU, or cost by the hardware's dollars_per_gpu_hour
    #[arg(long, value_name = "WHAT", default_value = "time", value_parser = one_of(Objective::ALL.iter().map(|&o| (o.name(), "", o))))]
    objective: Objective,
    /// How far predictions are trusted: low leaves the error of predicted memory free, even takes the fastest prediction
    #[arg(long, value_name = "RISK", default_value = "usual", value_parser = one_of(Risk::ALL.iter().map(|&risk| (risk.name(), "", risk))))]
    risk: Risk,
    /// Number of plans to search and show
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<u32>(1..=1000))]
    top: u32,
    /// Tokens to train on, as in 300B or 15T: says how many days that takes, and its price if the hardware has one
    #[arg(long, value_name = "N", value_parser = tokens, conflicts_with = "to")]
    tokens: Option<u64>,
    /// Days in which --tokens have to be trained on: says the smallest of --gpus that ends in time
    #[arg(long, value_name = "N", value_parser = days, requires = "tokens")]
    days: Option<f64>,
    /// Print the tables, too: all plans, the parts of their time, what was ruled out and why
    #[arg(long, conflicts_with_all = ["format", "to"])]
    tables: bool,
    /// Print only the best plan, as options of this program
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["format", "ascii"], value_parser = one_of(Target::names().into_iter().map(|name| (name, "", name))))]
    to: Option<&'static str>,
    /// File that stores results; an interrupted search continues from it
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Write a page, a picture or data, by the file's ending: .html .svg .png .pdf .json .csv; repeatable
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
    #[command(flatten)]
    calibrate: CalibrateOptions,
    #[command(flatten)]
    pub print: PrintOptions,
    #[command(flatten)]
    remarks: RemarkOptions,
    #[command(flatten)]
    file: QuestionOptions,
    #[command(flatten)]
    pub job: JobOptions,
    #[command(flatten)]
    pub mine: MineOptions,
}

/// Parses numbers of GPUs. A range without a step doubles: few of the numbers between have layouts.
fn numbers_of_gpus(text: &str) -> Result<Numbers, String> {
    let doubled = |piece: &str| match piece.contains("..") && !piece.contains(['+', '*']) {
        true => format!("{piece}*2"),
        false => piece.to_string(),
    };
    Numbers::parse(&text.split(',').map(doubled).collect::<Vec<_>>().join(","), &(1..=1 << 20))
}

fn days(text: &str) -> Result<f64, String> {
    real::<f64>(text).and_then(|days| match days > 0.0 {
        true => Ok(days),
        false => Err(format!("expected days above 0, found '{text}'; write one such as 60")),
    })
}

fn fixed(text: &str) -> Result<String, String> {
    Fixed::parse(text).map(|_| text.to_string()).map_err(|error| error.to_string())
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        Failure::usage(error)
    }
}

impl PlanVerb {
    pub fn run(&self) -> Result<(), Failure> {
        let files = Files::new(&self.output)?;
        let asked = self.question();
        let mut question = asked.planned(&Sandbox, &self.remarks)?;
        let calibration = self.calibrate.calibration(&asked)?;
        if calibration.is_some() {
            question.keep *= SEARCHED;
        }
        let is_ranked = self.mine.is_given() && self.to.is_none();
        if is_ranked {
            question.keep = question.keep.max(RANKED);
        }
        question.check()?;
        self.file.save(&asked, self.remarks)?;
        let watch = Watch::start(&question, self.resume.as_deref(), self.remarks)?;
        let search = Search::new(&question)?.knowing(watch.known());
        let mut plans = search.plans(&watch)?;
        let corrected = calibration.as_ref().map_or_else(Vec::new, |calibration| {
            let keep = if is_ranked { RANKED } else { self.top as usize };
            let mut corrected =
                corrected_plans(calibration, question.objective, &mut plans, keep, question.safe_bytes());
            corrected.truncate(self.top as usize);
            self.remarks.remark(&calibration.described_plans(&corrected));
            corrected
        });
        let standing = match is_ranked && !watch.is_stopped() {
            true => self.standing(&asked, &search, &mut plans, calibration.as_ref())?,
            false => None,
        };
        // reasons take further searches, and would compare corrected times with others
        let are_shown = self.tables || self.print.format != Format::Table || !self.output.is_empty();
        let is_explained = are_shown && self.to.is_none() && calibration.is_none();
        let best = plans.plans.first().filter(|_| !watch.is_stopped() && is_explained);
        let nearby = best.map_or_else(Vec::new, |best| sensitivities(&question.of_size(best), &MENTIONED, &watch));
        let reasons = best.filter(|_| !watch.is_stopped()).map(|best| why(&search, best, &nearby));
        let mine = standing.as_ref().map(|standing| standing.plan.clone());
        let training = Training { tokens: self.tokens, days: self.days };
        let goes_on = self.to.is_none() && !watch.is_stopped();
        let compares = goes_on && (self.gpus.are_several() || self.tokens.is_some());
        let clusters = compares.then(|| clusters(&question, training, calibration.as_ref(), &watch));
        let margin = plans.plans.first().filter(|_| goes_on).map(|best| margin(&search, best));
        let first = clusters.as_ref().map(Clusters::table);
        let tries = match goes_on && !self.gpus.are_several() {
            true => first_tries(&plans.plans, calibration.as_ref()),
            false => Vec::new(),
        };
        let answer =
            PlanReport { search: &search, plans: &plans, names: Names::from(&asked), why: reasons, mine, first };
        let shown = Shown { answer, corrected, standing, clusters, margin, tries };
        watch.done();
        if !(plans.is_stopped && plans.plans.is_empty()) {
            self.show(&shown)?;
            files.write(&shown, self.remarks, &watch)?;
        }
        watch.ended(&plans)
    }

    fn question(&self) -> Question {
        Question {
            schedule: self.schedules.iter().flat_map(ScheduleNames::all).cloned().collect(),
            memory_cap: self.memory_cap,
            model: Some(self.model.clone()),
            hardware: Some(self.hardware.clone()),
            stack: self.stack.clone(),
            framework_version: self.framework_version.clone(),
            batch: Some(self.batch),
            seq: self.seq,
            precision: self.compute_precision,
            attention: self.attention,
            gpus: self.gpus.all().to_vec(),
            fix: self.fix.clone(),
            objective: self.objective,
            risk: self.risk,
            top: self.top,
            tokens: self.tokens,
            days: self.days,
            ..Question::default()
        }
    }

    fn show(&self, shown: &Shown<'_>) -> Result<(), Failure> {
        let answer = &shown.answer;
        if let Some(name) = self.to {
            let target = Target::named(name)?;
            let Some(best) = answer.plans.plans.first() else { return Ok(()) };
            let PlanFlags { text, notes } = answer.flags(best, target)?;
            notes.iter().for_each(|note| self.remarks.remark(&format!("note: {note}")));
            return print(&format!("{text}\n"));
        }
        let mut report: Report = answer.report();
        report.provenance.extend(origin());
        self.print.show(&report, || shown.json(), || shown.terminal(&report, self.tables), || answer.csv())
    }
}
