//! `--mine`: where the user's own layout stands among the plans.

use crate::cli::Failure;
use clap::Args;
use pipesim_answer::plan::Fixed;
use pipesim_answer::question::Question;
use pipesim_models::layout::{CudaGraph, Dispatcher, Recompute, Zero};

/// Plans that are kept in order, to find the rank of a layout.
pub(super) const RANKED: usize = 1000;

#[derive(Args, Clone, Debug, Default)]
pub struct MineOptions {
    /// Say where your own layout stands, as in tp=8,pp=4 with the keys of --fix; that of --job is shown always
    #[arg(long, value_name = "KEY=VALUE,..")]
    mine: Option<String>,
    /// What the job asks.
    #[arg(skip)]
    pub question: Option<Box<Question>>,
}

impl MineOptions {
    pub(super) fn is_given(&self) -> bool {
        self.mine.is_some() || self.question.is_some()
    }

    /// Returns the question about the user's own layout, if there is one.
    pub(super) fn own(&self, asked: &Question) -> Result<Option<Question>, Failure> {
        let own = match (&self.mine, &self.question) {
            (Some(text), _) => of_text(text, asked)?,
            (None, Some(question)) => (**question).clone(),
            (None, None) => return Ok(None),
        };
        let Question { model, hardware, stack, framework_version, batch, seq, precision, attention, .. } =
            asked.clone();
        Ok(Some(Question { model, hardware, stack, framework_version, batch, seq, precision, attention, ..own }))
    }
}

/// Returns the question about a layout that is written with the keys of `fix`.
fn of_text(text: &str, asked: &Question) -> Result<Question, Failure> {
    let wrong = |why: String| Failure::Usage(format!("--mine: {why}"));
    let fixed = Fixed::parse(text).map_err(|error| wrong(error.to_string()))?;
    let one = |all: &std::collections::BTreeSet<u32>, usual: u32| all.first().copied().unwrap_or(usual);
    let (tp, pp, cp) = (one(&fixed.tp, 1), one(&fixed.pp, 1), one(&fixed.cp, 1));
    let sizes = [pp, cp].iter().try_fold(tp, |all, &size| all.checked_mul(size));
    let gpus = asked.gpus.first().copied().unwrap_or(1);
    let dp = sizes.filter(|&sizes| gpus.is_multiple_of(sizes)).map(|sizes| gpus / sizes);
    let dp = dp.filter(|&dp| one(&fixed.dp, dp) == dp && asked.gpus.len() == 1).ok_or_else(|| {
        wrong(format!("expected tp · pp · cp · dp to be the {gpus} GPUs of one plan, found '{text}'; correct it"))
    })?;
    let chunks = fixed.chunks.first().copied().filter(|&chunks| chunks > 1);
    let mut own = Question {
        stages: vec![pp],
        chunks,
        tp: vec![tp],
        cp,
        dp: vec![dp],
        ep: one(&fixed.ep, 1),
        micro_batch_size: vec![one(&fixed.micro_batch_size, 1)],
        recompute: fixed.recompute.first().copied().unwrap_or(Recompute::None),
        shard: fixed.shard.first().copied(),
        zero: fixed.zero.first().copied().unwrap_or(Zero::None),
        sequence_parallel: fixed.sequence_parallel.first().copied().unwrap_or(false),
        dispatcher: fixed.dispatcher.first().copied().unwrap_or(Dispatcher::AllToAll),
        cuda_graph: fixed.cuda_graph.first().copied().unwrap_or(CudaGraph::None),
        moe_overlap: fixed.moe_overlap.first().copied().unwrap_or(false),
        delay_wgrad: fixed.delay_wgrad.first().copied().unwrap_or(false),
        optimizer_offload: fixed.optimizer_offload.unwrap_or(0.0),
        layers: fixed.layers.into_iter().next().unwrap_or_default(),
        ..Question::default()
    };
    own.name_schedule();
    Ok(own)
}
