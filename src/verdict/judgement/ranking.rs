//! Candidates, predicted and ranked.

use super::change::{Asked, Change};
use super::changes::{SOLVED, Solved, faster, slower};
use super::evidence::{Argument, Evidence, Suspect};
use pipesim_answer::step_estimate::StepEstimate;
use pipesim_jobs::Measurement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Least share of the difference that a candidate has to explain.
const LEAST: f64 = 0.1;
/// Bisections of a number that is changed as far as the measured time says.
const HALVINGS: usize = 12;
/// Widths of a 90 % interval in standard deviations.
const WIDTHS: f64 = 2.0 * 1.645;
/// Factors on the likelihood of what a log confirms or excludes.
const CONFIRMED: f64 = 5.0;
const EXCLUDED: f64 = 0.1;

/// Something that would explain a measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Its short name.
    pub name: &'static str,
    /// What it is.
    pub what: String,
    /// The settings to change to predict it, in backticks, each with its value.
    pub change: String,
    /// The file that they name, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Predicted time of an iteration with it, in seconds.
    pub iteration_s: f64,
    /// The share of the difference that it explains; above 1 if it costs more.
    pub explains: f64,
    /// Its share of the likelihood of all candidates.
    pub share: f64,
    /// What a log says about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What to look at next.
    pub next: String,
}

/// Stacks whose settings are not Megatron's.
const TORCH_STACKS: [&str; 3] = ["torchtitan", "fsdp", "automodel"];

/// Texts and prior of a candidate.
#[derive(Debug, Deserialize)]
struct Text {
    /// With `{n}` for the percentage by which a solved number changes, `{x}` for the factor.
    what: String,
    prior: f64,
    next: String,
    /// For stacks of PyTorch's FSDP.
    next_torch: Option<String>,
    argument: Option<Argument>,
}

static TEXTS: LazyLock<BTreeMap<String, Text>> =
    LazyLock::new(|| toml::from_str(include_str!("candidates.toml")).unwrap_or_default());

/// A change to predict. A solved one is less likely the further its `factor` is from 1, on the scale of what is `usual`; half as likely at
/// that, as there are runs on which something is slower many times over.
struct Tried {
    name: &'static str,
    change: Change,
    factor: f64,
    usual: f64,
}

/// Returns the candidates that explain a part of the difference between a measured and a predicted time, the most likely first: by their
/// prior, times the density of the measured time around theirs, as wide as published runs are around predictions (`width`, the logarithm
/// of the interval's ends), times what a log says.
pub fn ranked(
    asked: &Asked<'_>,
    now: &StepEstimate,
    measured_s: f64,
    width: f64,
    log: Option<&Measurement>,
) -> Vec<Candidate> {
    let is_slower = measured_s > now.iteration_s;
    let fixed = if is_slower { slower(asked) } else { faster(asked) };
    let fixed = fixed.into_iter().map(|(name, change)| Tried { name, change, factor: 1.0, usual: 1.0 });
    let solved = SOLVED.iter().filter(|_| is_slower).filter_map(|one| solve(asked, one, measured_s));
    let is_torch = TORCH_STACKS.contains(&asked.question.stack.as_str());
    let candidate = |Tried { name, change, factor, usual }: Tried| {
        let (text, then) = (TEXTS.get(name)?, asked.predict(&change).ok()?);
        let explains = (then.iteration_s - now.iteration_s) / (measured_s - now.iteration_s);
        let deviations = (then.iteration_s / measured_s).ln() / width * WIDTHS;
        let unusual = if usual > 1.0 { factor.ln() / f64::ln(usual) } else { 0.0 };
        let suspect = Suspect { name, argument: text.argument.as_ref(), now, then: &then };
        let evidence = log.and_then(|log| suspect.evidence(asked, log));
        let said = evidence.as_ref().map_or(1.0, |one| if one.confirms { CONFIRMED } else { EXCLUDED });
        let share = text.prior * (-deviations * deviations / 2.0).exp() * said / (1.0 + unusual * unusual);
        let (change, file) = asked.command(&change);
        let what = text.what.replace("{n}", &format!("{:.0}", 100.0 * (factor - 1.0)));
        let what = what.replace("{x}", &format!("{factor:.1}"));
        let next = text.next_torch.as_ref().filter(|_| is_torch).unwrap_or(&text.next).clone();
        let found =
            Candidate { name, what, change, file, iteration_s: then.iteration_s, explains, share, evidence, next };
        (explains >= LEAST && explains.is_finite()).then_some(found)
    };
    let mut found: Vec<Candidate> = fixed.into_iter().chain(solved).filter_map(candidate).collect();
    let all: f64 = found.iter().map(|one| one.share).sum();
    found.iter_mut().for_each(|one| one.share /= all.max(f64::MIN_POSITIVE));
    found.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.name.cmp(b.name)));
    found
}

/// Returns the change with the factor that explains the measured time; `None` if no factor does.
fn solve(asked: &Asked<'_>, solved: &Solved, measured_s: f64) -> Option<Tried> {
    let at = |factor: f64| (solved.at)(asked, factor);
    let time = |factor: f64| asked.predict(&at(factor)).ok().map(|estimate| estimate.iteration_s);
    if time(solved.most)? < measured_s {
        return None;
    }
    let (mut low, mut high) = (1.0, solved.most);
    for _ in 0..HALVINGS {
        let middle = f64::sqrt(low * high);
        if time(middle)? < measured_s { low = middle } else { high = middle }
    }
    let factor = if solved.of_step { measured_s / time(1.0)? } else { high };
    Some(Tried { name: solved.name, change: at(high), factor, usual: solved.usual })
}
