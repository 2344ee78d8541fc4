//! `pipesim plan`: the best layouts of a model on a number of GPUs.

mod files;
mod mine;
mod ranked;
mod watch;

use crate::cli::Failure;
use crate::cli::job_file::JobOptions;
use crate::cli::options::calibrate::{CalibrateOptions, with_corrections};
use crate::cli::options::hardware::spellings;
use crate::cli::options::output::{PrintOptions, json, origin};
use crate::cli::options::schedules::{Names as ScheduleNames, memory_cap, names};
use crate::cli::options::values::{Numbers, numbers, one_of, whole};
use crate::cli::question_file::QuestionOptions;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::{print, table};
use clap::Args;
use files::Files;
use mine::{MineOptions, RANKED};
use pipesim_answer::plan::{
    Fixed, Names, Objective, Observer, PlanError, PlanFlags, PlanReport, Search, Target, Variation, sensitivities, why,
};
use pipesim_answer::question::{MemoryCap, Question};
use pipesim_models::hardware::STACKS;
use pipesim_models::layout::{Attention, Precision};
use pipesim_report::Report;
use pipesim_verdict::calibration::{Corrected, SEARCHED, corrected_plans};
use pipesim_verdict::standing::Standing;
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
    /// Number of GPUs; several: 16,32,64 or 16..512*2
    #[arg(long, value_name = "N", value_parser = numbers(1..=1 << 20))]
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
    /// Fixed values, as in tp=8,pp=4: tp, pp, dp, cp, ep, micro-batch-size, chunks, recompute, zero, shard, sequence-parallel, layers; a key given twice allows both values
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
    /// Number of plans to show
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<u32>(1..=1000))]
    top: u32,
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
            let mut corrected = corrected_plans(calibration, question.objective, &mut plans, keep);
            corrected.truncate(self.top as usize);
            self.remarks.remark(&calibration.described_plans(&corrected));
            corrected
        });
        let standing = match is_ranked && !watch.is_stopped() {
            true => self.standing(&asked, &search, &mut plans, calibration.as_ref())?,
            false => None,
        };
        // reasons would compare corrected times with others
        let best = plans.plans.first().filter(|_| !watch.is_stopped() && calibration.is_none());
        let nearby = best.map_or_else(Vec::new, |best| sensitivities(&question.of_size(best), &MENTIONED, &watch));
        let reasons = best.filter(|_| !watch.is_stopped()).map(|best| why(&search, best, &nearby));
        let mine = standing.as_ref().map(|standing| standing.plan.clone());
        let answer = PlanReport { search: &search, plans: &plans, names: Names::from(&asked), why: reasons, mine };
        watch.done();
        if !(plans.is_stopped && plans.plans.is_empty()) {
            self.show(&answer, &corrected, standing.as_ref())?;
            files.write(&answer, self.remarks, &watch)?;
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
            top: self.top,
            ..Question::default()
        }
    }

    fn show(
        &self,
        answer: &PlanReport<'_>,
        corrected: &[Corrected],
        standing: Option<&Standing>,
    ) -> Result<(), Failure> {
        if let Some(name) = self.to {
            let target = Target::named(name)?;
            let Some(best) = answer.plans.plans.first() else { return Ok(()) };
            let PlanFlags { text, notes } = answer.flags(best, target)?;
            notes.iter().for_each(|note| self.remarks.remark(&format!("note: {note}")));
            return print(&format!("{text}\n"));
        }
        let mut report: Report = answer.report();
        report.provenance.extend(origin());
        let as_json = || {
            let mut value = answer.json();
            if let Some(standing) = standing {
                value["mine"] = serde_json::to_value(standing).map_err(anyhow::Error::from)?;
            }
            with_corrections(json(&value)?, "plans", corrected)
        };
        let said = standing.map_or_else(String::new, |standing| format!("{}\n\n", standing.sentence));
        let as_table = || said + &terminal(answer, &report);
        self.print.show(&report, as_json, as_table, || answer.csv())
    }
}

/// Returns the terminal's output: the reasons, the tables, and the best plan to paste.
fn terminal(answer: &PlanReport<'_>, report: &Report) -> String {
    let mut text = table(report);
    if let Some([why, beats]) = &answer.why {
        text += &format!("\nWhy plan 1: {why}\n{beats}\n");
    }
    if let Some(best) = answer.plans.plans.first() {
        for target in answer.targets().unwrap_or_default() {
            match answer.flags(best, target) {
                Ok(PlanFlags { text: flags, notes }) => {
                    text += &format!("\nPlan 1 for {}:\n{flags}\n", target.title());
                    notes.iter().for_each(|note| text += &format!("note: {note}\n"));
                }
                Err(why) => text += &format!("\nPlan 1 for {}: {why}\n", target.title()),
            }
        }
    }
    text
}
